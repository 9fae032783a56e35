"""What makes two calls the same call for a CUDA graph: everything but the numbers inside the tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from enum import Enum
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch

#: Where copies of bytes beneath tensors that overlap begin: at a multiple of this, so that views keep their alignment.
ALIGNMENT = 16

_PLAIN = (
    *(type(None), bool, int, float, complex, str, bytes, Enum, type, FunctionType, BuiltinFunctionType),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Generator),
)


def signature(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Hashable, list[torch.Tensor]]:
    """Return (key, tensors): calls with equal keys may replay the same graph; tensors stand in the order of the walk.

    The key holds shape, strides, dtype, device and requires_grad of each tensor, how tensors share storage, every other
    argument with its type, the structure around them, and the modes that change what an operator does: grad, inference
    and autocast.

    Raises:
        TypeError: an argument that can change without becoming another one (a cache object, say), naming its type.

    """
    # One flat list, not a tree of small objects: this runs before every replay.
    autocast = torch.is_autocast_enabled("cuda")
    key: list[Any] = [torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast]
    if autocast:
        key.append(torch.get_autocast_dtype("cuda"))
    leaves: list[torch.Tensor] = []
    for value in args:
        _walk(value, key, leaves)
    for name, value in kwargs.items():
        key.append(name)
        _walk(value, key, leaves)
    key += sharing(leaves)
    return tuple(key), leaves


def sharing(leaves: Sequence[torch.Tensor]) -> list[tuple[int, int, int]]:
    """Return (first tensor of the same storage, bytes from its start) for each tensor; empty where none shares.

    With the first one's own alignment, which decides how far below it a copy of the bytes begins.
    """
    if len(leaves) < 2:
        return []
    storages = [leaf.untyped_storage().data_ptr() or -index for index, leaf in enumerate(leaves)]  # 0: no bytes
    if len(set(storages)) == len(storages):
        return []
    owners = [storages.index(storage) for storage in storages]
    starts = [leaf.data_ptr() for leaf in leaves]
    pairs = zip(owners, starts, strict=True)
    return [(owner, start - starts[owner], starts[owner] % ALIGNMENT) for owner, start in pairs]


def _walk(value: Any, key: list[Any], leaves: list[torch.Tensor]) -> None:
    if isinstance(value, torch.Tensor):
        if value.is_neg() or (value.dtype.is_complex and value.is_conj()):
            value = value.resolve_conj().resolve_neg()
        leaves.append(value)
        key += (value.shape, value.stride(), value.dtype, value.device, value.requires_grad)
        return
    key.append(type(value))
    if isinstance(value, Mapping):
        key.append(tuple(value))
        for item in value.values():
            _walk(item, key, leaves)
    elif isinstance(value, tuple | list):
        key.append(len(value))
        for item in value:
            _walk(item, key, leaves)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            _walk(getattr(value, field.name), key, leaves)
    elif isinstance(value, _PLAIN):
        key.append(repr(value) if isinstance(value, float) else value)  # 0.0 equals -0.0, and nan nothing
    else:
        raise TypeError(
            f"an argument of type {type(value).__name__} cannot be part of a graph's signature: it may change without "
            "becoming another one. Pass tensors, plain values, or lists, dicts and dataclasses of them."
        )
