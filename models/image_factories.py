"""Plain functions that a YAML can name: they build the image VAE's halves and make inputs for them."""

from typing import Any

import torch
from torch import Tensor

from models.image_vae import LANDSCAPE, SQUARE, ImageDecoder, ImageEncoder, ImageVAE, ImageVAEParams


def build_image_vae(**config: Any) -> ImageVAE:
    """Build encoder and decoder from the keys of a published config."""
    return ImageVAE(ImageVAEParams.from_config(config))


def build_image_decoder(**config: Any) -> ImageDecoder:
    """Build the decoder alone from the keys of a published config."""
    return ImageDecoder(ImageVAEParams.from_config(config))


def build_image_encoder(**config: Any) -> ImageEncoder:
    """Build the encoder alone from the keys of a published config."""
    return ImageEncoder(ImageVAEParams.from_config(config))


def picture_size(params: ImageVAEParams) -> tuple[int, int]:
    """Return the height and width of a picture that the encoder turns into a latent of latent_size × latent_size.

    A landscape picture is stretched to a square first, and not every square is the stretch of one; then it is the next
    larger square (and latent) that is.
    """
    step = 2 ** (len(params.encoder_blocks_per_stage) - 1)
    square = params.latent_size * step
    if not params.landscape:
        return square, square
    while round(round(square * LANDSCAPE[0] / SQUARE) * SQUARE / LANDSCAPE[0]) != square:
        square += step
    return round(square * LANDSCAPE[0] / SQUARE), round(square * LANDSCAPE[1] / SQUARE)


def image_decoder_inputs(
    module: ImageDecoder | ImageVAE,
    *,
    batch: int,
    frames: int,
    generator: torch.Generator,
    device: torch.device | str,
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    """Return seeded latents for `ImageDecoder.forward`, batch·frames of them."""
    params = module.params
    shape = (batch * frames, params.latent_channels, params.latent_size, params.latent_size)
    return {"z": torch.randn(shape, generator=generator, device=generator.device).to(device, dtype)}


def image_encoder_inputs(
    module: ImageEncoder | ImageVAE,
    *,
    batch: int,
    frames: int,
    generator: torch.Generator,
    device: torch.device | str,
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    """Return seeded pictures in -1 … 1 for `ImageEncoder.forward`, batch·frames of them."""
    shape = (batch * frames, module.params.channels, *picture_size(module.params))
    return {"x": (2 * torch.rand(shape, generator=generator, device=generator.device) - 1).to(device, dtype)}
