"""Diffusion networks of the library diffusers as components (extra [hub]): SD-Turbo's and Wan 2.1's.

Factories are like those of `models.hub`: random weights by config, or config and weights of a folder made by
save_pretrained. The published configs are in conf/component. What a wrapper changes is said in its docstring.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from models.hub import LibraryModel, StatefulModel, build_diffusers
from models.params import require


class UNetStep(LibraryModel):
    """A denoising step of a UNet2DConditionModel."""

    def forward(self, sample: Tensor, timestep: Tensor, encoder_hidden_states: Tensor) -> Tensor:
        """Predict for latents [b, 4, h, w], timesteps [b] (0 to 1000) and text embeddings [b, tokens, width]."""
        return self.model(sample, timestep, encoder_hidden_states, return_dict=False)[0]


class ImageLatentDecoder(LibraryModel):
    """The decoding half of an AutoencoderKL: its encoder is removed, so that it takes no memory and is not counted."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        model.encoder = model.quant_conv = None

    def forward(self, z: Tensor) -> Tensor:
        """Decode latents [b, 4, h, w] to images [b, 3, 8h, 8w], roughly -1 to 1."""
        model: Any = self.model
        return model.decode(z, return_dict=False)[0]


class WanStep(LibraryModel):
    """A denoising step of a WanTransformer3DModel."""

    def forward(self, hidden_states: Tensor, timestep: Tensor, encoder_hidden_states: Tensor) -> Tensor:
        """Predict for latents [b, 16, frames, h, w], timesteps [b] (0 to 1000) and text [b, tokens, text_dim]."""
        return self.model(hidden_states, timestep, encoder_hidden_states, return_dict=False)[0]


class WanStreamDecoder(StatefulModel):
    """The decoding half of an AutoencoderKLWan, inside a stream: n latent frames make 4n pictures.

    The library decodes a whole video: it starts from empty features, and the first latent frame makes one picture. It
    keeps the features of its causal convolutions in a Python list, as None and strings at first. Here the features that
    the last call left are buffers (`features_0`, ...), read by the first frame of a call and written by its last one,
    so that every call does the same work. The modules are the library's own; the encoder is removed.
    """

    def __init__(self, model: Any, batch: int, height: int, width: int) -> None:
        require(model.config.patch_size is None, "patch_size must be null: Wan 2.2 is not supported")
        super().__init__(model)
        model.encoder = model.quant_conv = None
        self.slots = feature_shapes(model, batch, height, width)
        for number, shape in self.slots.items():
            self.add_state(f"features_{number}", shape)
        self.reset()

    def forward(self, z: Tensor) -> Tensor:
        """Decode the next latents [b, z_dim, n, h, w] of the stream to pictures [b, 3, 4n, 8h, 8w], -1 to 1."""
        model: Any = self.model
        state = {number: getattr(self, f"features_{number}") for number in self.slots}
        features: list[Any] = [state.get(number) for number in range(max(self.slots) + 1)]
        pictures = []
        for latent in model.post_quant_conv(z).split(1, dim=2):
            pictures.append(model.decoder(latent, feat_cache=features, feat_idx=[0]))
        for number, buffer in state.items():
            buffer.copy_(features[number])
        return torch.cat(pictures, dim=2).clamp(-1, 1)


def feature_shapes(model: Any, batch: int, height: int, width: int) -> dict[int, tuple[int, ...]]:
    """Return the shapes of the features that an AutoencoderKLWan's decoder keeps in mid-stream, by their place.

    `height` and `width` are those of the latents. The decoder runs on the meta device, where nothing is computed.
    """
    with torch.device("meta"), torch.no_grad():
        twin: Any = type(model).from_config(model.config)
        twin.clear_cache()
        latent = torch.empty(batch, model.config.z_dim, 1, height, width)
        for number in range(3):  # the third frame is the first that finds features everywhere
            twin.decoder(latent, feat_cache=twin._feat_map, feat_idx=[0], first_chunk=number == 0)
    return {number: tuple(x.shape) for number, x in enumerate(twin._feat_map) if isinstance(x, Tensor)}


def build_unet(folder: str | None = None, **config: Any) -> nn.Module:
    """Build diffusers' UNet2DConditionModel as a denoising step.

    Arguments and errors of this and the following factories are those of `models.hub.build_diffusers`.
    """
    return UNetStep(build_diffusers("UNet2DConditionModel", folder, config))


def build_image_latent_decoder(folder: str | None = None, **config: Any) -> nn.Module:
    """Build the decoder of diffusers' AutoencoderKL."""
    return ImageLatentDecoder(build_diffusers("AutoencoderKL", folder, config))


def build_wan_step(folder: str | None = None, **config: Any) -> nn.Module:
    """Build diffusers' WanTransformer3DModel as a denoising step."""
    return WanStep(build_diffusers("WanTransformer3DModel", folder, config))


def build_wan_stream_decoder(
    folder: str | None = None, *, batch: int, latent_height: int, latent_width: int, **config: Any
) -> nn.Module:
    """Build the decoder of diffusers' AutoencoderKLWan for a stream of latents of one size."""
    model = build_diffusers("AutoencoderKLWan", folder, config)
    return WanStreamDecoder(model, batch, latent_height, latent_width)
