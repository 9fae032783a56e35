"""Plain functions that a YAML can name: they build the audio VAE's halves and make inputs for them."""

from typing import Any

import torch
from torch import Tensor

from models.audio_vae import AudioDecoder, AudioEncoder, AudioVAE, AudioVAEParams


def build_audio_vae(**config: Any) -> AudioVAE:
    """Build encoder and decoder from the keys of a published config."""
    return AudioVAE(AudioVAEParams.from_config(config))


def build_audio_decoder(**config: Any) -> AudioDecoder:
    """Build the decoder alone from the keys of a published config."""
    return AudioDecoder(AudioVAEParams.from_config(config))


def build_audio_encoder(**config: Any) -> AudioEncoder:
    """Build the encoder alone from the keys of a published config."""
    return AudioEncoder(AudioVAEParams.from_config(config))


def audio_decoder_inputs(
    module: AudioDecoder | AudioVAE,
    *,
    batch: int,
    frames: int,
    generator: torch.Generator,
    device: torch.device | str,
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    """Return seeded latents for `AudioDecoder.forward`, one a frame."""
    shape = (batch, module.params.latent_channels, frames)
    return {"z": torch.randn(shape, generator=generator, device=generator.device).to(device, dtype)}


def audio_encoder_inputs(
    module: AudioEncoder | AudioVAE,
    *,
    batch: int,
    frames: int,
    generator: torch.Generator,
    device: torch.device | str,
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    """Return seeded sound in -1 … 1 for `AudioEncoder.forward`, as long as `frames` latents."""
    shape = (batch, module.params.channels, frames * module.params.samples_per_latent)
    return {"x": (2 * torch.rand(shape, generator=generator, device=generator.device) - 1).to(device, dtype)}
