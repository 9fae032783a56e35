"""Nested structures of tensors: listing and replacing the tensors in one, and those that an operator writes to."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor


def named_tensors(tree: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield (path, tensor) for each tensor in `tree`, in a fixed order; other leaves are ignored.

    A path joins keys, indices and field names with dots; a tensor that is the whole tree has the path "output".
    """
    if isinstance(tree, Tensor):
        yield path or "output", tree
        return
    for key, value in _children(tree):
        yield from named_tensors(value, f"{path}.{key}" if path else str(key))


def tensors_in(tree: Any) -> list[Tensor]:
    """Return the tensors in `tree` in the order of `named_tensors`."""
    return [tensor for _, tensor in named_tensors(tree)]


def map_tensors(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """Return `tree` with `function` applied to each tensor; structure and other leaves are kept.

    The structure is copied without calling constructors, so a container whose `__init__` checks its arguments (a
    transformers `ModelOutput`, for example) keeps its type.
    """
    if isinstance(tree, Tensor):
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
        for field in dataclasses.fields(tree):
            object.__setattr__(twin, field.name, map_tensors(function, getattr(tree, field.name)))
        return twin
    return tree


def written_tensors(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    """Yield the tensors that a call of the OpOverload `func` with these arguments writes to, by its schema."""
    if not func._schema.is_mutable:
        return
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from tensors_in(args[position] if position < len(args) else kwargs.get(argument.name))


def _children(tree: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(tree, Mapping):
        yield from tree.items()
    elif isinstance(tree, tuple | list):
        names = getattr(tree, "_fields", range(len(tree)))
        yield from zip(names, tree, strict=True)
    elif _is_dataclass_instance(tree):
        for field in dataclasses.fields(tree):
            yield field.name, getattr(tree, field.name)


def _is_dataclass_instance(tree: Any) -> bool:
    return dataclasses.is_dataclass(tree) and not isinstance(tree, type)
