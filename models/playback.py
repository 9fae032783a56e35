"""The networks as a real-time loop uses them: one frame a call, with the state of a game in progress.

World model: one denoising pass, or a whole frame, with a full cache. Decoders: latents of one frame to uint8 pixels and
to its samples of sound. Each `reset()` restores the state before the first call, in place.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from models.audio_vae import AudioDecoder, AudioVAEParams
from models.cached_world_model import CachedWorldModel, FrameOptions
from models.image_vae import ImageDecoder, ImageVAEParams
from models.initialisation import draw_normal
from models.params import require
from models.world_model import WorldModelParams, world_model_inputs

SOUND_CONTEXT_SEED, WORLD_CONTEXT_SEED = 120, 60  # of the random frames in the initial state


class PictureStage(ImageDecoder):
    """Latents to uint8 pixels; the state dict is that of `ImageDecoder`."""

    def forward(self, z: Tensor) -> Tensor:
        """Decode latents [b, latent_channels, s, s] to uint8 pictures [b, H, W, channels]; -1 … 1 becomes 0 … 255."""
        pixels = super().forward(z).permute(0, 2, 3, 1).float()  # fp32: bf16 cannot represent all of 0 … 255
        return pixels.clamp(-1, 1).add(1).mul(127.5).round().to(torch.uint8)


class SoundStage(AudioDecoder):
    """The newest frame's sound, decoded from a window of latents; the state dict is that of `AudioDecoder`.

    The decoder's norm runs over time, so every latent changes every sample. `decoded=None` decodes all `window`
    latents, which is exact. A number decodes only that many of the newest: faster, with other samples.
    """

    latents: Tensor
    context: Tensor

    def __init__(self, params: AudioVAEParams, *, window: int, decoded: int | None = None) -> None:
        super().__init__(params)
        require(window >= 1, f"window={window}: must be at least 1 latent")
        require(decoded is None or 1 <= decoded <= window, f"decoded={decoded}: must be 1 to window={window}, or null")
        self.decoded = window if decoded is None else decoded
        generator = torch.Generator("cpu").manual_seed(SOUND_CONTEXT_SEED)
        context = torch.randn(1, params.latent_channels, window, generator=generator, device="cpu")
        context = context.bfloat16().float().to(torch.get_default_device())  # the same numbers in every dtype
        self.register_buffer("context", context, persistent=False)
        self.register_buffer("latents", context.clone(), persistent=False)  # oldest first

    def state_tensors(self) -> tuple[Tensor, ...]:
        """Return the tensors that a call changes in place: the window of latents."""
        return (self.latents,)

    @torch.no_grad()
    def reset(self) -> None:
        """Restore the initial window, which holds random latents, in place."""
        self.latents.copy_(self.context)

    @torch.no_grad()
    def forward(self, latent: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Append the newest latent [1, latent_channels]; return its sound, fp32 [1, channels, samples_per_latent]."""
        latents = torch.cat((self.latents[..., 1:], latent.unsqueeze(-1)), dim=-1)
        self.latents.copy_(latents)
        return self.newest(latents[..., -self.decoded :])

    def newest(self, latents: Tensor) -> Tensor:
        """Decode latents [b, latent_channels, l]; return the last one's sound, fp32 [b, channels, samples]."""
        return super().forward(latents)[..., -self.params.samples_per_latent :].float()


def build_picture_stage(**config: Any) -> PictureStage:
    """Build a `PictureStage` from the keys of a published config."""
    return PictureStage(ImageVAEParams.from_config(config))


def build_sound_stage(*, window: int, decoded: int | None = None, **config: Any) -> SoundStage:
    """Build a `SoundStage` from the keys of a published config, `window` and `decoded` (in latents)."""
    return SoundStage(AudioVAEParams.from_config(config), window=window, decoded=decoded)


def sound_stage_inputs(
    module: SoundStage, *, generator: torch.Generator, device: torch.device | str, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Return a random latent [1, latent_channels] for `SoundStage.forward`."""
    return {"latent": draw_normal(1, module.params.latent_channels, generator=generator, device=device, dtype=dtype)}


class PrefilledWorldModel(CachedWorldModel):
    """A cached world model whose `reset()` fills the cache with `context_frames` random frames.

    Their numbers are exact in bfloat16, so that every dtype starts from the same state.
    """

    def __init__(self, params: WorldModelParams, options: FrameOptions, context_frames: int) -> None:
        super().__init__(params, options)
        require(context_frames >= 0, f"context_frames={context_frames}: must be 0 or more")
        self.context_frames = context_frames
        generator = torch.Generator("cpu").manual_seed(WORLD_CONTEXT_SEED)
        inputs = world_model_inputs(
            self, batch=options.batch, frames=context_frames, generator=generator, device="cpu", dtype=torch.bfloat16
        )
        for name in ("x", "audio", "mouse", "btn"):
            tensor = inputs[name].float().to(torch.get_default_device())
            self.register_buffer(f"context_{name}", tensor, persistent=False)

    @torch.no_grad()
    def reset(self) -> None:
        """Restore the state right after the context frames, in place.

        In half precision, the first reset also calls `quantise`: the weights are loaded and cast by then. With 8-bit
        weights, published weights cannot be loaded after it.
        """
        self.quantise()
        super().reset()
        if self.context_frames:
            self.prefill(*(self.get_buffer(f"context_{name}") for name in ("x", "audio", "mouse", "btn")))


class WorldModelStep(PrefilledWorldModel):
    """One denoising pass of one new frame, which writes into no slot of the cache but that frame's own."""

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x: Tensor, audio: Tensor, t: Tensor, mouse: Tensor, btn: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the velocity; see `CachedWorldModel.denoise`."""
        return self.denoise(x, audio, t, mouse, btn)


class WorldModelFrame(PrefilledWorldModel):
    """All passes of one new frame; each call generates the next frame, see `CachedWorldModel.frame`."""


def _sizes_and_options(config: Mapping[str, Any]) -> tuple[WorldModelParams, FrameOptions]:
    return (
        WorldModelParams.from_config(config, FrameOptions),
        FrameOptions.from_config(config, WorldModelParams),
    )


def build_world_model_step(*, context_frames: int, **config: Any) -> WorldModelStep:
    """Build a `WorldModelStep` from the keys of a published config and those of `FrameOptions`."""
    return WorldModelStep(*_sizes_and_options(config), context_frames)


def build_world_model_frame(*, context_frames: int, **config: Any) -> WorldModelFrame:
    """Build a `WorldModelFrame` from the keys of a published config and those of `FrameOptions`."""
    return WorldModelFrame(*_sizes_and_options(config), context_frames)


def world_model_step_inputs(
    module: PrefilledWorldModel, *, generator: torch.Generator, device: torch.device | str, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Return random inputs of `WorldModelStep.forward` by argument name; `t` is fp32."""
    inputs = world_model_inputs(
        module, batch=module.options.batch, frames=1, generator=generator, device=device, dtype=dtype
    )
    return {name: tensor.squeeze(1) for name, tensor in inputs.items()}


def world_model_frame_inputs(
    module: PrefilledWorldModel, *, generator: torch.Generator, device: torch.device | str, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Return random inputs of `WorldModelFrame.forward` by argument name: noise and controls."""
    inputs = world_model_step_inputs(module, generator=generator, device=device, dtype=dtype)
    del inputs["t"]
    return inputs
