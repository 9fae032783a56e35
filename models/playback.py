"""Decoders as a player uses them: latents of one frame in, what a screen and a sound card take out."""

from typing import Any

import torch
from torch import Tensor, nn

from models.audio_vae import AudioDecoder, AudioVAEParams
from models.cached_world_model import CachedWorldModel, FrameOptions
from models.image_vae import ImageDecoder, ImageVAEParams
from models.params import require
from models.world_model import WorldModelParams, example_inputs

CONTEXT_SEED = 120


class PictureStage(ImageDecoder):
    """Latent to pixels; parameters and their names are those of `ImageDecoder`."""

    def forward(self, z: Tensor) -> Tensor:
        """Decode latents [b, latent_channels, s, s] to uint8 pictures [b, H, W, channels], -1 … 1 becoming 0 … 255."""
        pixels = super().forward(z).permute(0, 2, 3, 1).float()  # fp32: bf16 has not the digits of 0 … 255
        return pixels.clamp(-1, 1).add(1).mul(127.5).round().to(torch.uint8)


class SoundStage(AudioDecoder):
    """The newest frame's sound out of a window of latents; parameters and their names are those of `AudioDecoder`.

    The decoder's norm runs over time, so every latent changes every sample: `decoded=None` decodes the whole window of
    `window` latents, exactly; a number decodes that many of the newest, which is cheaper and not the same sound.
    """

    latents: Tensor
    context: Tensor

    def __init__(self, params: AudioVAEParams, *, window: int, decoded: int | None = None) -> None:
        super().__init__(params)
        require(window >= 1, f"window={window}: at least 1 latent")
        require(decoded is None or 1 <= decoded <= window, f"decoded={decoded}: from 1 to window={window}, or null")
        self.decoded = window if decoded is None else decoded
        generator = torch.Generator("cpu").manual_seed(CONTEXT_SEED)
        context = torch.randn(1, params.latent_channels, window, generator=generator, device="cpu")
        context = context.bfloat16().float().to(torch.get_default_device())  # exact in every dtype
        self.register_buffer("context", context, persistent=False)
        self.register_buffer("latents", context.clone(), persistent=False)  # the last ones, oldest first

    def state_tensors(self) -> tuple[Tensor, ...]:
        """Return what a call changes: the window."""
        return (self.latents,)

    @torch.no_grad()
    def reset(self) -> None:
        """Start again after a window of random latents, in place."""
        self.latents.copy_(self.context)

    @torch.no_grad()
    def forward(self, latent: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take the newest latent [1, latent_channels]; return its sound, fp32 [1, channels, samples_per_latent]."""
        latents = torch.cat((self.latents[..., 1:], latent.unsqueeze(-1)), dim=-1)
        self.latents.copy_(latents)
        return self.newest(latents[..., -self.decoded :])

    def newest(self, latents: Tensor) -> Tensor:
        """Decode latents [b, latent_channels, l] and return the last one's sound, fp32."""
        return super().forward(latents)[..., -self.params.samples_per_latent :].float()


def build_picture_stage(**config: Any) -> PictureStage:
    """Build a `PictureStage` from the keys of a published config."""
    return PictureStage(ImageVAEParams.from_config(config))


def build_sound_stage(*, window: int, decoded: int | None = None, **config: Any) -> SoundStage:
    """Build a `SoundStage` from the keys of a published config and its own."""
    return SoundStage(AudioVAEParams.from_config(config), window=window, decoded=decoded)


def sound_stage_inputs(
    module: SoundStage, *, generator: torch.Generator, device: torch.device | str, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Return a seeded latent for `SoundStage.forward`."""
    shape = (1, module.params.latent_channels)
    return {"latent": torch.randn(shape, generator=generator, device=generator.device).to(device, dtype)}


class WholeFrame(nn.Module):
    """World model, picture and sound as one network, so that one compilation or capture can hold a whole frame."""

    def __init__(self, world: nn.Module, picture: nn.Module, sound: nn.Module) -> None:
        super().__init__()
        self.world, self.picture, self.sound = world, picture, sound

    def state_tensors(self) -> tuple[Tensor, ...]:
        """Return what a call changes in any of them."""
        parts: tuple[Any, ...] = (self.world, self.picture, self.sound)
        return tuple(tensor for part in parts if hasattr(part, "state_tensors") for tensor in part.state_tensors())

    def reset(self) -> None:
        """Reset those that can be reset."""
        parts: tuple[Any, ...] = (self.world, self.picture, self.sound)
        for part in parts:
            if hasattr(part, "reset"):
                part.reset()

    def forward(self, x: Tensor, audio: Tensor, mouse: Tensor, btn: Tensor) -> tuple[Tensor, Tensor]:
        """Make the next frame from noise and controls; return its picture and its sound.

        Uncompiled and on a GPU, sound is decoded on a stream of its own beside the picture.
        """
        video, latent = self.world(x, audio, mouse, btn)
        if not video.is_cuda or torch.compiler.is_compiling():
            return self.picture(video), self.sound(latent)
        here, beside = torch.cuda.current_stream(), _beside(video.device)
        beside.wait_stream(here)
        with torch.cuda.stream(beside):
            sound = self.sound(latent)
        picture = self.picture(video)
        here.wait_stream(beside)
        latent.record_stream(beside)
        sound.record_stream(here)
        return picture, sound


_streams: dict[torch.device, torch.cuda.Stream] = {}


def _beside(device: torch.device) -> torch.cuda.Stream:
    if device not in _streams:
        _streams[device] = torch.cuda.Stream(device)
    return _streams[device]


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


class PrefilledWorldModel(CachedWorldModel):
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


class WorldModelStep(PrefilledWorldModel):
    """One denoising pass of one new frame; the cache is read and stays."""

    def forward(self, x: Tensor, audio: Tensor, t: Tensor, mouse: Tensor, btn: Tensor) -> tuple[Tensor, Tensor]:
        """Return the velocity, see `CachedWorldModel.denoise`."""
        return self.denoise(x, audio, t, mouse, btn)


class WorldModelFrame(PrefilledWorldModel):
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
    module: PrefilledWorldModel, *, generator: torch.Generator, device: torch.device | str, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Return seeded inputs of `WorldModelStep.forward`; `t` stays fp32."""
    batch = module.options.batch
    drawn = example_inputs(module.params, batch=batch, frames=1, generator=generator, device=device, dtype=dtype)
    return {name: tensor.squeeze(1) for name, tensor in drawn.items()}


def world_model_frame_inputs(
    module: PrefilledWorldModel, *, generator: torch.Generator, device: torch.device | str, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Return seeded inputs of `WorldModelFrame.forward`: noise and controls."""
    drawn = world_model_step_inputs(module, generator=generator, device=device, dtype=dtype)
    del drawn["t"]
    return drawn
