"""Stages of the ready pipelines around networks of diffusers and transformers (extra [hub]).

Camera pictures to noisy latents and back, Euler steps of a video model, speech decoded frame by frame. Factories are
like those of `models.hub`: random weights by config, or config and weights of a folder made by save_pretrained.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from models.diffusion import WanStep, WanStreamDecoder, build_wan_step
from models.hub import LibraryModel, build_diffusers, build_mimi_decoder
from models.params import require


def to_uint8(pixels: Tensor) -> Tensor:
    """Return pixels as uint8, channels last; -1 … 1 becomes 0 … 255. Dimension 1 holds the channels."""
    wide = pixels.movedim(1, -1).float()  # fp32: bf16 cannot represent all of 0 … 255
    return wide.clamp(-1, 1).add(1).mul(127.5).round().to(torch.uint8)


class NoiseLevel(nn.Module):
    """A step of the scaled-linear schedule of Stable Diffusion: latents · `signal` + noise · `noise`."""

    def __init__(self, timestep: int) -> None:
        super().__init__()
        require(0 <= timestep < 1000, f"timestep={timestep}: must be 0 to 999")
        betas = torch.linspace(0.00085**0.5, 0.012**0.5, 1000, dtype=torch.float64, device="cpu").square()
        kept = float((1 - betas).cumprod(0)[timestep])
        self.signal, self.noise = kept**0.5, (1 - kept) ** 0.5


class CameraEncoder(LibraryModel):
    """Encodes camera pictures with an AutoencoderTiny, and adds the noise of a denoising step to the latents."""

    def __init__(self, model: Any, timestep: int) -> None:
        super().__init__(model.encoder)
        self.level = NoiseLevel(timestep)

    def forward(self, picture: Tensor, noise: Tensor) -> Tensor:
        """Encode uint8 pictures [b, h, w, 3]; return latents [b, 4, h/8, w/8] with `noise` of that shape added."""
        pixels = picture.permute(0, 3, 1, 2).to(noise.dtype) / 127.5 - 1
        return self.model(pixels) * self.level.signal + noise * self.level.noise


class TurboDecoder(LibraryModel):
    """The end of a denoising step and the decoder of an AutoencoderTiny, to uint8 pictures."""

    def __init__(self, model: Any, timestep: int) -> None:
        super().__init__(model.decoder)
        self.level = NoiseLevel(timestep)

    def forward(self, noisy: Tensor, predicted: Tensor) -> Tensor:
        """Remove the `predicted` noise from the `noisy` latents [b, 4, h, w]; return pictures [b, 8h, 8w, 3]."""
        return to_uint8(self.model((noisy - predicted * self.level.noise) / self.level.signal))


def build_camera_encoder(folder: str | None = None, *, timestep: int, **config: Any) -> CameraEncoder:
    """Build the encoder of diffusers' AutoencoderTiny; `timestep` (0 to 999) sets the noise of its latents."""
    return CameraEncoder(build_diffusers("AutoencoderTiny", folder, config), timestep)


def build_turbo_decoder(folder: str | None = None, *, timestep: int, **config: Any) -> TurboDecoder:
    """Build the decoder of diffusers' AutoencoderTiny after a denoising step from `timestep` (0 to 999) to the end."""
    return TurboDecoder(build_diffusers("AutoencoderTiny", folder, config), timestep)


class WanEulerStep(WanStep):
    """A denoising step of a WanTransformer3DModel that returns the next latents."""

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, hidden_states: Tensor, timestep: Tensor, step: Tensor, encoder_hidden_states: Tensor
    ) -> Tensor:
        """Return the latents after an Euler step down by `step` [b], a share of the noise; see `WanStep`."""
        velocity = super().forward(hidden_states, timestep, encoder_hidden_states)
        return hidden_states - step.view(-1, 1, 1, 1, 1) * velocity


class WanPictures(WanStreamDecoder):
    """Latents of a stream to uint8 pictures."""

    def forward(self, z: Tensor) -> Tensor:
        """Decode the next latents [b, z_dim, n, h, w] to pictures [b, 4n, 8h, 8w, 3]; see `WanStreamDecoder`."""
        return to_uint8(super().forward(z))


def build_wan_euler_step(folder: str | None = None, **config: Any) -> WanEulerStep:
    """Build diffusers' WanTransformer3DModel as a denoising step that returns the next latents."""
    built: Any = build_wan_step(folder, **config)
    return WanEulerStep(built.model)


def build_wan_pictures(
    folder: str | None = None, *, batch: int, latent_height: int, latent_width: int, **config: Any
) -> WanPictures:
    """Build the decoder of diffusers' AutoencoderKLWan for a stream of latents of one size, to uint8 pictures."""
    model = build_diffusers("AutoencoderKLWan", folder, config)
    return WanPictures(model, batch, latent_height, latent_width)


class MimiFrames(LibraryModel):
    """The newest frame's sound of a MimiModel, decoded from a window of the newest codes.

    The library's decoder has no state of its own that a CUDA graph could keep, so each call decodes the whole window.
    """

    codes: Tensor
    first_codes: Tensor

    def __init__(self, model: Any, window: int, codebooks: int) -> None:
        super().__init__(model)
        require(window >= 1 and codebooks >= 1, f"window={window}, codebooks={codebooks}: must be at least 1")
        generator = torch.Generator("cpu").manual_seed(window)
        size = model.config.codebook_size
        codes = torch.randint(0, size, (1, codebooks, window), generator=generator, device="cpu")
        codes = codes.to(torch.get_default_device())
        self.register_buffer("codes", codes.clone(), persistent=False)  # oldest first
        self.register_buffer("first_codes", codes, persistent=False)
        self.samples = round(model.config.sampling_rate / model.config.frame_rate)

    def state_tensors(self) -> tuple[Tensor, ...]:
        """Return the tensors that a call changes in place: the window of codes."""
        return (self.codes,)

    @torch.no_grad()
    def reset(self) -> None:
        """Restore the initial window, which holds random codes, in place."""
        self.codes.copy_(self.first_codes)

    def forward(self, codes: Tensor) -> Tensor:
        """Append the codes of a frame, int64 [1, codebooks, 1]; return its sound, fp32 [1, 1, samples]."""
        window = torch.cat((self.codes[..., 1:], codes), dim=-1)
        self.codes.copy_(window)
        model: Any = self.model
        return model.decode(window, return_dict=False)[0][..., -self.samples :].float()


def build_mimi_frames(folder: str | None = None, *, window: int, codebooks: int, **config: Any) -> MimiFrames:
    """Build transformers' MimiModel to decode frame after frame from the newest `window` frames of codes."""
    return MimiFrames(build_mimi_decoder(folder, **config).model, window, codebooks)
