"""The reference where an fp32 copy does not fit, memory runs out, or the module cannot be called in float32."""

import pytest
import torch
from torch import nn
from torch.overrides import _get_current_function_mode

from profiling.components import reference
from profiling.components.build import build
from profiling.components.outputs import relative_l2
from profiling.components.reference import compute_reference
from profiling.components.spec import ComponentSpec, Settings
from profiling.components.trajectory import played
from profiling.errors import InputError


class Net(nn.Module):
    """Two layers. With `fails`, calls raise an error always, or where weights are float32."""

    seen: list[str] = []  # noqa: RUF012 - the form of each call

    def __init__(self, dtype: str = "float32", fails: str | None = None, raises: str = "planted"):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).to(getattr(torch, dtype))
        self.fails, self.raises = fails, raises

    def forward(self, x):
        widened = _get_current_function_mode() is not None
        Net.seen.append("upcast" if widened else str(self.layers[0].weight.dtype))
        if self.fails == "always" or (self.fails == "float32" and Net.seen[-1] == "torch.float32"):
            raise (torch.OutOfMemoryError if "memory" in self.raises else RuntimeError)(self.raises)
        return self.layers(x)


@pytest.fixture(autouse=True)
def forget():
    Net.seen.clear()


def spec_of(cast="module", **module):
    module = {"_target_": f"{__name__}.Net", **module}
    return ComponentSpec(name="net", module=module, inputs={"x": {"shape": [4, 64]}}, cast=cast)


def computed(spec, dtype="bfloat16"):
    settings, built = Settings(device="cpu", dtype=dtype, scale="full"), []

    def load():
        built.append(build(spec, settings))
        return {"module": built[-1]}

    def outputs(blueprint):
        component = blueprint.component(0)
        return played(component, component.call, 2)

    result = compute_reference(load, lambda blueprints: outputs(blueprints["module"]))
    with torch.inference_mode():
        eager = outputs(build(spec, settings).cast("run"))
    return result, eager, len(built)


def distance(one, other):
    pairs = zip(one.log, other.log, strict=True)
    return max(relative_l2(each["output",].numbers, wanted["output",].numbers) for each, wanted in pairs)


@pytest.fixture
def little_memory(monkeypatch):
    monkeypatch.setattr(reference, "free_bytes", lambda device: 10_000)


@pytest.mark.parametrize("cast", ["module", "none"])
def test_where_a_copy_does_not_fit_operations_are_widened(cast, little_memory, monkeypatch):
    widened, eager, builds = computed(spec_of(dtype="bfloat16", cast=cast))
    assert (widened.form, builds) == ("upcast", 1)
    monkeypatch.undo()
    exact, _, _ = computed(spec_of(dtype="bfloat16", cast=cast))
    assert (exact.form, exact.reason) == ("float32", None)
    assert distance(widened.value, exact.value) < 1e-6 < 1e-3 < distance(eager, exact.value)


def test_weights_that_are_float32_already_need_no_room(little_memory):
    assert computed(spec_of())[0].form == "float32"
    assert computed(spec_of(), dtype="float32")[0].form == "float32"


def test_where_memory_runs_out_the_module_is_built_again_with_half_the_weights():
    widened, eager, builds = computed(spec_of(fails="float32", raises="out of memory"))
    assert (widened.form, widened.reason, builds) == ("upcast", "memory ran out in float32", 2)
    exact = computed(spec_of())[0]
    rounding = distance(widened.value, exact.value)
    assert 1e-4 < rounding < distance(eager, exact.value), "its weights are rounded, its operations are not"


def test_where_memory_runs_out_in_every_form_its_error_is_raised():
    with pytest.raises(torch.OutOfMemoryError):
        computed(spec_of(fails="always", raises="out of memory"))
    assert Net.seen == ["torch.float32", "upcast", "torch.bfloat16"]


def test_a_module_that_needs_half_precision_is_its_own_reference():
    own, eager, builds = computed(spec_of(fails="float32"))
    assert (own.form, builds) == ("run", 2)
    assert own.reason == "forward fails (RuntimeError: planted) in float32"
    assert distance(own.value, eager) == 0


@pytest.mark.parametrize(("dtype", "calls"), [("float32", 1), ("bfloat16", 2)])
def test_a_module_that_always_fails_is_the_users_mistake(dtype, calls):
    says = r"component net: Net\.forward raised RuntimeError: planted \(inputs: x float32"
    with pytest.raises(InputError, match=says):
        computed(spec_of(fails="always"), dtype)
    assert len(Net.seen) == calls
