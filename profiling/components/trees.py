"""Nested structures of tensors: opening a container, listing, replacing and overwriting tensors, comparing forms."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from functools import partial
from operator import setitem
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import (
    SUPPORTED_NODES,
    GetAttrKey,
    MappingKey,
    SequenceKey,
    is_namedtuple_instance,
    is_structseq_instance,
)


def tensors_in(tree: Any) -> list[Tensor]:
    """Return the tensors in `tree` in the order of `opened`; other leaves are ignored."""
    if isinstance(tree, Tensor):
        return [tree]
    node = opened(tree)
    return [] if node is None else [tensor for value in node.values for tensor in tensors_in(value)]


def named_tensors(tree: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield (path, tensor) for each tensor in `tree`; a path joins keys with dots, and is empty for `tree` itself."""
    for keys, tensor in keyed_tensors(tree):
        yield dotted(keys), tensor


def keyed_tensors(tree: Any) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
    """Yield (keys, tensor) for each tensor in `tree`; `key.get(container)` returns the entry of a key."""
    return ((place, leaf) for place, leaf in keyed_leaves(tree) if isinstance(leaf, Tensor))


def keyed_leaves(tree: Any, keys: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield (keys, leaf) for each tensor and each other value in `tree` that is no container."""
    if isinstance(tree, Tensor) or (node := opened(tree)) is None:
        yield keys, tree
    else:
        for key, value in zip(node.keys, node.values, strict=True):
            yield from keyed_leaves(value, (*keys, key))


def form_of(leaf: Any) -> str:
    """Return what a leaf is: `float32 [1, 3]` of a tensor, a plain value as it is written, the type of an object."""
    if isinstance(leaf, Tensor):
        return f"{str(leaf.dtype).removeprefix('torch.')} {list(leaf.shape)}"
    return repr(leaf) if leaf is None or isinstance(leaf, bool | int | float | str) else type(leaf).__name__


def forms_of(tree: Any) -> dict[str, str]:
    """Return the form of each tensor and the value of each other leaf in words, by path."""
    return {dotted(keys): form_of(leaf) for keys, leaf in keyed_leaves(tree)}


def other_form(tree: Any, wanted: Mapping[str, str]) -> str | None:
    """Return in words the first place where `tree` has another structure, tensor form or value than `wanted` has."""
    forms = forms_of(tree)
    for path, form in wanted.items():
        if path not in forms:
            return f"{path} ({form}) is missing"
        if forms[path] != form:
            return f"{path} is {forms[path]}, and was {form}"
    extra = next((path for path in forms if path not in wanted), None)
    return None if extra is None else f"{extra} ({forms[extra]}) is new"


def overwrite(tree: Any, values: Any) -> None:
    """Copy the tensors of `values` into those of `tree`, which has the same structure; addresses do not change.

    From pinned host memory the copy does not wait; it is in the order of the current stream.
    """
    for (_, target), (_, fresh) in zip(keyed_tensors(tree), keyed_tensors(values), strict=True):
        copy_values(target, fresh)


def copy_values(target: Tensor, fresh: Tensor) -> None:
    """Copy the values of `fresh` into `target`, which may be an expanded tensor."""
    for dim, stride in enumerate(target.stride() if target.layout == torch.strided else ()):
        if stride == 0 and target.shape[dim] > 1:  # all entries of this dimension are one
            target, fresh = target.narrow(dim, 0, 1), fresh.narrow(dim, 0, 1)
    target.copy_(fresh, non_blocking=True)


def dotted(keys: Sequence[Any]) -> str:
    """Return keys of `opened` as text: `latents.0`."""
    return ".".join(str(getattr(key, dataclasses.fields(key)[0].name)) for key in keys)


def map_tensors(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """Return `tree` with `function` applied to each tensor; structure, types of containers and other leaves are kept.

    Mappings and dataclasses are copied without calling their constructor, which may check its arguments (that of a
    transformers `ModelOutput`, for example).
    """
    if isinstance(tree, Tensor):
        return function(tree)
    kind = type(tree)
    if kind is tuple or kind is list:  # the plain types directly: a replay maps its outputs in every call
        return kind([map_tensors(function, value) for value in tree])
    if kind is dict:
        return {key: map_tensors(function, value) for key, value in tree.items()}
    node = opened(tree)
    return tree if node is None else node.rebuild([map_tensors(function, value) for value in node.values])


def stored_parts(tensor: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors with an address: those in a sparse or nested one, else `tensor` itself."""
    if tensor.is_nested:
        return tensor.unbind()
    if tensor.layout == torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return (tensor,)


def written_tensors(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    """Yield the tensors that a call of the OpOverload `func` with these arguments writes to, by its schema."""
    if not func._schema.is_mutable:
        return
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from tensors_in(args[position] if position < len(args) else kwargs.get(argument.name))


class Container(NamedTuple):
    """An open container: its entries, and the function that makes a container of the same kind from other values."""

    keys: Iterable[Hashable]  # made when they are read: replays map tensors without them
    values: Sequence[Any]
    rebuild: Callable[[list[Any]], Any]


def opened(tree: Any) -> Container | None:
    """Return the entries of a container, in a fixed order; None where `tree` is a leaf.

    Containers are mappings, tuples, lists, dataclass instances, and types that are registered with torch's pytree. As
    text a key is what Python code writes to get the entry: `['a']`, `[0]` or `.name`.
    """
    kind = type(tree)
    if isinstance(tree, tuple):
        made_by_torch = is_structseq_instance(tree) or isinstance(tree, torch.Size)
        rebuild = kind if made_by_torch else partial(tuple.__new__, kind)
        if is_namedtuple_instance(tree):
            return Container(map(GetAttrKey, kind._fields), tree, rebuild)
        return Container(map(SequenceKey, range(len(tree))), tree, rebuild)
    if isinstance(tree, list):
        return Container(map(SequenceKey, range(len(tree))), tree, partial(_refilled, tree, range(len(tree)), setitem))
    if isinstance(tree, Mapping):
        keys = tuple(tree)
        refill = partial(_refilled, tree, keys, setitem)
        if not isinstance(tree, MutableMapping):  # a frozen mapping is made from a dict
            refill = lambda new: kind(dict(zip(keys, new, strict=True)))  # noqa: E731
        return Container(map(MappingKey, tree), list(tree.values()), refill)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        names = [field.name for field in dataclasses.fields(tree)]
        values = [getattr(tree, name) for name in names]
        return Container(map(GetAttrKey, names), values, partial(_refilled, tree, names, object.__setattr__))
    if (registered := SUPPORTED_NODES.get(kind)) is None:
        return None
    values, context = registered.flatten_fn(tree)
    keys: Iterable[Any] = map(SequenceKey, range(len(values)))
    if registered.flatten_with_keys_fn is not None:
        keys = (key for key, _ in registered.flatten_with_keys_fn(tree)[0])
    return Container(keys, values, lambda new: registered.unflatten_fn(new, context))


def _refilled(tree: Any, keys: Iterable[Any], put: Callable[[Any, Any, Any], None], values: list[Any]) -> Any:
    """Return a copy of a container with other values; its constructor, which may check them, is not called."""
    twin = copy.copy(tree)
    for key, value in zip(keys, values, strict=True):
        put(twin, key, value)
    return twin
