"""Third-party networks as components, from the libraries diffusers and transformers (extra [hub]).

Decoders (AutoencoderTiny, AutoencoderOobleck, MimiModel) and ResNet-50 under its training loss. Weights are random or
come from a local folder made by save_pretrained; nothing is downloaded. A module whose factory loaded its weights names
the folder in its attribute `weights_source`. A factory raises ModuleNotFoundError where its library is not installed.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F


def make_model(kind: Any, folder: str | None, config: Mapping[str, Any], **options: Any) -> nn.Module:
    """Return a model of a transformers class with random weights, or with those of `folder` in fp32 or narrower.

    The library itself accepts a misspelt config key, and draws random weights where a folder lacks some; here both are
    errors, because the model measured would not be the one named.

    Args:
        kind: a PreTrainedModel class.
        folder: made by save_pretrained; its own config is used and `config` is ignored. None: random weights.
        config: keys of the model's config.
        options: config keys used in both cases, for example `attn_implementation`.

    Raises:
        FileNotFoundError: the folder does not exist.
        ValueError: the model has no such config key, or the folder lacks some of its weights.

    """
    if folder is None:
        config, known = {**config, **options}, kind.config_class()
        for key in config:
            if not hasattr(known, key) and key != "attn_implementation":
                near = difflib.get_close_matches(key, vars(known), n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise ValueError(f"{kind.config_class.__name__} has no key {key!r}{hint}")
        return kind(kind.config_class(**config))
    model, loading = kind.from_pretrained(
        require_folder(folder), local_files_only=True, output_loading_info=True, **options
    )
    if missing := sorted(loading["missing_keys"]):
        raise ValueError(
            f"folder {folder!r} is incomplete for {kind.__name__}: {len(missing)} weights are missing, for "
            f"example {missing[0]}. Give a folder saved from that class"
        )
    return model


def require_folder(folder: str) -> str:
    """Return `folder`; raise FileNotFoundError if it does not exist."""
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"folder {folder!r} does not exist. Give one saved with save_pretrained")
    return folder


class Decoder(nn.Module):
    """The decoding half of an autoencoder."""

    def __init__(self, part: nn.Module, weights_source: str | None) -> None:
        super().__init__()
        self.part = part
        self.weights_source = weights_source

    def forward(self, z: Tensor) -> Tensor:
        """Decode latents `z`, shaped as the decoder requires."""
        return self.part(z)


class LibraryModel(nn.Module):
    """Base of the components around a library's `model`; `weights_source` is the folder of its weights, if any."""

    def __init__(self, model: nn.Module, weights_source: str | None) -> None:
        super().__init__()
        self.model = model
        self.weights_source = weights_source


class MimiDecoder(LibraryModel):
    """The decoder of a MimiModel: audio codes to a waveform."""

    def forward(self, codes: Tensor) -> Tensor:
        """Decode int64 codes [b, quantizers, frames] to a waveform [b, channels, samples]."""
        return self.model.decode(codes, return_dict=False)[0]  # pyright: ignore[reportCallIssue]


def build_autoencoder_tiny(folder: str | None = None, **config: Any) -> nn.Module:
    """Build the decoder of diffusers' AutoencoderTiny: latents [b, 4, h, w] to images [b, 3, 8h, 8w].

    Source: https://huggingface.co/docs/diffusers/api/models/autoencoder_tiny
    """
    from diffusers import AutoencoderTiny  # pyright: ignore[reportPrivateImportUsage]

    return Decoder(_build_autoencoder(AutoencoderTiny, folder, config).decoder, folder)


def build_autoencoder_oobleck(folder: str | None = None, **config: Any) -> nn.Module:
    """Build the decoder of diffusers' AutoencoderOobleck: latents [b, c, n] to stereo sound [b, 2, 2048n].

    Source: https://huggingface.co/docs/diffusers/api/models/autoencoder_oobleck
    """
    from diffusers import AutoencoderOobleck  # pyright: ignore[reportPrivateImportUsage]

    return Decoder(_build_autoencoder(AutoencoderOobleck, folder, config).decoder, folder)


def build_mimi_decoder(folder: str | None = None, **config: Any) -> nn.Module:
    """Build transformers' MimiModel for decoding: codes at 12.5 Hz to a waveform at 24 kHz.

    Source: https://huggingface.co/docs/transformers/model_doc/mimi
    """
    from transformers import MimiModel

    if folder is not None:
        return MimiDecoder(make_model(MimiModel, folder, config), folder)
    model = make_model(MimiModel, None, config)
    for name, buffer in model.named_buffers():
        if name.endswith("embed_sum"):  # new codebooks are zero: all codes would be equal
            nn.init.normal_(buffer)
    return MimiDecoder(model, None)


def _build_autoencoder(kind: Any, folder: str | None, config: dict[str, Any]) -> Any:
    if folder is None:
        return kind(**config)
    return kind.from_pretrained(require_folder(folder), local_files_only=True)


class ClassificationLoss(LibraryModel):
    """An image classifier under its cross-entropy loss."""

    def forward(self, pixel_values: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy (fp32 scalar) for images [b, 3, h, w] and int64 `labels` [b]."""
        logits = self.model(pixel_values=pixel_values).logits  # [b, num_labels]
        return F.cross_entropy(logits.float(), labels)


def build_resnet_training(folder: str | None = None, **config: Any) -> ClassificationLoss:
    """Build transformers' ResNetForImageClassification under its loss; by default ResNet-50 with 1000 labels.

    Source: https://huggingface.co/docs/transformers/model_doc/resnet

    Args:
        folder: made by save_pretrained; its own config is used and `config` is ignored. None: random weights.
        config: keys of ResNetConfig.

    Raises:
        FileNotFoundError: the folder does not exist.
        ValueError: an unknown config key, or an incomplete folder.

    """
    from transformers import ResNetForImageClassification

    return ClassificationLoss(make_model(ResNetForImageClassification, folder, {"num_labels": 1000, **config}), folder)
