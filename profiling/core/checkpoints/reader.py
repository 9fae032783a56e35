"""Open a checkpoint file: memory-mapped where its format allows, and never running what a pickle asks to run."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from profiling.core.checkpoints.names import plain_names
from profiling.errors import InputError, did_you_mean

PYTORCH_ZIP = "pytorch zip"
PYTORCH_LEGACY = "pytorch legacy"
SAFETENSORS = "safetensors"


@dataclass(frozen=True)
class Contents:
    """A file's tensors under plain names (on the CPU, memory-mapped but for the legacy format), and its format."""

    tensors: dict[str, Tensor]
    format: str


def read(path: Path, wanted: Collection[str] = ()) -> Contents:
    """Open `path` and return what it holds; `wanted` are the names of the network it is for, where that is known.

    Raises InputError, in one line, for anything that is not a state dict.
    """
    kind = _kind(path)
    content = _open_safetensors(path) if kind == SAFETENSORS else _open_pytorch(path, kind)
    try:
        tensors = plain_names(content, wanted)
        for name, value in tensors.items():
            _check_tensor(name, value)
    except InputError as error:
        raise InputError(f"checkpoint '{path}' {error}") from None
    return Contents(tensors, kind)


def _kind(path: Path) -> str:
    """Tell the format from the first bytes. Raises InputError when there are none to read."""
    try:
        if path.is_dir():
            raise InputError(f"checkpoint '{path}' is a folder: name the file in it")
        if not path.exists():
            siblings = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
            raise InputError(f"checkpoint '{path}' does not exist.{did_you_mean(path.name, siblings)}")
        if not path.is_file():
            raise InputError(f"checkpoint '{path}' is not a regular file")
        with path.open("rb") as file:
            head = file.read(9)
    except OSError as error:
        raise InputError(f"checkpoint '{path}' cannot be read: {error.strerror}") from None
    if not head:
        raise InputError(f"checkpoint '{path}' is empty (0 bytes): download or copy it again")
    # Eight bytes of header length, then the header's JSON object.
    if head[8:] == b"{" or path.suffix == ".safetensors":
        return SAFETENSORS
    return PYTORCH_ZIP if head.startswith(b"PK\x03\x04") else PYTORCH_LEGACY


def _open_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except Exception as error:  # its own SafetensorError, but also OSError, TypeError and ValueError
        raise InputError(
            f"checkpoint '{path}' is damaged, cut short or not a safetensors file ({_line(error)}): "
            "download or copy it again"
        ) from None


def _open_pytorch(path: Path, kind: str) -> object:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # hints for programmers, on stderr before our one line
            return torch.load(path, map_location="cpu", weights_only=True, mmap=kind == PYTORCH_ZIP)
    except Exception as error:  # damaged bytes surface as anything: KeyError, EOFError, RuntimeError, MemoryError, …
        raise InputError(f"checkpoint '{path}' {_why_not(error)}") from None


def _why_not(error: Exception) -> str:
    text = str(error)
    asked = re.search(r"GLOBAL (\S+)", text)
    if asked:
        return (
            f"is refused: its pickle asks for {asked[1]}, and only plain tensors are read since other pickles can run "
            "code: save its state dict alone, or as safetensors"
        )
    if "TorchScript" in text:
        return "is a TorchScript program, not weights: save the module's state_dict() instead"
    return "is damaged, cut short or not a PyTorch checkpoint: download or copy it again"


def _check_tensor(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise InputError(
            f"is not a state dict: its entry '{name}' is a {type(value).__name__}, not a tensor "
            "(a state dict, or one under 'ema' or 'model', is read)"
        )
    if value.layout != torch.strided or value.is_quantized or value.is_meta:
        raise InputError(f"holds '{name}' as something else than a dense tensor: save it dense")


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
