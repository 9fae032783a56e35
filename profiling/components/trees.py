"""Which of its arguments an operator writes to, as its schema says."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def named_tensors(tree: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (path, tensor) for each tensor in `tree`, in a fixed order; leaves that are no tensors are passed over."""
    if isinstance(tree, torch.Tensor):
        yield path or "output", tree
        return
    for key, value in _children(tree):
        yield from named_tensors(value, f"{path}.{key}" if path else str(key))


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], tree: Any) -> Any:
    """Return `tree` with `function` applied to each tensor, the structure and everything else as it was.

    The structure is copied from the bottom up without calling its constructors, so a container with a checking
    `__init__` (a transformers `ModelOutput`, say) comes back as its own type.
    """
    if isinstance(tree, torch.Tensor):
        return function(tree)
    if isinstance(tree, Mapping):
        mapped = {key: map_tensors(function, value) for key, value in tree.items()}
        if type(tree) is dict:
            return mapped
        twin: Any = copy.copy(tree)
        for key, value in mapped.items():
            twin[key] = value
        return twin
    if isinstance(tree, tuple):
        items = [map_tensors(function, value) for value in tree]
        return type(tree)(*items) if hasattr(tree, "_fields") else tuple(items)
    if isinstance(tree, list):
        return [map_tensors(function, value) for value in tree]
    if _is_dataclass_instance(tree):
        twin = copy.copy(tree)
        for item in dataclasses.fields(tree):
            object.__setattr__(twin, item.name, map_tensors(function, getattr(tree, item.name)))
        return twin
    return tree


def _children(tree: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(tree, Mapping):
        yield from tree.items()
    elif isinstance(tree, tuple | list):
        names = getattr(tree, "_fields", range(len(tree)))
        yield from zip(names, tree, strict=True)
    elif _is_dataclass_instance(tree):
        for item in dataclasses.fields(tree):
            yield item.name, getattr(tree, item.name)


def _is_dataclass_instance(tree: Any) -> bool:
    return dataclasses.is_dataclass(tree) and not isinstance(tree, type)


def written_tensors(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    """Yield the tensors that a call of the OpOverload `func` with these arguments changes in place."""
    if not func._schema.is_mutable:
        return
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            for _, tensor in named_tensors(value):
                yield tensor
