"""Linear layers with weights of 8 bits: quantisation, the layer, and a world model that holds it."""

import copy
import re

import pytest
import torch
from reference_data import captured, relative_error
from test_cached_world_model import NAMES, WIDE, draw_inputs
from torch import nn
from torch.nn import functional as F

from models.initialisation import randomise
from models.kernels.eight_bits import dequantise, fits, from_int16_rows, int16_rows, quantise
from models.kernels.skinny_linear import linear_int16
from models.playback import build_world_model_step
from models.skinny_linear import SkinnyLinear, operands

EIGHT = ["int8", "float8_e4m3"]
#: Relative distance of a number of 8 bits from the one that it stands for, at most: half a step.
HALF_STEP = {"int8": 0.5 / 127, "float8_e4m3": 2**-4}


@pytest.mark.parametrize("weights", EIGHT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_row_is_as_near_as_its_largest_number_allows(weights, dtype, monkeypatch):
    torch.manual_seed(0)
    weight = (torch.randn(96, 130) * torch.logspace(-3, 3, 96).unsqueeze(1)).to(dtype)
    stored, scale = quantise(weight, weights)
    assert (stored.itemsize, scale.dtype) == (1, torch.float32)
    error = (dequantise(stored, scale, torch.float64) - weight.double()).abs()
    largest = weight.double().abs().amax(1, keepdim=True)
    step = largest if weights == "int8" else weight.double().abs() + largest * 2**-9 / 448 / HALF_STEP[weights]
    assert (error <= 1.001 * HALF_STEP[weights] * step).all()
    assert (stored.float().abs().amax(1) == (127 if weights == "int8" else 448)).all(), "the whole range is used"
    monkeypatch.setattr("models.kernels.eight_bits.AT_ONCE", 40 * 130)
    for one, other in zip(quantise(weight, weights), (stored, scale), strict=True):
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8)), "in parts"


@pytest.mark.parametrize(("weights", "row"), [("int8", [127, -127, 3, 0]), ("float8_e4m3", [448, -416, 2**-9, 0])])
def test_numbers_that_are_representable_come_back_and_a_row_may_be_zero_or_not_finite(weights, row):
    exact = torch.tensor([row]) * 2**-5
    assert torch.equal(dequantise(*quantise(exact, weights), torch.float32), exact)
    weight = torch.randn(6, 64)
    weight[0], weight[1, 3], weight[2, 3], weight[3, 3], weight[4] = 0, torch.nan, torch.inf, -torch.inf, 1e-45
    stored, scale = quantise(weight, weights)
    out = F.linear(torch.randn(2, 64), dequantise(stored, scale, torch.float32))
    assert (out[:, 0] == 0).all()
    assert out[:, 1:4].isnan().all(), "never hidden"
    assert out[:, [0, 4, 5]].isfinite().all()
    assert stored.float().isfinite().all(), "the kernel takes no NaN among the stored numbers"


@pytest.mark.parametrize("k", [100, 192])
def test_rows_of_16_bits_and_their_products_are_as_exact_as_promised(k):
    x = torch.randn(2, 5, k) * torch.logspace(-3, 3, 5).unsqueeze(1)
    x[0, 0], x[0, 1, 3], x[0, 2, 4] = 0, torch.nan, torch.inf
    rows = int16_rows(x)
    back, finite = from_int16_rows(rows), x.isfinite().all(-1)
    assert (rows.split.dtype, rows.scale.dtype) == (torch.int8, torch.float32)
    error = (back - x.double()).abs().amax(-1)[finite]
    assert (error <= x.double().abs().amax(-1)[finite] / 65024 * 1.001).all()
    assert not back[0, 0].any()
    assert back[~finite].isnan().all()
    x = torch.randn(17, k)
    stored, scale = quantise(torch.randn(64, k), "int8")
    exact = F.linear(x.double(), dequantise(stored, scale, torch.float64))
    for silu, true in ((False, exact), (True, F.silu(exact))):
        actual = linear_int16(*int16_rows(x), stored, None, scale, torch.float32, silu)
        assert relative_error(actual, true) < 5e-5


def make_layer(bias=True):
    torch.manual_seed(1)
    return nn.Linear(128, 192, bias=bias).requires_grad_(False)


@pytest.mark.parametrize(("weights", "bias"), [("bf16", True), ("int8", True), ("float8_e4m3", False)])
def test_the_layer_stands_in_for_a_linear(weights, bias):
    linear, x = make_layer(bias), torch.randn(3, 5, 128)
    layer = SkinnyLinear(linear, weights)
    bound = {"bf16": 0.0, "int8": 0.01, "float8_e4m3": 0.04}[weights]
    assert relative_error(layer(x), linear(x)) <= bound
    assert layer.weight.shape == linear.weight.shape
    assert layer.weight.dtype == linear.weight.dtype
    assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))
    assert layer.bias is linear.bias
    other = SkinnyLinear(make_layer(bias), weights)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(copy.deepcopy(other)(x), layer(x))


@pytest.mark.parametrize("weights", EIGHT)
def test_a_cast_changes_the_activations_and_not_what_is_stored(weights):
    layer = SkinnyLinear(make_layer(), weights)
    stored, scale = layer.stored.clone(), layer.scale.clone()
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        layer.to(dtype)
        assert (layer.weight.dtype, layer.bias.dtype, layer(torch.randn(2, 128, dtype=dtype)).dtype) == (dtype,) * 3
        assert torch.equal(layer.stored.view(torch.int8), stored.view(torch.int8))
        assert layer.stored.dtype == stored.dtype
        assert torch.equal(layer.scale, scale)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": "int4"}, "weights='int4' must be one of bf16, int8, float8_e4m3"),
        ({"max_rows": 65}, "max_rows=65: must be 1 to 64"),
        ({"linear": nn.Linear(64, 10)}, "inputs and outputs must be multiples of 64"),
        ({"linear": nn.Linear(65536, 32768, device="meta")}, "has 2^31 weights or more"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_the_kernel_does_not_take_is_refused(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        SkinnyLinear(**{"linear": make_layer(), "weights": "int8", **options})


def put_in_8_bits(module, weights, max_rows=64):
    """Replace all linear layers of a module that the kernel takes, in place; return it."""
    for owner in list(module.modules()):
        for name, layer in list(owner.named_children()):
            if type(layer) is nn.Linear and fits(layer.weight):
                setattr(owner, name, SkinnyLinear(layer, weights, max_rows))
    return module


def draw_step(weights, dtype):
    model = build_world_model_step(**vars(WIDE), context_frames=WIDE.n_frames, weights=weights)
    randomise(model, 3)
    model.to(dtype).eval().reset()
    return model


def step_of(model, dtype):
    """Return the outputs of a step in one vector."""
    inputs = {name: tensor[:, 0] for name, tensor in zip(NAMES, draw_inputs(WIDE, 1), strict=True)}
    inputs = {name: tensor.bfloat16().to(dtype) for name, tensor in inputs.items()}
    return torch.cat([output.flatten() for output in model(**inputs, t=torch.full((1,), 0.7))])


@pytest.mark.parametrize(("weights", "bound"), [("int8", 0.03), ("float8_e4m3", 0.1)])
@torch.no_grad()
def test_a_world_model_in_8_bits(weights, bound):
    """First its modulation, which pays in time, then the rest too, which pays in memory."""
    half, model = (draw_step(stored, torch.bfloat16) for stored in ("bf16", weights))
    exact = draw_step(weights, torch.float32)
    expected = step_of(exact, torch.float32)
    assert torch.equal(expected, step_of(draw_step("bf16", torch.float32), torch.float32))
    assert not any(isinstance(module, SkinnyLinear) for module in exact.modules()), "the reference is never quantised"
    plain, modulated = step_of(half, torch.bfloat16), step_of(model, torch.bfloat16)
    assert not any(isinstance(module, SkinnyLinear) for module in model.transformer.modules())
    assert model.modulation.linear.stored.itemsize == 1
    put_in_8_bits(model.transformer, weights)
    everywhere = step_of(model, torch.bfloat16)
    # Rounding to bfloat16 is a part of each error, so that their order is not known.
    errors = [relative_error(outputs, expected) for outputs in (plain, modulated, everywhere)]
    assert max(errors) < bound
    assert not torch.equal(plain, modulated)
    assert not torch.equal(modulated, everywhere)


def test_a_world_model_too_narrow_for_8_bits_is_refused():
    sizes = vars(WIDE) | {"d_model": 96}
    with pytest.raises(ValueError, match="weights='int8' needs a d_model that is a multiple of 64, not 96"):
        build_world_model_step(**sizes, context_frames=0, weights="int8")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("weights", ["bf16", *EIGHT])
@pytest.mark.parametrize("rows", [1, 17, 64, 65])
def test_the_kernel_gives_the_product_of_the_layer_on_a_cpu(rows, weights, dtype):
    layer = SkinnyLinear(make_layer().to(dtype), weights)
    x = torch.randn(rows, 128).to(dtype)
    stored, bias, scale = operands(layer)
    weight = stored.double() if scale is None else dequantise(stored, scale, torch.float64)
    exact = F.linear(x.double(), weight, bias.double())
    layer.cuda()
    with torch.no_grad(), torch.profiler.profile() as profile:
        out = layer(x.cuda())
    assert relative_error(out.cpu(), exact) < {torch.float16: 1e-3, torch.bfloat16: 6e-3}[dtype]
    launched = any("_skinny_linear" in event.key for event in profile.key_averages())
    assert launched == (rows <= 64)


@pytest.mark.gpu
@pytest.mark.parametrize("weights", EIGHT)
@torch.no_grad()
def test_replaced_layers_compile_and_are_captured(weights):
    torch._dynamo.reset()
    network = nn.Sequential(nn.Linear(64, 128), nn.SiLU(), nn.Linear(128, 128)).requires_grad_(False)
    network = put_in_8_bits(network.bfloat16().cuda(), weights)
    x = torch.randn(1, 17, 64, device="cuda", dtype=torch.bfloat16)
    expected = network(x)
    assert relative_error(torch.compile(network, fullgraph=True)(x), expected) < 2e-2
    graph, out = captured(lambda: network(x))
    x.normal_()
    graph.replay()
    assert torch.equal(out, network(x))
