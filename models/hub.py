"""Third-party networks as components, from the libraries diffusers and transformers (extra [hub]).

Here: what all of them share, small autoencoders (AutoencoderTiny, AutoencoderOobleck, MimiModel), and ResNet-50 under
its training loss. Weights are random or come from a local folder made by save_pretrained; nothing is downloaded. A
factory raises ModuleNotFoundError where its library is not installed.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.initialisation import randomise


def make_model(kind: Any, folder: str | None, config: Mapping[str, Any], **options: Any) -> nn.Module:
    """Return a model of a transformers class with random weights, or with those of `folder` in fp32 or narrower.

    The library itself accepts a misspelt config key, and draws random weights where a folder lacks some; here both are
    errors, because the model measured would not be the one named.

    Args:
        kind: a PreTrainedModel class.
        folder: made by save_pretrained; its own config is used, and the values in `config` are ignored. None: random
            weights.
        config: keys of the model's config.
        options: config keys used in both cases, for example `attn_implementation`.

    Raises:
        FileNotFoundError: the folder does not exist.
        ValueError: the model has no such config key, or the folder lacks some of its weights.

    """
    config, defaults = {**config, **options}, kind.config_class()
    known = [*vars(defaults), *(key for key in config if hasattr(defaults, key)), "attn_implementation"]
    _require_known(config, known, kind.config_class.__name__)
    if folder is None:
        return kind(kind.config_class(**config))
    return _from_folder(kind, folder, options)


def build_diffusers(name: str, folder: str | None, config: Mapping[str, Any]) -> Any:
    """Return a model of the diffusers class `name` with random weights, or with those of `folder` in fp32.

    Args:
        name: a ModelMixin class, for example "UNet2DConditionModel".
        folder: made by save_pretrained; its own config is used, and the values in `config` are ignored. None: random
            weights.
        config: arguments of the class.

    Raises:
        FileNotFoundError: the folder does not exist.
        ValueError: the class has no such argument, the folder lacks some of the weights, or its library lacks a package
            to read it.

    """
    import diffusers

    kind: Any = getattr(diffusers, name)
    # Of a copied config.json, the library ignores the names that begin with "_".
    named = [key for key in config if not key.startswith("_")]
    _require_known(named, list(inspect.signature(kind).parameters), name)
    if folder is None:
        return kind(**config)
    if kind._keep_in_fp32_modules and find_spec("accelerate") is None:
        raise ValueError(
            f"diffusers reads {name} from a folder only with the package accelerate. Install it, or give the folder as "
            "`checkpoint` and its config's keys here"
        )
    return _from_folder(kind, folder, {})


def _require_known(keys: Iterable[str], known: Collection[str], owner: str) -> None:
    """Raise ValueError for a key that is not `known`, with the nearest name that is."""
    for key in keys:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"{owner} has no key {key!r}{hint}")


def _from_folder(kind: Any, folder: str, options: Mapping[str, Any]) -> Any:
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


class Encoder(nn.Module):
    """The encoding half of an autoencoder."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        """Encode images `x`, shaped as the encoder requires."""
        return self.part(x)


class Decoder(nn.Module):
    """The decoding half of an autoencoder."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, z: Tensor) -> Tensor:
        """Decode latents `z`, shaped as the decoder requires."""
        return self.part(z)


class LibraryModel(nn.Module):
    """Base of the components around a library's `model`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model


class StatefulModel(LibraryModel):
    """A library's model with state that a call changes in place: buffers beside `model` that follow its dtype.

    A new module's state is drawn from a fixed seed, as if a stream had run for a while: from a state of zeros a parity
    check could not see that a call ignores it.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._drawn: list[str] = []

    def add_state(self, name: str, shape: Sequence[int]) -> None:
        """Register a buffer of the default device and dtype, which `reset` fills with normal numbers."""
        self.register_buffer(name, torch.empty(tuple(shape)), persistent=False)
        self._drawn.append(name)

    @torch.no_grad()
    def reset(self) -> None:
        """Restore the state of a new module in place."""
        for number, name in enumerate(self._drawn):
            buffer: Any = self._buffers[name]
            if not buffer.is_meta:
                generator = torch.Generator(buffer.device).manual_seed(number)
                # Drawn in fp32, so that a module in half precision has the same state, rounded.
                buffer.copy_(torch.randn(buffer.shape, generator=generator, device=buffer.device))


@torch.no_grad()
def randomise_library(module: nn.Module, seed: int) -> None:
    """Fill a library's model with random weights as `randomise` does, with the gains of its norms around one.

    With a library's own initialisation queries and keys are so small that attention is a plain average, and a parity
    check would miss a wrong softmax.
    """
    randomise(module, seed)
    for part in module.modules():
        gain = getattr(part, "weight", None)
        gain = getattr(part, "gamma", None) if gain is None else gain  # the norms of Wan's autoencoder
        if "norm" in type(part).__name__.lower() and isinstance(gain, nn.Parameter):
            gain.add_(1)


class MimiDecoder(LibraryModel):
    """The decoder of a MimiModel: audio codes to a waveform."""

    def forward(self, codes: Tensor) -> Tensor:
        """Decode int64 codes [b, quantizers, frames] to a waveform [b, channels, samples]."""
        return self.model.decode(codes, return_dict=False)[0]  # pyright: ignore[reportCallIssue]


def build_autoencoder_tiny(folder: str | None = None, **config: Any) -> nn.Module:
    """Build the decoder of diffusers' AutoencoderTiny: latents [b, 4, h, w] to images [b, 3, 8h, 8w].

    Source: https://huggingface.co/docs/diffusers/api/models/autoencoder_tiny
    """
    return Decoder(build_diffusers("AutoencoderTiny", folder, config).decoder)


def build_tiny_encoder(folder: str | None = None, **config: Any) -> nn.Module:
    """Build the encoder of diffusers' AutoencoderTiny: images [b, 3, 8h, 8w], -1 to 1, to latents [b, 4, h, w]."""
    return Encoder(build_diffusers("AutoencoderTiny", folder, config).encoder)


def build_autoencoder_oobleck(folder: str | None = None, **config: Any) -> nn.Module:
    """Build the decoder of diffusers' AutoencoderOobleck: latents [b, c, n] to stereo sound [b, 2, 2048n].

    Source: https://huggingface.co/docs/diffusers/api/models/autoencoder_oobleck
    """
    return Decoder(build_diffusers("AutoencoderOobleck", folder, config).decoder)


def build_mimi_decoder(folder: str | None = None, **config: Any) -> nn.Module:
    """Build transformers' MimiModel for decoding: codes at 12.5 Hz to a waveform at 24 kHz.

    Source: https://huggingface.co/docs/transformers/model_doc/mimi
    """
    from transformers.models.mimi.modeling_mimi import MimiModel

    model = make_model(MimiModel, folder, config)
    _keep_paddings_on_host(model)
    if folder is None:
        for name, buffer in model.named_buffers():
            if name.endswith("embed_sum"):  # new codebooks are zero: all codes would be equal
                nn.init.normal_(buffer)
    return MimiDecoder(model)


def _keep_paddings_on_host(model: nn.Module) -> None:
    """Replace the sizes that Mimi's convolutions keep as buffers by Python integers, in place.

    On a GPU each convolution would read its paddings back in every call, which waits for the device and cannot be
    captured in a CUDA graph.
    """
    for module in model.modules():
        layer: Any = module
        if "padding_total" in layer._buffers:
            total, size, stride = (int(getattr(layer, name)) for name in ("padding_total", "kernel_size", "stride"))
            del layer._buffers["padding_total"]
            layer.padding_total = total
            layer._get_extra_padding_for_conv1d = partial(_extra_padding, size - total, stride)


def _extra_padding(overlap: int, stride: int, x: Tensor) -> int:
    """Return the zeros that complete the last window of `x` [..., n]; a window begins every `stride` samples."""
    return -(x.shape[-1] - overlap) % stride


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
        folder: made by save_pretrained; its own config is used, and the values in `config` are ignored. None: random
            weights.
        config: keys of ResNetConfig.

    Raises:
        FileNotFoundError: the folder does not exist.
        ValueError: an unknown config key, or an incomplete folder.

    """
    from transformers.models.resnet.modeling_resnet import ResNetForImageClassification

    return ClassificationLoss(make_model(ResNetForImageClassification, folder, {"num_labels": 1000, **config}))
