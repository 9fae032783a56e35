"""Makes a model of the transformers library from its config or from a local folder, and takes no half of either.

The library keeps going where a config key is misspelt or where a folder lacks weights (it draws random ones and logs
a line); a number measured on such a model would be another model's number.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F


def make_model(kind: Any, folder: str | None, config: Mapping[str, Any], **options: Any) -> nn.Module:
    """Return a `kind` (a PreTrainedModel class) with random weights, or with those of `folder` in fp32 or narrower.

    Args:
        kind: the model's class.
        folder: made by save_pretrained; its own config rules and `config` is left aside. None: random weights.
        config: keys of the model's config.
        options: keys that hold in both cases, `attn_implementation` for example.

    Raises:
        FileNotFoundError: the folder does not exist.
        ValueError: a config key that the model does not have, or a folder that lacks some of the model's weights.

    """
    return _random(kind, {**config, **options}) if folder is None else _loaded(kind, folder, options)


def require_folder(folder: str) -> str:
    """Return `folder`.

    Raises:
        FileNotFoundError: it does not exist.

    """
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"folder {folder!r} does not exist: name one saved with save_pretrained")
    return folder


def _random(kind: Any, config: Mapping[str, Any]) -> nn.Module:
    known = kind.config_class()
    for key in config:
        if not hasattr(known, key) and key != "attn_implementation":
            near = difflib.get_close_matches(key, vars(known), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"{kind.config_class.__name__} has no key {key!r}{hint}")
    return kind(kind.config_class(**config))


def _loaded(kind: Any, folder: str, options: Mapping[str, Any]) -> nn.Module:
    model, loading = kind.from_pretrained(
        require_folder(folder), local_files_only=True, output_loading_info=True, **options
    )
    if missing := sorted(loading["missing_keys"]):
        raise ValueError(
            f"folder {folder!r} holds no whole {kind.__name__}: {len(missing)} of its weights are missing, "
            f"{missing[0]} for example; name a folder saved from that class"
        )
    return model


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
    return kind.from_pretrained(require_folder(folder), local_files_only=True)


class ClassificationLoss(nn.Module):
    """A picture classifier and the cross-entropy that it is trained with."""

    def __init__(self, model: nn.Module, weights_source: str | None) -> None:
        super().__init__()
        self.model = model
        self.weights_source = weights_source

    def forward(self, pixel_values: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy, an fp32 scalar, of pictures [b, 3, h, w] with int64 `labels` [b]."""
        logits = self.model(pixel_values=pixel_values).logits  # [b, num_labels]
        return F.cross_entropy(logits.float(), labels)


def build_resnet_training(folder: str | None = None, **config: Any) -> ClassificationLoss:
    """Build transformers' ResNetForImageClassification under its loss; ResNet-50 with 1000 labels if nothing is named.

    Source: https://huggingface.co/docs/transformers/model_doc/resnet

    Args:
        folder: made by save_pretrained; its own config rules and `config` is left aside. None: random weights.
        config: keys of ResNetConfig.

    Raises:
        ModuleNotFoundError: transformers is not installed.
        FileNotFoundError: the folder does not exist.
        ValueError: an unknown key, or a folder without the whole model.

    """
    from transformers import ResNetForImageClassification

    return ClassificationLoss(make_model(ResNetForImageClassification, folder, {"num_labels": 1000, **config}), folder)
