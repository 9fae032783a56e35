"""Signature of a call: calls with equal signatures may replay the same CUDA graph.

A signature contains everything that a graph fixes: all of a call except the values inside its tensors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from enum import Enum
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch

from profiling.components.trees import opened

#: Byte alignment of the buffers that hold overlapping tensors, so that views of them keep their own alignment.
ALIGNMENT = 16

_PLAIN = (
    *(type(None), bool, int, float, complex, str, bytes, Enum, type, FunctionType, BuiltinFunctionType),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Generator),
)


def signature(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Hashable, list[torch.Tensor]]:
    """Return (key, tensors): the key to compare calls by, and the tensors in the arguments in a fixed order.

    The key holds shape, strides, dtype, device and requires_grad of each tensor, how tensors share storage, every other
    argument with its type, the structure around them, and the modes that change what an operator does: grad, inference
    and autocast.
    """
    # One flat list, not a tree of small objects: this runs before every replay.
    autocast = torch.is_autocast_enabled("cuda")
    key: list[Any] = [torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast]
    if autocast:
        key.append(torch.get_autocast_dtype("cuda"))
    tensors: list[torch.Tensor] = []
    for value in args:
        _collect(value, key, tensors)
    for name, value in kwargs.items():
        key.append(name)
        _collect(value, key, tensors)
    key += _shared_storage(tensors)
    return tuple(key), tensors


def _collect(value: Any, key: list[Any], tensors: list[torch.Tensor]) -> None:
    """Append what identifies `value` to `key`, and the tensors in it to `tensors`."""
    if isinstance(value, torch.Tensor):
        if value.is_neg() or (value.dtype.is_complex and value.is_conj()):
            value = value.resolve_conj().resolve_neg()
        tensors.append(value)
        key += (value.shape, value.stride(), value.dtype, value.device, value.requires_grad)
        return
    key.append(type(value))
    if isinstance(value, _PLAIN):
        key.append(repr(value) if isinstance(value, float) else value)  # repr: 0.0 == -0.0, and nan != nan
        return
    container = opened(value)
    if container is not None and (isinstance(value, Mapping | tuple | list) or dataclasses.is_dataclass(value)):
        key.append(tuple(value) if isinstance(value, Mapping) else len(container.values))
        for item in container.values:
            _collect(item, key, tensors)
    else:
        key.append(id(value))  # an object such as a cache: its tensors are read where they lie


def _shared_storage(tensors: Sequence[torch.Tensor]) -> list[tuple[int, int, int]]:
    """Return (first tensor of the same storage, byte distance from it, its alignment) a tensor; empty if none shares.

    The alignment decides where in a buffer a copy of the shared bytes begins.
    """
    if len(tensors) < 2:
        return []
    storages = [tensor.untyped_storage().data_ptr() or -index for index, tensor in enumerate(tensors)]  # 0: no bytes
    if len(set(storages)) == len(storages):
        return []
    owners = [storages.index(storage) for storage in storages]
    starts = [tensor.data_ptr() for tensor in tensors]
    pairs = zip(owners, starts, strict=True)
    return [(owner, start - starts[owner], starts[owner] % ALIGNMENT) for owner, start in pairs]
