"""Quantised layers: which are chosen, why others stay, that their weights are read, and what each of them costs."""

import copy
import importlib.util
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from fixed_component import Net
from fixed_component import fixed_component as component
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from profiling.components.outputs import difference, to_host
from profiling.errors import InputError
from profiling.roofline.work import work_of
from profiling.variants import gains
from profiling.variants.quantize import Pointwise, Quantize
from profiling.variants.recipe import Recipe

torchao = pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="needs the extra quant")
INT8, DYNAMIC = "Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig"


def quantised(net, folder, **options):
    """Return the prepared step, and the entry of each layer in the record."""
    with torch.inference_mode():
        step = Recipe(transforms=[Quantize(**{"config": INT8, **options})]).prepare(net, folder)
    return step, {each.name: each for each in step.recipe[0].choices.layers}


def error_of(step, net, expected):
    net.reset()
    with torch.inference_mode():
        return difference(to_host(output=step.run()), to_host(output=expected)).error


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.twice, self.last = nn.Linear(64, 128), nn.Linear(128, 128), nn.Linear(128, 16)
        self.unused, self.normed = nn.Linear(8, 8), weight_norm(nn.Linear(16, 16))
        self.point, self.strided, self.wide = nn.Conv2d(16, 24, 1), nn.Conv2d(24, 8, 1, stride=2), nn.Conv2d(8, 4, 3)
        self.held = (self.point,)  # not a submodule
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        y = self.last(self.twice(self.twice(self.first(x).relu())).relu())
        y = self.normed(y)
        return self.wide(self.strided(self.held[0](y.t().reshape(1, 16, -1, 1).expand(-1, -1, -1, 8)))) + self.calls


@pytest.fixture
def net():
    """The component, and the output of its first call."""
    torch.manual_seed(0)
    net = replace(component(Mixed(), x=torch.randn(20, 64)), extra_inputs=({"x": torch.randn(33, 64)},))
    net.reset()
    with torch.inference_mode():
        expected = net.call().clone()
    net.reset()
    return net, expected


@torchao
def test_what_is_quantised_and_why_the_rest_stays(net, tmp_path):
    net, expected = net
    step, layers = quantised(net, tmp_path, exclude=["last"], conv_1x1=True)
    assert {name: each.left for name, each in layers.items()} == {
        "first": None,
        "twice": None,
        "last": "excluded",
        "unused": "no call reaches it (unused, or its weight is read by kernels of the module's own)",
        "normed": "is a ParametrizedLinear, which may use its weight in another way",
        "point": None,
        "strided": "is a convolution with groups, stride or padding",
    }
    section = step.recipe[0].choices
    assert (section.replaced, step.recipe[0].changed, section.now) == (3, 3, {"Int8Tensor": 3})
    assert (layers["twice"].rows, layers["point"].rows) == ((20, 33), (20 * 8, 33 * 8))
    assert isinstance(net.module.point, Pointwise)
    assert 0 < error_of(step, net, expected) < 0.02


@torchao
@pytest.mark.parametrize(("config", "most"), [(INT8, 0.02), (DYNAMIC, 0.04), ("Float8WeightOnlyConfig", 0.08)])
def test_the_error_is_that_of_the_format_and_the_roofline_knows_it(net, config, most, tmp_path):
    net, expected = net
    with torch.inference_mode():
        flops = work_of(net).flops_by_dtype
        step, _ = quantised(net, tmp_path, config=config, include=["first", "twice"])
        assert 0 < error_of(step, net, expected) < most
        work, first = work_of(net), 2 * 20 * 64 * 128
    assert work.bytes["weights"] < 0.5 * sum(each.numel() * 4 for each in net.module.parameters())
    in_8_bits = 5 * first if config == DYNAMIC else 0  # `twice` is called twice
    assert work.flops_by_dtype.get("int8", 0) == in_8_bits
    assert work.flops_by_dtype["float32"] == flops["float32"] - in_8_bits


@torchao
def test_each_layer_alone_has_its_error_and_its_time(net, tmp_path):
    net, expected = net
    alone, hurried = copy.deepcopy(net), copy.deepcopy(net)
    step, _ = quantised(net, tmp_path, sensitivity=True, conv_1x1=True)
    section = step.explain()["sensitivity"]
    errors = {layer.name: layer.rel_l2 for layer in section.layers}
    assert list(errors.values()) == sorted(errors.values(), reverse=True)
    assert (set(errors), section.quantised) == ({"first", "twice", "last", "point"}, 4)
    assert all(layer.ms.before > 0 and layer.ms.after > 0 for layer in section.layers)
    step, _ = quantised(alone, tmp_path, include=["first"])
    assert errors["first"] == pytest.approx(error_of(step, alone, expected), rel=1e-3)
    step, _ = quantised(hurried, tmp_path, sensitivity=True, sensitivity_seconds=1e-9)
    assert [layer.name for layer in step.explain()["sensitivity"].layers] == ["twice"], "the largest layer"


class Rounded(Tensor):
    """A stand-in for the weights of torchao: values of 8 bits, of another type."""


def rounded(weight):
    scale = weight.abs().amax(1, keepdim=True) / 127
    return (weight / scale).round() * scale


@pytest.fixture
def rounding(monkeypatch):
    def quantise(layer):
        layer.weight = nn.Parameter(rounded(layer.weight).as_subclass(Rounded), requires_grad=False)

    monkeypatch.setattr(Quantize, "quantiser", lambda self: quantise)


@pytest.mark.parametrize(
    ("kind", "batch", "shape"), [(nn.Conv1d, (), (5,)), (nn.Conv2d, (2,), (5, 3)), (nn.Conv3d, (2,), (5, 3, 2))]
)
def test_a_convolution_is_a_product_over_its_channels(kind, batch, shape, rounding, tmp_path, monkeypatch):
    timed = []

    def medians(before, after, _):
        before(), after()
        timed.append([type(each.args[0]) for each in (before, after)])
        return 2.0, 1.0

    monkeypatch.setattr(gains, "interleaved_medians", medians)
    convolution = kind(5, 5, 1)  # as many channels as positions: the product over either has the same shape
    net = component(convolution, input=torch.randn(*batch, 5, *shape))
    expected = copy.deepcopy(convolution)
    with torch.inference_mode():
        expected.weight.copy_(rounded(expected.weight.flatten(1)).view_as(expected.weight))
        step, layers = quantised(net, tmp_path, conv_1x1=True, sensitivity=True)
        torch.testing.assert_close(step.run(), expected(**net.inputs))
        assert layers[""].rows == (net.inputs["input"].numel() // 5,) * 2
        (layer,) = step.explain()["sensitivity"].layers
    assert (timed, layer.ms.before, layer.ms.after) == ([[kind, Pointwise]], 2.0, 1.0)


def test_layers_in_two_places_with_one_weight_or_used_now_and_then(rounding, tmp_path):
    """A layer in two places, two layers with one weight, a head tied to an embedding, a layer of every second call."""

    def forward(self, x):
        x = self.embedding(x) + self.b(self.a(self.embedding(x)))
        x = self.d(self.c(x))
        self.calls += 1
        return self.head(self.later(x) if self.calls % 2 else x)

    shared = Net(forward, embedding=nn.Embedding(8, 16), head=nn.Linear(16, 8), calls=torch.tensor(0))
    shared.head.weight = shared.embedding.weight
    shared.a, shared.c, shared.d, shared.later = (nn.Linear(16, 16) for _ in range(4))
    shared.b, shared.d.weight = shared.a, shared.c.weight
    net = component(shared, x=torch.arange(6))
    net.reset()
    expected = copy.deepcopy(net.module)
    with torch.inference_mode():
        for each in (expected.a, expected.c, expected.later):
            each.weight.copy_(rounded(each.weight))
        expected.head.weight = nn.Parameter(rounded(expected.head.weight))
    step, layers = quantised(net, tmp_path, sensitivity=True)
    with torch.inference_mode():
        for _ in range(2):
            torch.testing.assert_close(step.run(), expected(**net.inputs))
        errors = {each.name: each.rel_l2 for each in step.explain()["sensitivity"].layers}
    assert [name for name, each in layers.items() if each.left is None] == ["head", "a", "c", "d", "later"]
    assert min(errors.values()) > 0


@torchao
def test_a_layer_that_torchao_or_its_kernel_refuses_stays(net, tmp_path, monkeypatch):
    from torchao import quantization

    quantise = quantization.quantize_

    class Refusing(Rounded):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            if getattr(func, "__name__", "") == "linear":
                raise RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED\nmore")
            return super().__torch_function__(func, types, args, kwargs or {})

    def refuses(layer, config, filter_fn):
        if layer.in_features == 64:
            raise RuntimeError("no such shape\nmore")
        if layer.out_features == 128:
            layer.weight = nn.Parameter(layer.weight.detach().as_subclass(Refusing), requires_grad=False)
        elif layer.out_features != 24:
            quantise(layer, config, filter_fn=filter_fn)

    monkeypatch.setattr(quantization, "quantize_", refuses)
    _, layers = quantised(net[0], tmp_path, conv_1x1=True)
    assert {name: layers[name].left for name in ("first", "twice", "point", "last")} == {
        "first": "torchao refuses it: RuntimeError: no such shape",
        "twice": "its kernel refuses 20 rows: RuntimeError: CUDA error: CUBLAS_STATUS_NOT_SUPPORTED",
        "point": "torchao left it as it was",
        "last": None,
    }


@torchao
@pytest.mark.parametrize(("config", "dense"), [(INT8, True), ("Float8WeightOnlyConfig", False)], ids=str)
def test_a_kernel_that_reads_rows_one_after_the_other_gets_contiguous_activations(tmp_path, monkeypatch, config, dense):
    def turned(self, x):  # activations that are not contiguous, by position and by name
        return self.linear(x.t()), self.named(input=x.t()), self.point(x.reshape(1, 16, -1, 2))

    parts = {"linear": nn.Linear(64, 32), "named": nn.Linear(64, 32), "point": nn.Conv2d(16, 32, 1)}
    net = component(Net(turned, **parts), x=torch.randn(64, 20))
    step, _ = quantised(net, tmp_path, config=config, conv_1x1=True, sensitivity=True)
    seen, product = [], nn.functional.linear
    monkeypatch.setattr(nn.functional, "linear", lambda x, *given: seen.append(x.is_contiguous()) or product(x, *given))
    with torch.inference_mode():
        step.run()
    assert seen == [dense] * 3


@pytest.mark.parametrize(
    ("config", "size", "rows", "device", "left"),
    [
        (DYNAMIC, 16, (1, 40), "cuda", "called with 1 row, and the kernel needs 17 or more"),
        (DYNAMIC, 16, (1, 40), "cpu", "called with 1 row, and the kernel needs 2 or more"),
        (DYNAMIC, 16, (2, 40), "cpu", None),
        (DYNAMIC, 20, (17,), "cuda", "inputs and outputs must be multiples of 8"),
    ],
)
def test_what_a_kernel_needs(config, size, rows, device, left):
    assert Quantize(config=config)._reason_to_leave("layer", nn.Linear(size, 16), rows, torch.device(device)) == left


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
        ({"granularity": "PerRow"}, "has none"),
        ({"config": "Float8DynamicActivationFloat8WeightConfig"}, "needs granularity: PerTensor or PerRow"),
        ({"include": "*"}, "must be a list of patterns"),
        ({"sensitivity_seconds": 0}, "sensitivity_seconds"),
        pytest.param(
            {"exclude": ["a.*"]}, r"'a\.\*' matches no linear layer of Mixed \(such as: first, ", marks=torchao
        ),
        pytest.param({"options": {"group": 4}}, "Int8WeightOnlyConfig: TypeError: .*group", marks=torchao),
    ],
)
def test_wrong_options_are_refused(options, says, net, tmp_path):
    with pytest.raises(InputError, match=says):
        quantised(net[0], tmp_path, **options)


def test_any_transform_with_choices_has_them_in_its_record(tmp_path):
    class First:
        def __call__(self, module):
            module[0] = nn.Sequential(module[0])
            return module

        def choices(self, module):
            return [
                SimpleNamespace(name="0", shape=(64, 64), left=None),
                SimpleNamespace(name="1", shape=(30, 64), left="it is the last"),
            ]

    net = component(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 30)), input=torch.randn(2, 64))
    with torch.inference_mode():
        (step,) = Recipe(transforms=[First()]).prepare(net, tmp_path).recipe
    assert (step.changed, step.choices.now) == (1, {"Sequential": 1})
    assert step.choices.left == {"it is the last": 1}
    assert [(each.name, each.shape) for each in step.choices.layers] == [("1", (30, 64)), ("0", (64, 64))]
