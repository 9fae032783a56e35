"""The world model under its rectified-flow training loss: the forward half of a training step.

Noise and noise levels are inputs and are not drawn inside, so that every variant of the step sees the same numbers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.initialisation import draw_normal
from models.world_model import WorldModel, build_world_model, world_model_inputs


class FlowMatching(nn.Module):
    """Flow matching along straight lines from latents (t = 0) to noise (t = 1).

    A frame at level t is `(1 - t)·x + t·noise`. The target velocity is its derivative by t, `noise - x`, the same at
    all levels. Source: https://arxiv.org/abs/2209.03003, where time runs the other way: here t is the noise level.
    """

    def __init__(self, model: WorldModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, x: Tensor, audio: Tensor, mouse: Tensor, btn: Tensor, t: Tensor, noise: Tensor, audio_noise: Tensor
    ) -> Tensor:
        """Return the loss, an fp32 scalar: mean squared error of video plus mean squared error of audio.

        Each mean is over its own elements, so that video and audio have equal weight. Mixing, targets and errors are
        fp32 whatever the latents' dtype.

        Args:
            x: clean video latents [b, n, c, h, w].
            audio: clean audio latents [b, n, ca].
            mouse: mouse movement [b, n, 2].
            btn: buttons held, 0 or 1, [b, n, n_buttons].
            t: noise levels in [0, 1], fp32 [b, n].
            noise: standard normal, of the shape of `x`.
            audio_noise: standard normal, of the shape of `audio`.

        Raises:
            ValueError: the window is longer than the model's, or the latents are of another size.
        """
        noisy_x = _mixed(x, noise, t[:, :, None, None, None])
        noisy_audio = _mixed(audio, audio_noise, t[:, :, None])
        velocity, audio_velocity = self.model(noisy_x, noisy_audio, t, mouse, btn)
        return _squared_error(velocity, x, noise) + _squared_error(audio_velocity, audio, audio_noise)


def _mixed(clean: Tensor, noise: Tensor, level: Tensor) -> Tensor:
    return torch.lerp(clean.float(), noise.float(), level.float()).to(clean.dtype)


def _squared_error(velocity: Tensor, clean: Tensor, noise: Tensor) -> Tensor:
    return F.mse_loss(velocity.float(), noise.float() - clean.float())


def build_flow_matching(**config: Any) -> FlowMatching:
    """Build a world model from the keys of a published config, under its loss.

    Raises:
        ValueError: a key is missing, or its value is not supported.

    """
    return FlowMatching(build_world_model(**config))


def flow_matching_inputs(
    module: FlowMatching,
    *,
    batch: int,
    frames: int,
    generator: torch.Generator,
    device: torch.device | str,
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    """Return random inputs of `FlowMatching.forward` by argument name; `t` is fp32, all others are in `dtype`."""
    inputs = world_model_inputs(
        module.model, batch=batch, frames=frames, generator=generator, device=device, dtype=dtype
    )
    noise, audio_noise = (
        draw_normal(*inputs[name].shape, generator=generator, device=device, dtype=dtype) for name in ("x", "audio")
    )
    return {**inputs, "noise": noise, "audio_noise": audio_noise}
