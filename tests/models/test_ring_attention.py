"""What a frame sees of the ring, against plain loops; and what compilation and capture need of it."""

import subprocess
import sys

import pytest
import torch
from naive_ring import attended, newest_frames, written_ring
from reference_data import ROOT, relative_error
from test_capturable import OneDeviceMode
from torch._subclasses.fake_tensor import FakeTensorMode

from models.kernels import ring_attention as module
from models.kernels.ring_attention import ring_attention, visibility


def random_ring(batch=1, groups=2, n=4, tokens=5, heads=3, d=16, dtype=torch.float32, device="cpu"):
    """Return queries, keys and values of no frame in particular."""
    options = {"dtype": dtype, "device": device}
    q = torch.randn(batch, groups, tokens, heads, d, **options)
    return q, *(torch.randn(batch, n + 1, tokens, heads, d, **options) for _ in range(2))


@pytest.mark.parametrize(("n", "d", "groups", "batch"), [(1, 16, 1, 1), (2, 16, 1, 2), (5, 64, 2, 1), (7, 16, 2, 2)])
def test_sdpa_form_is_exact(n, d, groups, batch):
    for newest in newest_frames(n):
        q, k, v, frames, written = written_ring(n, d, groups, batch, newest)
        actual = ring_attention(q, k, v, visibility(frames, k, kernel="sdpa"))
        torch.testing.assert_close(actual, attended(q, frames, written, n), rtol=1e-11, atol=1e-12, msg=str(newest))


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)])
def test_sdpa_form_runs_in_any_dtype(dtype, bound):
    q, k, v = random_ring(dtype=dtype)
    q = torch.stack((q, q), dim=3).unbind(3)[1]  # queries may be a view
    frames = torch.tensor([6, 7])
    actual = ring_attention(q, k, v, visibility(frames, k))
    wide = [tensor.double() for tensor in (q, k, v)]
    assert actual.dtype == dtype
    assert relative_error(actual, ring_attention(*wide, visibility(frames, wide[1]))) < bound


def two_layers(q, k, v, frames):
    seen = visibility(frames, k)
    return ring_attention(ring_attention(q, k, v, seen), k, v, seen)


def test_nothing_is_made_elsewhere_or_read_back():
    inputs = random_ring(dtype=torch.bfloat16, device="meta")
    with torch.no_grad(), OneDeviceMode("meta") as mode:
        out = two_layers(*inputs, torch.empty(2, dtype=torch.int64, device="meta"))
    assert mode.operations > 5
    assert out.shape == inputs[0].shape


def ring_on_a_gpu(dtype, d):
    with FakeTensorMode():
        return torch.empty(1, 5, 3, 2, d, dtype=dtype, device="cuda")


def test_auto_takes_triton_where_it_can_run(monkeypatch):
    monkeypatch.setattr(module, "HAS_TRITON", True)
    frames = torch.tensor([3, 4])
    for dtype, d in ((torch.float16, 16), (torch.bfloat16, 128)):
        assert visibility(frames, ring_on_a_gpu(dtype, d)).mask is None
        assert visibility(frames, ring_on_a_gpu(dtype, d), kernel="triton").mask is None
        assert visibility(frames, ring_on_a_gpu(dtype, d), kernel="sdpa").mask is not None
    for dtype, d, why in ((torch.float32, 64, "not torch.float32"), (torch.bfloat16, 24, "16, 32, 64, 128, not 24")):
        assert visibility(frames, ring_on_a_gpu(dtype, d)).mask is not None
        with pytest.raises(ValueError, match=f"{why}; use kernel='sdpa'"):
            visibility(frames, ring_on_a_gpu(dtype, d), kernel="triton")
    monkeypatch.setattr(module, "HAS_TRITON", False)
    assert visibility(frames, ring_on_a_gpu(torch.float16, 16)).mask is not None
    with pytest.raises(ValueError, match="triton, which is not installed; use kernel='sdpa'"):
        visibility(frames, ring_on_a_gpu(torch.float16, 16), kernel="triton")


def test_what_cannot_run_is_refused():
    q, k, v = random_ring()
    frames = torch.tensor([3, 4])
    with pytest.raises(ValueError, match=r"kernel='triton' needs tensors on a GPU, not on cpu; use kernel='sdpa'"):
        visibility(frames, k, kernel="triton")
    with pytest.raises(ValueError, match="one of auto, sdpa, triton, not 'flash'"):
        visibility(frames, k, kernel="flash")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="g is the number of frames"):
        ring_attention(q[:, :1], k, v, visibility(frames, k))
    with pytest.raises(ValueError, match="must be contiguous"):
        ring_attention(q, k.transpose(2, 3).contiguous().transpose(2, 3), v, visibility(frames, k))


@pytest.mark.skipif(not module.HAS_TRITON, reason="all of these tests run without it")
def test_works_without_triton():
    code = "import sys; sys.modules['triton'] = None; import models.kernels as m; sys.exit(m.HAS_TRITON)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
