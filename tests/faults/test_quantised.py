"""Faults of quantised variants: a variant that would do nothing claims no speed."""

import sys
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from fixed_component import fixed_component
from table import promise
from torch import nn

from models.skinny_linear import SkinnyLinear
from profiling.errors import InputError, NothingChangedError, missing_package
from profiling.realtime.mix import Mixed, check_variant
from profiling.realtime.plan import LoopOptions
from profiling.results.explanations import ModuleChoice
from profiling.variants.inductor import Inductor
from profiling.variants.quantize import Quantize
from profiling.variants.recipe import Outcome, Recipe, Transform, _applied
from profiling.variants.replace_linears import ReplaceLinears

INT8 = "Int8WeightOnlyConfig"


@pytest.fixture
def net():
    return fixed_component(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 30)), input=torch.randn(2, 64))


@promise("missing package")
def test_a_missing_package_and_a_folder_of_its_name(monkeypatch, tmp_path):
    (tmp_path / "some_extra").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert str(missing_package("some_extra")).startswith("some_extra is not installed.")
    monkeypatch.setattr("profiling.errors.find_spec", lambda name: None)
    reason = Recipe(transforms=[Quantize(config=INT8)]).unavailable(torch.device("cpu"))
    assert str(reason).startswith("torchao is not installed. To install it:")


@promise("kernel")
def test_a_kernel_that_cannot_run_is_not_silent(net, tmp_path):
    transform = ReplaceLinears(layer=partial(SkinnyLinear, weights="bf16"))
    says = "1 of 1 replaced layers run without their kernel"
    on_a_gpu = SimpleNamespace(device=torch.device("cuda"), inputs=net.inputs, keep_state=net.keep_state)
    with pytest.raises(NothingChangedError, match=f"did nothing: {says}"):
        _applied(transform, "ReplaceLinears", deepcopy(net.module), on_a_gpu)
    with torch.inference_mode():
        step = Recipe(transforms=[transform]).prepare(net, tmp_path)
    assert step.recipe[0].notes == (f"{says}: the kernel needs triton and a CUDA device",)
    assert not [each for each in net.module.modules() if each._forward_pre_hooks]


@promise("missing package")
@pytest.mark.parametrize(
    ("code", "says"),
    [("raise ImportError('libcudart.so.13')", "ImportError: libcudart.so.13"), ("", "no attribute 'Int8WeightOnly")],
)
def test_a_torchao_that_does_not_fit(code, says, net, monkeypatch, tmp_path):
    folder = tmp_path / "torchao" / "quantization"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "__init__.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchao"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(InputError, match=rf"torchao cannot be used \(.*{says}.*To update it: .*--upgrade torchao"):
        Recipe(transforms=[Quantize(config=INT8)]).prepare(net, tmp_path)
    for name in ("torchao", "torchao.quantization"):
        sys.modules.pop(name, None)


class Leaves:
    """A transform of a user's own that finds nothing to do."""

    def choices(self, module):
        return [SimpleNamespace(name=str(number), shape=(64, 64), left="not included") for number in range(2)]

    def __call__(self, module):
        return module


@promise("does not apply")
def test_a_transform_that_did_nothing_is_skipped(net, tmp_path):
    with pytest.raises(NothingChangedError, match=r"did nothing: 0 \[64, 64\] and 1 more: not included"):
        Recipe(transforms=[Leaves()]).prepare(net, tmp_path)


@torch.library.custom_op("planted::product", mutates_args=())
def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Multiply eagerly for any shape, and refuse one shape when it is compiled."""
    return x @ weight.t()


@product.register_fake
def _(x, weight):
    if weight.shape[0] == 30:
        raise RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED when calling cublasLtMatmul")
    return x @ weight.t()


class Product(nn.Linear):
    def forward(self, input):
        return product(input, self.weight) + self.bias


class Breaks(nn.Linear):
    def forward(self, input):
        raise RuntimeError("operation not permitted when stream is capturing")


@dataclass(frozen=True)
class Becomes(Transform):
    """Replaces the last layer by one of another class, as a quantisation does."""

    kind: type[nn.Module]

    def apply(self, module, component):
        module[1].__class__ = self.kind
        return Outcome(module, choices=(ModuleChoice(name="1", shape=(30, 64), rows=(2, 2), now=self.kind.__name__),))


@promise("kernel")
@pytest.mark.parametrize(
    ("kind", "compiler", "says"),
    [(Product, Inductor(), "CUBLAS_STATUS_NOT_SUPPORTED when"), (Breaks, None, "operation not permitted when stream")],
)
def test_the_layer_that_fails_is_named_compiled_and_called(net, tmp_path, kind, compiler, says):
    layer = rf"^the layer 1 \[30, 64\], {kind.__name__}, 2 rows fails: RuntimeError: {says}"
    with pytest.raises(RuntimeError, match=layer), torch.inference_mode():
        Recipe(transforms=[Becomes(kind)], compiler=compiler).prepare(net, tmp_path)


@promise("option")
@pytest.mark.parametrize("mixed", [False, True])
def test_sensitivity_is_refused_in_a_loop(mixed):
    variant = Recipe(transforms=[Quantize(config=INT8, sensitivity=True)])
    with pytest.raises(InputError, match=r"^transforms\.0\.sensitivity=true measures the layers of one network"):
        check_variant(Mixed(stages={"a": Recipe(), "b": variant}) if mixed else variant, LoopOptions())
