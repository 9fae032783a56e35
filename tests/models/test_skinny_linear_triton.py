"""Linear layers of a few rows in one kernel each, against plain operations in float64."""

import itertools

import pytest
import torch
from interpreting import interpret
from reference_data import relative_error
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

HALVES = [torch.bfloat16, torch.float16]
#: rows, inputs k, outputs n: k that few powers of two divide, and one program's outputs or many.
SHAPES = list(itertools.product((1, 17, 34, 64), (192, 384, 1024), (64, 320)))
FULL = [(17, 1536, 1536), (17, 1536, 6144), (34, 6144, 1536), (64, 6144, 1536)]


def draw_inputs(rows, k, n, dtype=torch.float32, device="cpu") -> tuple[torch.Tensor, ...]:
    """Return tokens [1, 1, rows, k], a weight [n, k] and a bias [n]."""
    torch.manual_seed(0)
    x, weight, bias = torch.randn(1, 1, rows, k), torch.randn(n, k) * k**-0.5, torch.randn(n)
    return x.to(device, dtype), weight.to(device, dtype), bias.to(device, dtype)


def plain(x, weight, bias):
    linear = F.linear(x, weight, bias)
    return F.silu(linear), linear


def fused(x, weight, bias):
    """Return what `plain` does, the second from its parts."""
    from models.skinny_linear_triton import linear_parts, linear_silu

    with torch.no_grad():
        return linear_silu(x, weight, bias), linear_parts(x, weight, bias).sum(0)


def interpreted():
    from models.skinny_linear_triton import linear_parts, part_count, supports

    counts = set()
    for shape, (dtype, bound) in itertools.product(SHAPES, ((torch.float32, 1e-6), (torch.float16, 1e-3))):
        given = draw_inputs(*shape, dtype)
        assert supports(given[0], given[1]), shape
        exact = plain(*(tensor.double() for tensor in given))
        for one, other in zip(fused(*given), exact, strict=True):
            assert relative_error(one, other) < bound, (shape, dtype)
        parts = linear_parts(*given)
        assert parts.dtype == torch.float32
        assert parts.shape == (part_count(*given[1].shape), *given[0].shape[:-1], given[1].shape[0])
        counts.add(len(parts))
    assert len(counts) > 2, "inputs in one part, and in several"


def test_kernel_in_the_interpreter():
    interpret("test_skinny_linear_triton", "interpreted")


def test_what_it_serves():
    pytest.importorskip("triton")
    from models.skinny_linear_triton import part_count, supports

    x, weight, _ = draw_inputs(64, 128, 192)
    assert supports(x, weight)
    assert not supports(torch.zeros(65, 128), weight), "too many rows"
    assert not supports(x, weight[:96]), "outputs that fill no program"
    assert not supports(torch.zeros(2, 96), torch.zeros(64, 96)), "inputs that fill no load"
    assert not supports(x, weight.t().contiguous().t()), "not dense"
    assert part_count(6144, 1536) == 1
    assert part_count(1536, 1536) == part_count(1536, 6144) == 4
    assert part_count(64, 64) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("shape", [*SHAPES, *FULL], ids=str)
def test_as_exact_as_plain_operations(shape, dtype):
    given = draw_inputs(*shape, dtype, "cuda")
    exact = plain(*(tensor.double() for tensor in given))
    for actual, other, true in zip(fused(*given), plain(*given), exact, strict=True):
        assert relative_error(actual, true) <= 2 * relative_error(other, true)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_compiles_into_one_graph(dtype):
    torch._dynamo.reset()
    given = draw_inputs(*FULL[0], dtype, "cuda")
    compiled = torch.compile(fused, fullgraph=True)(*given)
    for one, other in zip(compiled, fused(*given), strict=True):
        assert relative_error(one, other) < 1e-2


@pytest.mark.gpu
def test_a_captured_graph_follows_its_inputs():
    given = draw_inputs(*FULL[2], torch.bfloat16, "cuda")
    fused(*given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = fused(*given)
    for tensor in given:
        tensor.normal_()
    graph.replay()
    for one, other in zip(out, fused(*given), strict=True):
        assert torch.equal(one, other)


@pytest.mark.gpu
def test_the_operators_keep_their_promises():
    from models import skinny_linear_triton  # noqa: F401

    given = draw_inputs(17, 192, 320, torch.bfloat16, "cuda")
    for operator in (torch.ops.models.linear_silu, torch.ops.models.linear_parts):
        torch.library.opcheck(operator.default, given, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.gpu
def test_flops_are_those_of_the_products():
    given = draw_inputs(17, 192, 320, torch.bfloat16, "cuda")
    counts = []
    for call in (fused, lambda x, weight, bias: [F.linear(x, weight, bias) for _ in range(2)]):
        with FlopCounterMode(display=False) as counter:
            call(*given)
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] == 2 * 2 * 17 * 192 * 320
