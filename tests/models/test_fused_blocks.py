"""Whole frames through the fused kernels, against the same frames in plain operations."""

import itertools

import pytest
import torch
from interpreting import interpret
from reference_data import relative_error
from test_cached_world_model import SMALL, WIDE, drawn, made, play

OPTIONS = [{"steps": 2}, {"commit": "separate"}, {"guidance": 1.5, "batch": 2}]


@torch.no_grad()
def interpreted():
    """In fp32 on the CPU, where the kernels run in the interpreter alone: twice around the ring."""
    from models import ring_attention

    ring_attention.triton_obstacle = lambda ring: None
    for options in OPTIONS:
        sequence = drawn(SMALL, 2 * SMALL.n_frames, batch=options.get("batch", 1))
        fused, plain = (made(SMALL, kernel=kernel, **options) for kernel in ("triton", "sdpa"))
        for one, other in zip(play(fused, sequence), play(plain, sequence), strict=True):
            assert relative_error(one, other) < 1e-5, options
        for one, other in zip(fused.state_tensors(), plain.state_tensors(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_frames_in_the_interpreter():
    interpret("test_fused_blocks", "interpreted")


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float16, 1e-2), (torch.bfloat16, 5e-2)], ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@torch.no_grad()
def test_compiled_frames_are_those_of_eager(options, dtype, bound):
    """The first frames after the same past: later ones would hand their errors on."""
    torch._dynamo.reset()
    batch = options.get("batch", 1)
    sequence = [tensor.to(dtype).cuda() for tensor in drawn(WIDE, 10, batch=batch)]
    past, given = ([tensor[:, part] for tensor in sequence] for part in (slice(7), 7))
    model = made(WIDE, kernel="triton", **options).to(dtype).cuda()
    compiled = torch.compile(model.frame, fullgraph=True)
    results = []
    for call, _ in itertools.product((model.frame, compiled), range(2)):
        model.reset()
        model.prefill(*past)
        made_frame = [tensor.clone() for tensor in call(*given)]
        results.append([*made_frame, *(tensor.clone() for tensor in model.state_tensors())])
    for found in results[1:]:
        for one, other in zip(found, results[0], strict=True):
            assert (one - other).double().norm() <= bound * other.double().norm()
