"""The split-key kernels: against plain loops in Triton's interpreter, and against SDPA on a GPU."""

import pytest
import torch
from naive_ring import attended, newest_frames, written_ring
from reference_data import captured, interpret, relative_error
from test_ring_attention import random_ring

from models.kernels.ring_attention import ring_attention, visibility

pytest.importorskip("triton")
from models.kernels.ring_attention_triton import attend_ring

FULL = {"n": 60, "tokens": 17, "heads": 24, "d": 64}  # the 1B world model
SHAPES = [
    *({"n": n, "d": d, "groups": g, "batch": b} for n in (2, 5, 7) for d in (16, 64) for g in (1, 2) for b in (1, 2)),
    *({"n": 3, "d": d, "tokens": 50} for d in (32, 128)),  # 100 queries: two row blocks
    *({**FULL, "groups": g, "batch": b} for g in (1, 2) for b in (1, 3)),
]
HALVES = [torch.bfloat16, torch.float16]


def interpreted():
    """Compare the kernels with plain loops, in a process whose Triton interprets them."""
    for n, d, groups, batch, chunk in ((2, 16, 1, 2, 0), (7, 32, 2, 1, 16), (5, 64, 2, 2, 16)):
        for newest in newest_frames(n):
            q, k, v, frames, written = written_ring(n, d, groups, batch, newest)
            expected = attended(q, frames, written, n)
            for dtype, bound in ((torch.float32, 1e-5), (torch.float16, 3e-3)):
                actual = attend_ring(*(tensor.to(dtype) for tensor in (q, k, v)), frames, chunk)
                error = relative_error(actual, expected)
                assert error < bound, (n, d, groups, batch, newest, dtype, error)
    for options in ({"n": 3, "tokens": 40, "heads": 1}, {"n": 140, "heads": 1}):  # two row blocks; 45 chunks to combine
        q, k, v = random_ring(**options)
        for frames in (torch.tensor([1, 2]), torch.tensor([150, 151])):
            expected = ring_attention(q, k, v, visibility(frames, k))
            assert relative_error(attend_ring(q, k, v, frames, 16), expected) < 1e-5, (options, frames)


def test_kernels_in_the_interpreter():
    interpret("test_ring_attention_triton", "interpreted")


def cuda_ring(dtype, **options):
    torch.manual_seed(0)
    return random_ring(dtype=dtype, device="cuda", **options)


def exact(q, k, v, frames):
    wide = [tensor.double() for tensor in (q, k, v)]
    return ring_attention(*wide, visibility(frames, wide[1]))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("options", SHAPES, ids=str)
def test_triton_is_as_exact_as_sdpa(dtype, options):
    q, k, v = cuda_ring(dtype, **options)
    frames = torch.empty(q.shape[1], dtype=torch.int64, device="cuda")
    for newest in newest_frames(options["n"]):
        frames.copy_(newest - torch.arange(q.shape[1]).flip(0))
        expected = exact(q, k, v, frames)
        triton, sdpa = (
            relative_error(ring_attention(q, k, v, visibility(frames, k, kernel=kernel)), expected)
            for kernel in ("triton", "sdpa")
        )
        assert triton < 1e-2, newest
        assert triton <= 2 * sdpa, newest


@pytest.mark.gpu
@pytest.mark.parametrize("chunk", [16, 32, 64, 128])
def test_any_chunk_gives_the_same(chunk):
    q, k, v = cuda_ring(torch.bfloat16, **FULL)
    frames = torch.tensor([70, 71], device="cuda")
    assert relative_error(attend_ring(q, k, v, frames, chunk), exact(q, k, v, frames)) < 1e-2


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["triton", "sdpa"])
def test_a_captured_graph_follows_the_frames(kernel):
    q, k, v = cuda_ring(torch.bfloat16, **FULL)
    frames = torch.tensor([2, 3], device="cuda")

    def attend():
        return ring_attention(q, k, v, visibility(frames, k, kernel=kernel))

    with torch.no_grad():
        graph, out = captured(attend)
        for newest in newest_frames(60):
            frames.copy_(torch.tensor([newest - 1, newest]))
            graph.replay()
            assert relative_error(out, exact(q, k, v, frames)) < 1e-2, newest
