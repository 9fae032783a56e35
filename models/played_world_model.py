"""The cached world model as components: one denoising pass, and a whole frame, in the middle of a game.

A player's cache is full nearly always, so both start from a window of seeded frames, put back by `reset()`.
"""

from typing import Any

import torch
from torch import Tensor, nn

from models.cached_world_model import CachedWorldModel, FrameOptions
from models.params import require
from models.world_model import WorldModelParams, example_inputs

CONTEXT_SEED = 60


class Context(nn.Module):
    """A window of random frames; its numbers are exact in bfloat16, so that every dtype starts from the same ones."""

    x: Tensor
    audio: Tensor
    mouse: Tensor
    btn: Tensor

    def __init__(self, params: WorldModelParams, batch: int, frames: int) -> None:
        super().__init__()
        generator = torch.Generator("cpu").manual_seed(CONTEXT_SEED)
        drawn = example_inputs(
            params, batch=batch, frames=frames, generator=generator, device="cpu", dtype=torch.bfloat16
        )
        for name in ("x", "audio", "mouse", "btn"):
            self.register_buffer(name, drawn[name].float().to(torch.get_default_device()), persistent=False)


class PlayedWorldModel(CachedWorldModel):
    """A cached world model that `reset()` puts behind `context_frames` frames."""

    def __init__(self, params: WorldModelParams, options: FrameOptions, context_frames: int) -> None:
        super().__init__(params, options)
        require(context_frames >= 0, f"context_frames={context_frames}: 0 or more")
        self.context = Context(params, options.batch, context_frames) if context_frames else None

    @torch.no_grad()
    def reset(self) -> None:
        """Go back to the frame after the context, in place."""
        super().reset()
        if self.context is not None:
            self.prefill(self.context.x, self.context.audio, self.context.mouse, self.context.btn)


class WorldModelStep(PlayedWorldModel):
    """One denoising pass of one new frame; the cache is read and stays."""

    def forward(self, x: Tensor, audio: Tensor, t: Tensor, mouse: Tensor, btn: Tensor) -> tuple[Tensor, Tensor]:
        """Return the velocity, see `CachedWorldModel.denoise`."""
        return self.denoise(x, audio, t, mouse, btn)


class WorldModelFrame(PlayedWorldModel):
    """All passes of one new frame; every call makes the next one."""

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x: Tensor, audio: Tensor, mouse: Tensor, btn: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the frame, see `CachedWorldModel.frame`."""
        return self.frame(x, audio, mouse, btn)


def build_world_model_step(
    *, context_frames: int, t_commit: float = 0.0, guidance: float | None = None, batch: int = 1, **config: Any
) -> WorldModelStep:
    """Build a `WorldModelStep` from the keys of a published config and those of `FrameOptions`."""
    kernel = config.pop("kernel", "auto")
    options = FrameOptions(t_commit=t_commit, guidance=guidance, batch=batch, kernel=kernel)
    return WorldModelStep(WorldModelParams.from_config(config), options, context_frames)


def build_world_model_frame(
    *,
    context_frames: int,
    steps: int = 1,
    t_commit: float = 0.0,
    commit: str = "fused",
    guidance: float | None = None,
    batch: int = 1,
    **config: Any,
) -> WorldModelFrame:
    """Build a `WorldModelFrame` from the keys of a published config and those of `FrameOptions`."""
    kernel = config.pop("kernel", "auto")
    options = FrameOptions(steps, t_commit, commit, guidance, batch, kernel)
    return WorldModelFrame(WorldModelParams.from_config(config), options, context_frames)


def world_model_step_inputs(
    module: PlayedWorldModel, *, generator: torch.Generator, device: torch.device | str, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Return seeded inputs of `WorldModelStep.forward`; `t` stays fp32."""
    batch = module.options.batch
    drawn = example_inputs(module.params, batch=batch, frames=1, generator=generator, device=device, dtype=dtype)
    return {name: tensor.squeeze(1) for name, tensor in drawn.items()}


def world_model_frame_inputs(
    module: PlayedWorldModel, *, generator: torch.Generator, device: torch.device | str, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Return seeded inputs of `WorldModelFrame.forward`: noise and controls."""
    drawn = world_model_step_inputs(module, generator=generator, device=device, dtype=dtype)
    del drawn["t"]
    return drawn
