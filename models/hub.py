"""Third-party decoders as components: diffusers' AutoencoderTiny and AutoencoderOobleck, transformers' MimiModel.

Weights are random, or come from a local folder in the library's own format; nothing is ever fetched. A module whose
factory loads its weights says so in its attribute `weights_source`.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from models.pretrained import existing, make_model


class Decoder(nn.Module):
    """Calls one method of a model and returns its tensor, so that only the decoding half is under test."""

    def __init__(self, part: nn.Module, weights_source: str | None) -> None:
        super().__init__()
        self.part = part
        self.weights_source = weights_source

    def forward(self, z: Tensor) -> Tensor:
        """Decode latents `z` of the part's own shape."""
        return self.part(z)


class MimiDecoder(nn.Module):
    """Audio codes to a waveform through a MimiModel."""

    def __init__(self, model: nn.Module, weights_source: str | None) -> None:
        super().__init__()
        self.model = model
        self.weights_source = weights_source

    def forward(self, codes: Tensor) -> Tensor:
        """Decode int64 codes [b, quantizers, frames] to a waveform [b, channels, samples]."""
        return self.model.decode(codes, return_dict=False)[0]  # pyright: ignore[reportCallIssue]


def build_autoencoder_tiny(folder: str | None = None, **config: Any) -> nn.Module:
    """Build the decoder of diffusers' AutoencoderTiny: latents [b, 4, h, w] to pictures [b, 3, 8h, 8w].

    Source: https://huggingface.co/docs/diffusers/api/models/autoencoder_tiny

    Raises:
        ModuleNotFoundError: diffusers is not installed.

    """
    from diffusers import AutoencoderTiny  # pyright: ignore[reportPrivateImportUsage]

    return Decoder(_made(AutoencoderTiny, folder, config).decoder, folder)


def build_autoencoder_oobleck(folder: str | None = None, **config: Any) -> nn.Module:
    """Build the decoder of diffusers' AutoencoderOobleck: latents [b, c, n] to stereo sound [b, 2, 2048n].

    Source: https://huggingface.co/docs/diffusers/api/models/autoencoder_oobleck

    Raises:
        ModuleNotFoundError: diffusers is not installed.

    """
    from diffusers import AutoencoderOobleck  # pyright: ignore[reportPrivateImportUsage]

    return Decoder(_made(AutoencoderOobleck, folder, config).decoder, folder)


def build_mimi_decoder(folder: str | None = None, **config: Any) -> nn.Module:
    """Build transformers' MimiModel for decoding: codes at 12.5 Hz to sound at 24 kHz.

    Source: https://huggingface.co/docs/transformers/model_doc/mimi

    Raises:
        ModuleNotFoundError: transformers is not installed.

    """
    from transformers import MimiModel

    if folder is not None:
        return MimiDecoder(make_model(MimiModel, folder, config), folder)
    model = make_model(MimiModel, None, config)
    for name, buffer in model.named_buffers():
        if name.endswith("embed_sum"):  # codebooks start at zero, and every code would sound the same
            nn.init.normal_(buffer)
    return MimiDecoder(model, None)


def _made(kind: Any, folder: str | None, config: dict[str, Any]) -> Any:
    if folder is None:
        return kind(**config)
    return kind.from_pretrained(existing(folder), local_files_only=True)
