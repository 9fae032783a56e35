"""QK norm, rotation and the write to the ring in one kernel, against plain operations in float64."""

import itertools

import pytest
import torch
from reference_data import captured, interpret, relative_error, worst_error

from models.attention import QKNorm
from models.kernels.ring_attention import ring_attention, visibility
from models.kernels.ring_attention import write_ring as reference
from models.rotary import rotate

HALVES = [torch.bfloat16, torch.float16]
#: b, g, m, heads, head dim: heads that do not fill a program, head dims that are no power of two or more than one.
SHAPES = [(b, g, m, h, d) for b in (1, 2) for g in (1, 2) for m, h, d in ((5, 3, 24), (17, 3, 64), (5, 5, 16))]
FULL = (1, 1, 17, 24, 64)
SLOTS = 121


def draw_inputs(b, g, m, h, d, dtype=torch.float32, device="cpu", slots=7) -> tuple[torch.Tensor, ...]:
    """Return the arguments of `write_ring`; the angles are those of frames and tokens in general position."""
    torch.manual_seed(0)
    angles = 10 * torch.randn(g * m, d // 2, dtype=torch.float64).repeat_interleave(2, dim=-1)
    sine = angles.sin()
    sine[:, ::2].neg_()
    rotation = torch.stack((angles.cos(), sine)).float().to(device)
    gains = (0.3 * torch.randn(d).to(device, dtype) for _ in range(2))
    rings = (torch.randn(b, slots, m, h, d).to(device, dtype) for _ in range(2))
    # Rows of very different lengths, also such that the epsilon counts.
    qkv = torch.randn(b, g * m, 3 * h * d) * torch.logspace(-3, 1, g * m)[:, None]
    return qkv.to(device, dtype), *gains, rotation, torch.tensor([4, 2][:g], device=device), *rings


def plain(qkv, q_gain, k_gain, rotation, slots, k_ring, v_ring):
    """Return queries and the new rings, leaving the old ones alone."""
    m, h, d = k_ring.shape[2:]
    norm = QKNorm(d).to(qkv.device, qkv.dtype)
    norm.load_state_dict({"q_norm.gain": q_gain, "k_norm.gain": k_gain})
    parts = qkv.unflatten(-1, (3, h, d))
    turned = rotate(norm(parts[:, :, :2]), rotation[:, :, None, None]).to(k_ring.dtype)
    q, k, v = (tensor.unflatten(1, (-1, m)) for tensor in (*turned.unbind(2), parts[:, :, 2]))
    return q.detach(), k_ring.index_copy(1, slots, k.detach()), v_ring.index_copy(1, slots, v)


def exact(given):
    return plain(*(tensor.double() if tensor.is_floating_point() else tensor for tensor in given))


def written(given, write_ring=None):
    """Return what `plain` does, but from the kernel or `write_ring`, whose rings are written in place."""
    if write_ring is None:
        from models.kernels.ring_attention_triton import write_ring

    *rest, k_ring, v_ring = given
    k_ring, v_ring = k_ring.clone(), v_ring.clone()
    with torch.no_grad():
        return write_ring(*rest, k_ring, v_ring), k_ring, v_ring


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_reference_is_what_attention_does(shape, dtype):
    given = draw_inputs(*shape, dtype)
    torch.testing.assert_close(written(given, reference), plain(*given))


def interpreted():
    for shape, (dtype, bound) in itertools.product(SHAPES, ((torch.float32, 1e-6), (torch.float16, 2e-3))):
        given = draw_inputs(*shape, dtype)
        results = written(given)
        slots, old = given[4], given[5:]
        for actual, expected in zip(results, exact(given), strict=True):
            assert actual.dtype == dtype
            assert actual.is_contiguous()
            assert relative_error(actual, expected) < bound, (shape, dtype)
        others = [slot for slot in range(7) if slot not in slots.tolist()]
        for ring, before in zip(results[1:], old, strict=True):
            assert torch.equal(ring[:, others], before[:, others])
            assert not torch.equal(ring[:, slots], before[:, slots])
        assert torch.equal(results[2], plain(*given)[2])  # values are copied as they are


def test_kernel_in_the_interpreter():
    interpret("test_ring_write_triton", "interpreted")


def test_what_does_not_fit_is_refused():
    pytest.importorskip("triton")
    from models.kernels.ring_attention_triton import write_ring

    qkv, *rest, k_ring, v_ring = draw_inputs(1, 2, 5, 3, 24)
    with pytest.raises(ValueError, match=r"qkv \[1, 5, 216\].*of 2 frames"):
        write_ring(qkv[:, :5], *rest, k_ring, v_ring)
    with pytest.raises(ValueError, match="must be contiguous"):
        write_ring(qkv, *rest, k_ring, v_ring.transpose(2, 3).contiguous().transpose(2, 3))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("shape", [*SHAPES, FULL, (2, 2, 17, 24, 64), (1, 1, 17, 12, 128)], ids=str)
def test_as_exact_as_plain_operations(shape, dtype):
    given = draw_inputs(*shape, dtype, "cuda")
    for actual, other, expected in zip(written(given), plain(*given), exact(given), strict=True):
        assert relative_error(actual, expected) <= 2 * relative_error(other, expected)


def written_twice(qkv, q_gain, k_gain, rotation, slots, k_ring, v_ring):
    """Write two steps of a frame and attend after each, as a pass does."""
    from models.kernels.ring_attention_triton import write_ring

    seen, total = visibility(slots, k_ring, kernel="triton"), 0.0
    for factor in (1, 2):
        q = write_ring(factor * qkv, q_gain, k_gain, rotation, slots, k_ring, v_ring)
        total = total + ring_attention(q, k_ring, v_ring, seen)
    return total


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_compiled_graph_writes_the_ring_itself(dtype):
    """And no copy of it, which would be larger than all else that the call needs."""
    torch._dynamo.reset()
    given = draw_inputs(*FULL, dtype, "cuda", slots=SLOTS)
    *rest, k_ring, v_ring = given
    rings = [k_ring.clone(), v_ring.clone()]
    compiled = torch.compile(written_twice, fullgraph=True)
    with torch.no_grad():
        expected = written_twice(*given)
        assert relative_error(compiled(*rest, *rings), expected) < 1e-2
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        compiled(*rest, *rings)
        torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() - before < k_ring.nbytes
    assert worst_error(rings, (k_ring, v_ring)) < 1e-2


@pytest.mark.gpu
def test_a_captured_graph_follows_the_slots():
    from models.kernels.ring_attention_triton import write_ring

    given = draw_inputs(1, 2, 17, 24, 64, torch.bfloat16, "cuda")
    *rest, k_ring, v_ring = given
    slots, before = given[4], [ring.clone() for ring in (k_ring, v_ring)]
    with torch.no_grad():
        graph, q = captured(lambda: write_ring(*rest, k_ring, v_ring))
        for pair in ([0, 1], [6, 3]):
            slots.copy_(torch.tensor(pair))
            k_ring.copy_(before[0])
            v_ring.copy_(before[1])
            graph.replay()
            assert worst_error((q, k_ring, v_ring), exact((*rest, *before))) < 1e-2, pair
