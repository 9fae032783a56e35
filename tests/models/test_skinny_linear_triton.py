"""Linear layers of a few rows in one kernel each, against plain operations in float64."""

import itertools

import pytest
import torch
from reference_data import captured, interpret, relative_error, worst_error
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from models.kernels import skinny_linear as references
from models.kernels.eight_bits import dequantise, int16_rows, kernel_order, quantise

pytest.importorskip("triton")
from models.kernels.skinny_linear_triton import (
    choose_tile,
    linear,
    linear_int16,
    linear_parts,
    linear_silu,
    part_count,
    supports,
    takes_int16,
)

HALVES = [torch.bfloat16, torch.float16]
#: rows, inputs k, outputs n: k that few powers of two divide, and one program's outputs or many.
SHAPES = list(itertools.product((1, 2, 17, 64), (192, 384, 1024), (64, 320)))
#: With weights of 8 bits: k that is no multiple of 128, 256 or 512, and rows that fill no power of two.
ODD = [(1, 448, 128), (3, 64, 320), (16, 448, 128), (40, 320, 448)]
FULL = [(17, 1536, 1536), (17, 1536, 6144), (34, 6144, 1536), (64, 6144, 1536)]


def draw_inputs(rows, k, n, dtype=torch.float32, device="cpu") -> tuple[torch.Tensor, ...]:
    """Return tokens [1, 1, rows, k], a weight [n, k] and a bias [n]."""
    torch.manual_seed(0)
    x, weight, bias = torch.randn(1, 1, rows, k), torch.randn(n, k) * k**-0.5, torch.randn(n)
    return x.to(device, dtype), weight.to(device, dtype), bias.to(device, dtype)


def quantised(x, weight, bias, weights):
    """Return the inputs with the weight quantised, and its scale."""
    stored, scale = quantise(weight, weights)
    return x, stored, bias, scale


def plain(x, weight, bias, scale=None):
    weight = weight if scale is None else dequantise(weight, scale, x.dtype)
    product = F.linear(x, weight, bias)
    return product, F.silu(product), product


def fused(x, weight, bias, scale=None):
    """Return what `plain` does, the last from its parts."""
    given = x, weight, bias, scale
    with torch.no_grad():
        return linear(*given), linear_silu(*given), linear_parts(*given).sum(0)


def referenced(x, weight, bias, scale=None):
    """Return what `fused` does, from the references of the kernels."""
    given = x, weight, bias, scale
    product = references.linear(*given, x.dtype)
    return product, references.linear_silu(*given), references.linear_parts(*given).sum(0)


def fused_int16(x, stored, bias, scale):
    """Return what `plain` does but the last, with activations of 16-bit integers."""
    return [linear_int16(*int16_rows(x), stored, bias, scale, x.dtype, silu) for silu in (False, True)]


def in_float64(given):
    """Return the inputs in float64; weights of 8 bits stay, and are dequantised in the product."""
    return [tensor if tensor.itemsize == 1 else tensor.double() for tensor in given]


def interpreted():
    counts = set()
    for shape, (dtype, bound) in itertools.product([*SHAPES, *ODD], ((torch.float32, 1e-6), (torch.float16, 1e-3))):
        given = draw_inputs(*shape, dtype)
        assert supports(given[0], given[1]), shape
        assert worst_error(fused(*given), plain(*in_float64(given))) < bound, (shape, dtype)
        assert worst_error(fused(*given), referenced(*given)) < bound, (shape, dtype)
        assert torch.equal(linear(*given[:2]), linear(*given[:2], torch.zeros_like(given[2]))), "without a bias"
        for weights in ("int8", "float8_e4m3") if shape in [*SHAPES[::5], *ODD] else ():
            eight = quantised(*given, weights)
            assert worst_error(fused(*eight), plain(*in_float64(eight))) < bound, (shape, dtype, weights)
            assert worst_error(fused(*eight), referenced(*eight)) < bound, (shape, dtype, weights)
            if weights == "int8":
                x, *operands = eight
                for one, silu in zip(fused_int16(*eight), (False, True), strict=True):
                    other = references.linear_int16(*int16_rows(x), *operands, torch.float64, silu)
                    assert relative_error(one, other) < bound, (shape, dtype)
        if shape in ODD:
            continue
        parts = linear_parts(*given)
        assert parts.dtype == torch.float32
        assert parts.shape == (part_count(*given[1].shape), *given[0].shape[:-1], given[1].shape[0])
        counts.add(len(parts))
    assert len(counts) > 2, "inputs in one part, and in several"


def test_kernel_in_the_interpreter():
    interpret("test_skinny_linear_triton", "interpreted")


def test_what_the_kernels_take():
    x, weight, bias = draw_inputs(64, 128, 192)
    assert supports(x, weight)
    assert not supports(torch.zeros(65, 128), weight), "too many rows"
    assert not supports(x, weight[:96]), "outputs that fill no program"
    assert not supports(torch.zeros(2, 96), torch.zeros(64, 96)), "inputs that fill no load"
    assert not supports(x, weight.t().contiguous().t()), "not dense"
    stored, scale = quantise(weight, "int8")
    assert takes_int16(x, stored)
    assert not takes_int16(x, weight)
    assert not takes_int16(x, weight.to(torch.float8_e4m3fn))
    assert not takes_int16(x[:, :, :2], stored), "of two rows another kernel is faster"
    assert not takes_int16(torch.zeros(3, 2**17 + 64), torch.zeros(64, 2**17 + 64, dtype=torch.int8)), "sums overflow"
    for wrong in ((x, weight, bias, scale), (x, stored, bias), (x, stored.view(torch.uint8), bias, scale)):
        with pytest.raises(ValueError, match=r"a weight in .* scale"):
            linear(*wrong)
    assert [part_count(*sizes) for sizes in ((6144, 1536), (1536, 1536), (1536, 6144), (64, 64))] == [1, 4, 4, 1]


@pytest.mark.parametrize("rows", [1, 2, 3, 17, 64])
def test_tiles_of_8_bits_divide_a_layer_and_fit_into_shared_memory(rows):
    for (n, k), split in itertools.product(((4608, 1536), (1536, 1536), (1536, 6144), (64, 64)), (False, True)):
        tile = choose_tile(n, k, rows, 1, split=split)
        assert n % tile.columns == k % tile.parts == 0
        assert split or tile.parts == 1
        assert tile.stages * tile.inner * (tile.columns + 2 * max(rows, 16)) <= 227 * 1024


def test_tiles_of_8_bits_are_those_that_were_measured_fastest():
    """At the sizes of the 1B world model; docs/results/h100/skinny_linear.txt has their times."""
    for n, k, rows, split, tile in (
        (236544, 1536, 1, False, (16, 512, 1, 3, 2)),
        (236544, 1536, 2, False, (64, 256, 1, 3, 4)),
        (6144, 1536, 17, False, (64, 256, 1, 3, 4)),
        (4608, 1536, 34, False, (64, 256, 1, 3, 4)),
        (1536, 6144, 17, True, (64, 128, 16, 3, 4)),
        (1536, 1536, 34, True, (64, 128, 4, 3, 4)),
    ):
        assert choose_tile(n, k, rows, 1, split=split) == tile


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("shape", [*SHAPES, *FULL], ids=str)
def test_as_exact_as_plain_operations(shape, dtype):
    given = draw_inputs(*shape, dtype, "cuda")
    exact = plain(*(tensor.double() for tensor in given))
    for actual, other, true in zip(fused(*given), plain(*given), exact, strict=True):
        assert relative_error(actual, true) <= 2 * relative_error(other, true)


@pytest.mark.gpu
@pytest.mark.parametrize("weights", ["int8", "float8_e4m3"])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("shape", [*SHAPES[::4], *ODD, *FULL, (1, 1536, 4608), (2, 1536, 4608)], ids=str)
def test_weights_of_8_bits_give_the_product_of_the_dequantised_ones(shape, dtype, weights):
    given = quantised(*draw_inputs(*shape, dtype, "cuda"), weights)
    exact = plain(*in_float64(given))
    rounded = [one.to(dtype) for one in exact]
    for actual, once, true in zip(fused(*given), rounded, exact, strict=True):
        assert relative_error(actual, true) <= 1.1 * relative_error(once, true) + 1e-6, "more than one rounding"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("shape", [*SHAPES[4::4], *ODD[1:], *FULL, (17, 1536, 4608), (34, 1536, 4608)], ids=str)
def test_activations_in_int16_cost_less_than_the_rounding_of_the_result(shape, dtype):
    given = quantised(*draw_inputs(*shape, dtype, "cuda"), "int8")
    exact = plain(*in_float64(given))[:2]
    for actual, true in zip(fused_int16(*given), exact, strict=True):
        assert relative_error(actual, true) <= 1.1 * relative_error(true.to(dtype), true) + 5e-5


@pytest.mark.gpu
def test_sums_of_the_largest_numbers_do_not_overflow():
    x = torch.ones(17, 2**17, device="cuda", dtype=torch.bfloat16)
    stored, scale = quantise(torch.ones(64, 2**17, device="cuda"), "int8")
    out = linear_int16(*int16_rows(x), stored, None, scale, torch.float32)
    torch.testing.assert_close(out, torch.full_like(out, 2.0**17), rtol=1e-5, atol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("weights", ["int8", "float8_e4m3"])
def test_every_number_of_8_bits_is_widened_exactly(weights):
    """Through a product with one input of 1: of bf16, where float8 is widened by bits, and of fp16."""
    stored = torch.arange(256, dtype=torch.uint8, device="cuda").view(torch.int8)
    stored = stored if weights == "int8" else stored.view(torch.float8_e4m3fn)
    real = ~stored.float().isnan()  # the two NaN of float8, which `quantise` never stores
    weight = torch.zeros(256, 64, dtype=torch.uint8, device="cuda")
    weight[:, 5] = stored.view(torch.uint8)
    weight = kernel_order(weight).view(stored.dtype)
    for rows, dtype in itertools.product((1, 2, 3, 20), HALVES):
        x = torch.zeros(rows, 64, dtype=dtype, device="cuda")
        x[-1, 5] = 1
        with torch.no_grad():
            out = linear(x, weight, None, torch.ones(256, device="cuda"))
        assert torch.equal(out[-1][real], stored.to(dtype)[real])


@pytest.mark.gpu
def test_a_captured_graph_follows_its_inputs():
    given = draw_inputs(*FULL[2], torch.bfloat16, "cuda")
    graph, out = captured(lambda: fused(*given))
    for tensor in given:
        tensor.copy_(torch.randn_like(tensor, dtype=torch.float32))
    graph.replay()
    for one, other in zip(out, fused(*given), strict=True):
        assert torch.equal(one, other)


@pytest.mark.gpu
def test_flops_are_those_of_the_products():
    given = draw_inputs(17, 192, 320, torch.bfloat16, "cuda")
    counts = []
    for call in (fused, lambda x, weight, bias: [F.linear(x, weight, bias) for _ in range(3)]):
        with FlopCounterMode(display=False) as counter:
            call(*given)
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] == 3 * 2 * 17 * 192 * 320
    with FlopCounterMode(display=False) as counter:
        fused_int16(*quantised(*given, "int8"))
    assert counter.get_total_flops() == 2 * 2 * 17 * 192 * 320
