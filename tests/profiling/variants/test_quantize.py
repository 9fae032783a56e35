"""Quantised layers: which are chosen, why others stay, that their weights are read, and what each of them costs."""

import copy
import importlib.util
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.overrides import TorchFunctionMode

from models.skinny_linear import SkinnyLinears
from profiling.components.component import Component
from profiling.components.outputs import difference, to_host
from profiling.errors import InputError
from profiling.roofline.work import work_of
from profiling.variants import gains
from profiling.variants.quantize import Pointwise, Quantize, _Use
from profiling.variants.recipe import Recipe

HAS_TORCHAO = importlib.util.find_spec("torchao") is not None
torchao = pytest.mark.skipif(not HAS_TORCHAO, reason="needs the extra quant")
INT8 = "Int8WeightOnlyConfig"


def component(module, x, *extra):
    net = Component("net", module.eval(), {"x": x}, lambda _: {"x": x}, x.device, x.dtype, 1, "random")
    return replace(net, extra_inputs=tuple({"x": each} for each in extra))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.twice, self.last = nn.Linear(64, 128), nn.Linear(128, 128), nn.Linear(128, 16)
        self.tied, self.unused, self.normed = nn.Linear(16, 16), nn.Linear(8, 8), weight_norm(nn.Linear(16, 16))
        self.point, self.strided, self.wide = nn.Conv2d(16, 24, 1), nn.Conv2d(24, 8, 1, stride=2), nn.Conv2d(8, 4, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        y = self.last(self.twice(self.twice(self.first(x).relu())).relu())
        y = self.normed(self.tied(y) @ self.tied.weight.t())
        return self.wide(self.strided(self.point(y.t().reshape(1, 16, -1, 1).expand(-1, -1, -1, 8)))) + self.calls


@dataclass
class Prepared:
    net: Component
    expected: object
    step: object
    choices: dict = field(init=False)

    def __post_init__(self):
        self.choices = {each.name: each for each in self.step.recipe[0].choices.layers}

    def error(self):
        self.net.reset()
        return difference(to_host(output=self.step.run()), to_host(output=self.expected)).error


@pytest.fixture
def prepared(tmp_path):
    def prepare(**options):
        torch.manual_seed(0)
        net = component(Net(), torch.randn(20, 64), torch.randn(33, 64))
        net.reset()
        expected = net.call().clone()
        net.reset()
        return Prepared(net, expected, Recipe(transforms=[Quantize(**options)]).prepare(net, tmp_path))

    with torch.inference_mode():
        yield prepare


@torchao
def test_what_is_quantised_and_why_the_rest_stays(prepared):
    found = prepared(config=INT8, exclude=["last"], conv_1x1=True)
    left = {name: choice.left for name, choice in found.choices.items()}
    assert left == {
        "first": None,
        "twice": None,
        "last": "excluded",
        "tied": "its weight is read by t, not only by its own product",
        "unused": "no call multiplies by its weight (unused, or read by kernels of the module's own)",
        "normed": "is a ParametrizedLinear, which may use its weight in another way",
        "point": None,
        "strided": "is a convolution with groups, stride or padding",
    }
    section = found.step.recipe[0].choices
    assert (section.replaced, found.step.recipe[0].changed, section.now) == (3, 3, {"Int8Tensor": 3})
    assert sum(section.left.values()) == 5
    assert found.choices["twice"].rows == (20, 33)
    assert found.choices["point"].rows == (20 * 8, 33 * 8)
    assert isinstance(found.net.module.point, Pointwise)
    assert 0 < found.error() < 0.02
    assert type(found.net.module.first.weight.data).__name__ == "Int8Tensor"


@torchao
@pytest.mark.parametrize(
    ("config", "most"),
    [(INT8, 0.02), ("Int8DynamicActivationInt8WeightConfig", 0.04), ("Float8WeightOnlyConfig", 0.08)],
)
def test_the_error_is_that_of_the_format_and_the_roofline_reads_half_the_bytes_or_less(prepared, config, most):
    found = prepared(config=config, include=["first", "twice"])
    assert 0 < found.error() < most
    weights = work_of(found.net).bytes["weights"]
    assert weights < 0.5 * sum(each.numel() * 4 for each in found.net.module.parameters())


@torchao
def test_products_of_8_bits_count_as_such(prepared):
    plain = work_of(prepared(config=INT8, include=["first"]).net)
    found = work_of(prepared(config="Int8DynamicActivationInt8WeightConfig", include=["first"]).net)
    assert found.flops == plain.flops
    first = 2 * 20 * 64 * 128
    assert plain.flops_by_dtype == {"float32": plain.total_flops}
    assert found.flops_by_dtype == {"float32": plain.total_flops - first, "int8": first}


@torchao
def test_each_layer_alone_has_its_error_and_its_time(prepared):
    found = prepared(config=INT8, sensitivity=True, conv_1x1=True)
    section = found.step.explain()["sensitivity"]
    errors = [layer.rel_l2 for layer in section.layers]
    assert errors == sorted(errors, reverse=True)
    assert {layer.name for layer in section.layers} == {"first", "twice", "last", "point"}
    assert section.quantised == 4
    assert "eager" in section.timed
    assert all(layer.ms.before > 0 and layer.ms.after > 0 for layer in section.layers)
    net = prepared(config=INT8, include=["first"])
    alone = next(layer.rel_l2 for layer in section.layers if layer.name == "first")
    assert alone == pytest.approx(net.error(), rel=1e-3), "as if only this layer were quantised"
    assert found.error() > max(errors) / 2


@pytest.mark.parametrize(("kind", "shape"), [(nn.Conv1d, (5,)), (nn.Conv2d, (5, 3)), (nn.Conv3d, (5, 3, 2))])
def test_a_convolution_is_timed_as_the_convolution_that_it_was(kind, shape, tmp_path, monkeypatch):
    timed = []

    def medians(before, after, _):
        before(), after()
        timed.append([type(each.args[0]) for each in (before, after)])
        return 2.0, 1.0

    monkeypatch.setattr(gains, "interleaved_medians", medians)
    monkeypatch.setattr(Quantize, "_quantiser", lambda self: rounded)
    net = component(nn.Sequential(kind(4, 6, 1), nn.GELU(), kind(6, 4, 1, bias=False)), torch.ones(()))
    net = replace(net, inputs={"input": torch.randn(1, 4, *shape)})
    with torch.inference_mode():
        step = Recipe(transforms=[Quantize(config=INT8, conv_1x1=True, sensitivity=True)]).prepare(net, tmp_path)
        layers = step.explain()["sensitivity"].layers
    assert timed == [[kind, Pointwise]] * 2
    assert [(layer.ms.before, layer.ms.after) for layer in layers] == [(2.0, 1.0)] * 2


@torchao
def test_the_time_limit_leaves_out_the_smallest_layers(prepared):
    section = prepared(config=INT8, sensitivity=True, sensitivity_seconds=1e-9).step.explain()["sensitivity"]
    assert [layer.name for layer in section.layers] == ["twice"]
    assert section.quantised == 3


@torchao
def test_a_kernel_that_refuses_costs_its_layer_only(prepared, monkeypatch):
    def refuses(layer, config, filter_fn):
        if layer.out_features == 128:
            raise RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED when calling cublasLt\nmore")
        if layer.out_features != 24:
            quantise(layer, config, filter_fn=filter_fn)

    import torchao.quantization

    quantise = torchao.quantization.quantize_
    monkeypatch.setattr(torchao.quantization, "quantize_", refuses)
    left = {name: each.left for name, each in prepared(config=INT8, conv_1x1=True).choices.items()}
    assert left["first"] == "torchao refuses it: RuntimeError: CUBLAS_STATUS_NOT_SUPPORTED when calling cublasLt"
    assert left["point"] == "torchao left it as it was"
    assert left["last"] is None


class Turned(nn.Module):
    """Gives a linear layer and a convolution activations that are not contiguous, and notes what their products get."""

    def __init__(self):
        super().__init__()
        self.linear, self.point = nn.Linear(64, 32), nn.Conv2d(16, 32, 1)
        self.seen = []

    def forward(self, x):
        with Strides(self.seen):
            return self.linear(x.t()), self.point(x.reshape(1, 16, -1, 2))


class Strides(TorchFunctionMode):
    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") == "linear":
            self.seen.append(args[0].is_contiguous())
        return func(*args, **(kwargs or {}))


@torchao
@pytest.mark.parametrize(("config", "dense"), [(INT8, True), ("Float8WeightOnlyConfig", False)], ids=str)
def test_a_kernel_that_reads_rows_one_after_the_other_gets_contiguous_activations(tmp_path, config, dense):
    with torch.inference_mode():
        net = component(Turned(), torch.randn(64, 20))
        Recipe(transforms=[Quantize(config=config, conv_1x1=True, sensitivity=True)]).prepare(net, tmp_path)
        net.module.seen.clear()
        net.call()
        assert net.module.seen == [dense, dense]


@torchao
def test_a_module_that_is_one_convolution_is_replaced(tmp_path):
    with torch.inference_mode():
        net = component(nn.Conv1d(16, 32, 1), torch.randn(2, 16, 7))
        net = replace(net, inputs={"input": net.inputs["x"]})
        expected = net.call()
        step = Recipe(transforms=[Quantize(config=INT8, conv_1x1=True, sensitivity=True)])(net, tmp_path)
        assert step.run().shape == expected.shape
        assert difference(to_host(output=step.run()), to_host(output=expected)).error < 0.02
        assert len(step.explain()["sensitivity"].layers) == 1


class Tied(nn.Module):
    """A layer and a convolution in two places, two layers with one weight, and a head tied to an embedding."""

    def __init__(self):
        super().__init__()
        self.a, self.c = nn.Linear(16, 16), nn.Linear(16, 16)
        self.b, self.d = self.a, nn.Linear(16, 16)
        self.d.weight = self.c.weight
        self.point = nn.Conv1d(16, 16, 1)
        self.again = nn.ModuleList([self.point])
        self.embedding, self.head = nn.Embedding(8, 16), nn.Linear(16, 8)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        x = self.embedding(x) + self.b(self.a(self.embedding(x)))
        x = self.d(self.c(x)).unsqueeze(-1)
        return self.head(self.again[0](self.point(x)).squeeze(-1))


class Rounded(Tensor):
    """A stand-in for the weights of torchao: values of 8 bits, of another type."""


def rounded(layer):
    scale = layer.weight.abs().amax(1, keepdim=True) / 127
    rounded = ((layer.weight / scale).round() * scale).as_subclass(Rounded)
    layer.weight = nn.Parameter(rounded, requires_grad=False)


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=torchao)])
@pytest.mark.parametrize("sensitivity", [False, True])
def test_a_weight_that_layers_share_is_quantised_once_and_stays_shared(real, sensitivity, tmp_path, monkeypatch):
    if not real:
        monkeypatch.setattr(Quantize, "_quantiser", lambda self: rounded)
    with torch.inference_mode():
        net = component(Tied(), torch.arange(6))
        expected = copy.deepcopy(net.module)
        for each in (expected.a, expected.c, expected.point):
            weight = each.weight.flatten(1)
            scale = weight.abs().amax(1, keepdim=True) / 127
            each.weight.copy_(((weight / scale).round() * scale).reshape(each.weight.shape))
        transform = Quantize(config=INT8, conv_1x1=True, sensitivity=sensitivity)
        step = Recipe(transforms=[transform]).prepare(net, tmp_path)
        found = difference(to_host(output=step.run()), to_host(output=expected(torch.arange(6))))
    assert found.error < (0.03 if real else 1e-6)
    module = net.module
    assert module.a is module.b
    assert module.c.weight is module.d.weight
    assert isinstance(module.point, Pointwise)
    assert module.again[0] is module.point
    choices = step.recipe[0].choices
    assert choices.left == {"its weight is read by embedding, not only by its own product": 1}
    assert [each.name for each in choices.layers if each.left is None] == ["a", "c", "d", "point"]


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({"exclude": ["b"]}, {"a": "is also b: excluded"}),
        ({"include": ["a", "c"]}, {"a": "is also b: not included", "d": "not included"}),
        ({"exclude": ["d"]}, {"d": "excluded"}),
    ],
)
def test_a_layer_in_two_places_stays_if_one_of_its_names_does(options, left, tmp_path, monkeypatch):
    monkeypatch.setattr(Quantize, "_quantiser", lambda self: rounded)
    with torch.inference_mode():
        net = component(Tied(), torch.arange(6))
        before = net.call()
        step = Recipe(transforms=[Quantize(config=INT8, **options)]).prepare(net, tmp_path)
        assert 0 < difference(to_host(output=step.run()), to_host(output=before)).error < 0.05
    found = {each.name: each.left for each in step.recipe[0].choices.layers}
    assert found.items() >= left.items()
    assert type(net.module.c.weight.data) is Rounded
    assert (net.module.d.weight is net.module.c.weight) is (left.get("d") is None)


class Recurrent(nn.Module):
    """A network whose first call has no state yet, and does not use one of its layers."""

    def __init__(self):
        super().__init__()
        self.enter, self.pass_on, self.state = nn.Linear(16, 16), nn.Linear(16, 16), None

    def forward(self, x):
        before = 0 if self.state is None else self.pass_on(self.state)
        self.state = torch.tanh(self.enter(x) + before)
        return self.state


def test_a_layer_that_the_first_call_does_not_use_is_quantised_and_has_its_error(tmp_path, monkeypatch):
    monkeypatch.setattr(Quantize, "_quantiser", lambda self: rounded)
    with torch.inference_mode():
        net = component(Recurrent(), torch.randn(4, 16))
        step = Recipe(transforms=[Quantize(config=INT8, sensitivity=True)]).prepare(net, tmp_path)
        layers = step.explain()["sensitivity"].layers
    assert step.recipe[0].choices.left == {}
    assert {layer.name for layer in layers if layer.rel_l2 > 0} == {"enter", "pass_on"}


class Refused(Rounded):
    """Weights whose product the library refuses, in the words of torch on an H200."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") == "linear":
            raise RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasLtMatmulAlgoGetHeuristic(`")
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_product_that_the_library_refuses_names_its_layer(tmp_path, monkeypatch):
    def refused(layer):
        layer.weight = nn.Parameter(layer.weight.detach().as_subclass(Refused), requires_grad=False)

    monkeypatch.setattr(Quantize, "_quantiser", lambda self: refused)
    net = replace(component(nn.Sequential(nn.Linear(8, 4)), torch.ones(())), inputs={"input": torch.ones(3, 8)})
    says = r"did nothing: 0 \[4, 8\]: its kernel refuses 3 rows: RuntimeError: CUDA error: CUBLAS_STATUS_NOT_SUPPORTED"
    with torch.inference_mode(), pytest.raises(RuntimeError, match=says):
        Recipe(transforms=[Quantize(config=INT8)])(net, tmp_path)


def test_what_a_kernel_needs():
    few = Quantize(config="Int8DynamicActivationInt8WeightConfig")
    cuda = torch.device("cuda")
    reason = few._reason_to_leave("layer", nn.Linear(16, 16), _Use(1, (1, 40)), cuda)
    assert reason == "called with 1 row, and the kernel needs 17 or more"
    cpu = torch.device("cpu")
    reason = few._reason_to_leave("layer", nn.Linear(16, 16), _Use(1, (1, 40)), cpu)
    assert reason == "called with 1 row, and the kernel needs 2 or more"
    assert few._reason_to_leave("layer", nn.Linear(16, 16), _Use(1, (2, 40)), cpu) is None
    odd = few._reason_to_leave("layer", nn.Linear(20, 16), _Use(1, (17,)), cuda)
    assert odd == "inputs and outputs must be multiples of 8"
    four = Quantize(config="Int4WeightOnlyConfig")._reason_to_leave("layer", nn.Linear(16, 16), _Use(1, (17,)), cuda)
    assert four == "has float32 weights, and the kernel takes bfloat16"


@torchao
def test_what_the_device_lacks_skips_the_cell(monkeypatch):
    rows = Quantize(config="Float8DynamicActivationFloat8WeightConfig", granularity="PerRow")
    assert rows.unavailable(torch.device("cpu")) == f"{rows.config} needs a CUDA device"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    reason = rows.unavailable(torch.device("cuda"))
    assert reason == f"{rows.config} needs a GPU of compute capability 8.9; this one is of compute capability 8.0"
    assert Quantize(config=INT8).unavailable(torch.device("cuda")) is None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"config": "Int8WeightsConfig"}, r"Did you mean 'Int8WeightOnlyConfig'"),
        ({"config": INT8, "granularity": "PerRow"}, "has none"),
        ({"config": "Float8DynamicActivationFloat8WeightConfig"}, "needs granularity: PerTensor or PerRow"),
        ({"config": INT8, "include": "*"}, "must be a list of patterns"),
        ({"config": INT8, "sensitivity_seconds": 0}, "sensitivity_seconds"),
    ],
)
def test_wrong_options_are_refused(options, says):
    with pytest.raises(InputError, match=says):
        Quantize(**options)


@torchao
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"exclude": ["blocks.*"]}, r"'blocks\.\*' matches no linear layer of Net \(such as: first, twice, last\)"),
        ({"options": {"group": 4}}, "Int8WeightOnlyConfig: TypeError: .*group"),
    ],
)
def test_what_fits_no_module_or_config_is_refused(prepared, options, says):
    with pytest.raises(InputError, match=says):
        prepared(config=INT8, **options)


def test_any_transform_with_choices_has_them_in_its_record(tmp_path):
    with torch.inference_mode():
        net = component(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 30)), torch.randn(2, 64))
        net = replace(net, inputs={"input": net.inputs["x"]})
        (step,) = Recipe(transforms=[SkinnyLinears()])(net, tmp_path).recipe
    assert (step.changed, step.choices.now) == (1, {"SkinnyLinear": 1})
    assert step.choices.left == {"inputs and outputs must be multiples of 64": 1}
    assert [(each.name, each.shape) for each in step.choices.layers] == [("1", (30, 64)), ("0", (64, 64))]
