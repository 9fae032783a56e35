"""The cached world model where it is captured: a hundred thousand frames, and both kernels."""

import pytest
import torch
from test_cached_world_model import SMALL, WIDE, drawn, made, one_pass

from profiling.graphs import CudaGraphed

pytestmark = pytest.mark.gpu


class Frames(torch.nn.Module):
    """Frames as calls."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, audio, mouse, btn):
        return self.model.frame(x, audio, mouse, btn)


@torch.inference_mode()
def test_a_hundred_thousand_frames_later():
    """The last frames, from a graph captured at the first, equal one pass in float64 over all that they can see."""
    model = made(SMALL).cuda()
    graphed = CudaGraphed(Frames(model), state=model.state_tensors)
    sequence = [tensor.cuda() for tensor in drawn(SMALL, 50)]
    made_frames = []
    for frame in range(100_000):
        result = graphed(*(tensor[:, frame % 50] for tensor in sequence))
        if frame >= 100_000 - 40:
            made_frames.append(result)
    assert int(model.position) == 100_000
    assert graphed.counters.recorded == 1
    clean = [torch.stack(parts, 1).cpu().double() for parts in zip(*made_frames, strict=True)]
    order = [frame % 50 for frame in range(100_000 - 40, 100_000)]
    noise = [tensor[:, order].cpu().double() for tensor in sequence]
    velocity = one_pass(made(SMALL, torch.float64), clean, noise[:2], 1.0, noise[2:], first=100_000 - 40)
    for actual, start, v in zip(clean, noise, velocity, strict=False):
        torch.testing.assert_close(actual[:, -20:], (start - v)[:, -20:], rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("guidance", [None, 1.5])
@torch.inference_mode()
def test_triton_is_as_near_to_float64_as_sdpa(dtype, guidance):
    """Over three windows; each frame is made after the same past, so that errors are not handed on."""
    # Exact in the dtype: a mouse movement rounded by the test would be another one, and not the network's error.
    sequence, error = [tensor.to(dtype).float() for tensor in drawn(WIDE, 21)], {}
    exact = made(WIDE, torch.float64, guidance=guidance)
    past = [torch.stack(parts, 1) for parts in zip(*[exact.frame(*(t[:, i].double() for t in sequence)) for i in range(21)], strict=True)]  # fmt: skip # noqa: E501
    for kernel in ("triton", "sdpa"):
        model = made(WIDE, guidance=guidance, kernel=kernel).to(dtype).cuda()
        worst = 0.0
        for count in (3, 7, 20):
            model.reset()
            controls = [tensor[:, :count].to(dtype).cuda() for tensor in sequence[2:]]
            model.prefill(*(tensor[:, :count].to(dtype).cuda() for tensor in past), *controls)
            made_frame = model.frame(*(tensor[:, count].to(dtype).cuda() for tensor in sequence))
            for found, frames in zip(made_frame, past, strict=True):
                expected = frames[:, count]
                worst = max(worst, float((found.cpu().double() - expected).norm() / expected.norm()))
        error[kernel] = worst
    assert error["triton"] < max(2 * error["sdpa"], 1e-3)
    assert error["sdpa"] < 0.1
