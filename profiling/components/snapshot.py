"""A snapshot of what a module holds beside its weights: found by walking its attributes, kept, and put back.

The walk follows buffers, plain attributes, containers and objects (a transformers cache, for example), and skips
weights, functions and classes. What is put back are the original containers with their original contents, and the
values of tensors, in place: a captured CUDA graph reads fixed addresses.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from types import MethodType, ModuleType
from typing import Any, Literal

import numpy
import torch
from torch import Tensor, nn

from profiling.errors import reason_of
from profiling.machine.memory import free_bytes

#: Attributes of `nn.Module` that calls do not change, or that are opened in another way.
_MODULE_INTERNALS = frozenset(vars(nn.Module())) - {"training"} | {"_compiled_call_impl"}
#: Packages whose objects are not opened.
_CLOSED = (
    *("torch._", "torch.cuda", "torch.utils", "torch.fx", "torch.jit", "torch.storage", "torch.autograd"),
    *("torch.distributed", "torch.profiler", "threading", "_thread", "weakref", "logging", "concurrent", "asyncio"),
    *("multiprocessing", "io", "_io", "re", "inspect", "typing", "ctypes", "importlib"),
    # The engine that captures a call may stand for the module's forward.
    *("profiling.graphs", "profiling.components"),
)
_ATOMS = (
    *(type(None), bool, int, float, complex, str, bytes, numpy.generic),
    *(torch.dtype, torch.device, torch.layout, torch.Size, Enum),
)
GENERATORS = (torch.Generator, random.Random, numpy.random.Generator, numpy.random.RandomState)
MISSING = object()


@dataclass(frozen=True)
class Holder:
    """An object whose content can be read and written: its attributes, slots, items, or the elements of a sequence."""

    path: str
    owner: Any
    kind: Literal["attributes", "slots", "items", "sequence", "set"]
    dotted: bool = False  # items that Python code reaches as attributes: buffers and submodules

    @property
    def key(self) -> tuple[int, str]:
        """What tells this holder from others: an object may have attributes and items."""
        return id(self.owner), self.kind

    def read(self) -> dict[Hashable, Any]:
        """Return the entries by name, key or position."""
        match self.kind:
            case "attributes":
                skipped = _MODULE_INTERNALS if isinstance(self.owner, nn.Module) else ()
                return {name: value for name, value in vars(self.owner).items() if name not in skipped}
            case "slots":
                slots = {name: getattr(self.owner, name, MISSING) for name in _slots(type(self.owner))}
                return {name: value for name, value in slots.items() if value is not MISSING}
            case "items":
                return dict(self.owner.items())
            case "sequence":
                return dict(enumerate(self.owner))
            case "set":
                return dict.fromkeys(self.owner)

    def write(self, content: Mapping[Hashable, Any]) -> None:
        """Write the content, and nothing where it is the same already."""
        now = self.read()
        in_order = now.keys() == content.keys() if self.kind == "set" else same_keys(now, content)
        if in_order and all(now[key] is value for key, value in content.items()):
            return
        match self.kind:  # attributes without the class's own `__setattr__`, which may check or count
            case "attributes":
                for name in now.keys() - content.keys():
                    del vars(self.owner)[name]
                vars(self.owner).update(content)
            case "slots":
                for name in now.keys() - content.keys():
                    object.__delattr__(self.owner, str(name))
                for name, value in content.items():
                    object.__setattr__(self.owner, str(name), value)
            case "items" | "set":
                if not in_order:
                    self.owner.clear()
                self.owner.update(content)
            case "sequence":
                self.owner.clear()
                self.owner.extend(content.values())

    def place(self, key: Hashable) -> str:
        """Return the path of an entry, as Python code."""
        if self.kind in ("attributes", "slots") or self.dotted:
            return f"{self.path}.{key}".lstrip(".")
        if isinstance(key, Tensor):  # of an optimizer's state: its values change, and so does its text
            number = next((index for index, each in enumerate(self.owner) if each is key), len(self.owner))
            return f"{self.path}[{type(key).__name__} {number}]"
        return f"{self.path}[{key!r}]"


def _slots(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        names = vars(base).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            private = name.startswith("__") and not name.endswith("__")
            if name not in ("__dict__", "__weakref__"):
                yield f"_{base.__name__.lstrip('_')}{name}" if private else name


_Entry = tuple[Holder, Hashable]
_Found = tuple[str, Any, _Entry | None]


@dataclass
class Structure:
    """What the walk found at one moment: holders with their contents, tensors and generators, each with its path."""

    contents: dict[tuple[int, str], tuple[Holder, dict[Hashable, Any]]] = field(default_factory=dict)
    tensors: dict[int, tuple[str, Tensor]] = field(default_factory=dict)
    parameters: dict[int, tuple[str, Tensor]] = field(default_factory=dict)
    generators: dict[int, tuple[str, Any]] = field(default_factory=dict)
    closed: dict[str, str] = field(default_factory=dict)  # by path: why it could not be opened
    values: dict[str, Any] = field(default_factory=dict)  # by path: each tensor, generator, number, text or None
    entries: dict[str, tuple[Holder, Hashable]] = field(default_factory=dict)  # by path: what holds the value
    _seen: dict[int, Any] = field(default_factory=dict)  # by id; the values keep the ids from being reused

    @classmethod
    def of(cls, roots: Mapping[str, Any]) -> Structure:
        """Walk from `roots`, by the name that begins each path."""
        structure = cls()
        pending: list[_Found] = [(path, value, None) for path, value in reversed(list(roots.items()))]
        while pending:
            path, value, entry = pending.pop()
            if isinstance(value, (*_ATOMS, Tensor, numpy.ndarray, *GENERATORS)):
                structure.values[path] = value
                if entry is not None:
                    structure.entries[path] = entry
            if isinstance(value, _ATOMS) or id(value) in structure._seen:
                continue
            structure._seen[id(value)] = value
            pending += reversed(list(structure._visit(path, value, entry)))
        return structure

    def forget_all_but(self, reached: Structure) -> None:
        """Drop references to what a later walk did not find, so that the memory of replaced weights is freed."""
        self.contents = {key: entry for key, entry in self.contents.items() if key in reached.contents}
        self.tensors = {key: found for key, found in reached.tensors.items() if key in self.tensors}
        self.parameters, self.values, self.entries, self._seen = {}, {}, {}, {}

    def form(self) -> dict[str, Any]:
        """Return dtype and shape of each tensor and the type of each other value, by path."""
        return {path: _form(value) for path, value in self.values.items()}

    def _visit(self, path: str, value: Any, entry: _Entry | None) -> Iterator[_Found]:
        """Add what `value` is, which `entry` holds; yield what it contains."""
        if isinstance(value, Tensor):
            if isinstance(value, nn.Parameter):
                self.parameters[id(value)] = path, value
            elif not value.is_meta:
                self.tensors[id(value)] = path, value
        elif isinstance(value, numpy.ndarray):
            with suppress(TypeError, ValueError):  # of objects or text; read-only
                self.tensors[id(value)] = path, torch.from_numpy(value)
        elif isinstance(value, GENERATORS):
            self.generators[id(value)] = path, value
        elif isinstance(value, tuple | frozenset):
            yield from ((f"{path}[{index}]", each, entry) for index, each in enumerate(value))
        elif isinstance(value, partial):
            parts: tuple[tuple[str, Any], ...]
            parts = (path, value.func), (f"{path}.args", value.args), (f"{path}.keywords", value.keywords)
            yield from ((place, part, entry) for place, part in parts)
        else:
            for holder in _holders(path, value):
                try:
                    content = holder.read()
                except Exception as error:  # a property or an iterator of the user's
                    self.closed[path] = f"{type(value).__name__} cannot be read: {reason_of(error)}"
                    continue
                self.contents[holder.key] = holder, content
                yield from ((holder.place(key), each, (holder, key)) for key, each in content.items())
            if isinstance(value, nn.Module):
                # A TorchScript module keeps its buffers outside of its attributes.
                own = (*value.named_parameters("", recurse=False), *value.named_buffers("", recurse=False))
                yield from ((f"{path}.{name}".lstrip("."), each, None) for name, each in own)


def _form(value: Any) -> Any:
    if isinstance(value, Tensor) and value.is_nested:
        return value.dtype, tuple(part.shape for part in value.unbind())
    return (value.dtype, value.shape) if isinstance(value, Tensor | numpy.ndarray) else type(value)


def _holders(path: str, value: Any) -> Iterator[Holder]:
    """Yield the parts of an object that hold others."""
    if isinstance(value, nn.Module):
        # Submodules first: a list of them in an attribute gives them no other path.
        for name in ("_modules", "_buffers", "_forward_hooks", "_forward_pre_hooks"):
            if isinstance(vars(value).get(name), dict):
                yield Holder(path, vars(value)[name], "items", dotted=True)
        yield Holder(path, value, "attributes")
        return
    if isinstance(value, MutableMapping):
        yield Holder(path, value, "items")
    elif isinstance(value, list | deque):
        yield Holder(path, value, "sequence")
    elif isinstance(value, set):
        yield Holder(path, value, "set")
    kind = type(value)
    if isinstance(value, type | ModuleType | MethodType) or hasattr(value, "__code__") or kind.__module__ == "builtins":
        return
    if any(kind.__module__ == name or kind.__module__.startswith(f"{name}.") for name in _CLOSED):
        return
    if kind.__module__.startswith("torch._"):
        return
    if isinstance(getattr(value, "__dict__", None), dict):
        yield Holder(path, value, "attributes")
    if any(True for _ in _slots(kind)):
        yield Holder(path, value, "slots")


def same(one: Any, other: Any) -> bool:
    """Return whether two entries are one object, or equal numbers, text, or tuples of such."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return isinstance(one, _ATOMS) and bool(one == other or (one != one and other != other))


def same_keys(one: Mapping[Hashable, Any], other: Mapping[Hashable, Any]) -> bool:
    """Return whether two dicts have the same keys in the same order.

    Keys may be tensors, which `==` would compare element by element.
    """
    pairs = zip(one, other, strict=False)
    return one.keys() == other.keys() and all(a is b or (not isinstance(a, Tensor) and a == b) for a, b in pairs)


def differ(one: Mapping[Hashable, Any], other: Mapping[Hashable, Any]) -> bool:
    """Return whether two contents of a holder have other keys, in another order, or other entries."""
    return not same_keys(one, other) or any(not same(each, other[name]) for name, each in one.items())


class KeptTensor:
    """A tensor and a copy of its values; restoring writes them into the same memory."""

    def __init__(self, path: str, tensor: Tensor, device: torch.device | None = None) -> None:
        self.path, self.tensor = path, tensor
        self._memory = tensor.detach()  # the same memory under another tensor, should the call swap it (`.data = …`)
        self._narrow = _without_repeats(self._memory)
        self.values = self._narrow.to(device or tensor.device, copy=True)

    def is_unchanged(self) -> bool:
        """Return whether the tensor has its kept values, bit by bit: some dtypes have no comparison."""
        if self._is_swapped():
            return False
        return torch.equal(bits(self._narrow), bits(self.values.to(self._narrow.device)))

    def follow(self, tensor: Tensor) -> None:
        """Keep the present values of `tensor` if it was replaced or has other memory by now."""
        if tensor is not self.tensor or self._is_swapped():
            KeptTensor.__init__(self, self.path, tensor, self.values.device)

    def restore(self) -> None:
        """Write the kept values into the memory that the tensor had."""
        if self._is_swapped():
            self.tensor.data = self._memory
        self._narrow.copy_(self.values)

    def _is_swapped(self) -> bool:
        now, kept = self.tensor, self._memory
        return now.data_ptr() != kept.data_ptr() or now.shape != kept.shape or now.stride() != kept.stride()


def bits(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor of any strides, in one dimension."""
    dense = (tensor.int_repr() if tensor.is_quantized else tensor).resolve_conj().resolve_neg().contiguous()
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)  # one element may have any stride


def _without_repeats(tensor: Tensor) -> Tensor:
    """Return a view without the elements that `expand` repeats, which no copy can write to."""
    for dimension, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[dimension] > 1:
            tensor = tensor.narrow(dimension, 0, 1)
    return tensor


@dataclass(frozen=True)
class Kept:
    """Copies of tensors, and in words what could not be copied."""

    tensors: dict[int, KeptTensor] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, tensors: Iterable[tuple[int, tuple[str, Tensor]]]) -> Kept:
        """Copy the tensors where they are; to host memory where half of the device's free memory is too little."""
        tensors = list(tensors)
        on_cuda = [tensor for _, (_, tensor) in tensors if tensor.device.type == "cuda"]
        crowded = bool(on_cuda) and 2 * sum(each.nbytes for each in on_cuda) > free_bytes(on_cuda[0].device)
        kept = cls()
        for key, (path, tensor) in tensors:
            kept.add(key, path, tensor, torch.device("cpu") if crowded else None)
        return kept

    def add(self, key: int, path: str, tensor: Tensor, device: torch.device | None = None) -> None:
        """Copy a tensor, to `device` or where it is."""
        try:
            with torch.inference_mode():
                self.tensors[key] = KeptTensor(path, tensor, device)
        except (RuntimeError, TypeError) as error:
            self.failures[path] = reason_of(error)

    def restore(self) -> None:
        """Put back the values of the tensors."""
        with torch.inference_mode():  # the one mode that may write to every tensor
            for kept in self.tensors.values():
                kept.restore()


class Snapshot:
    """A copy of all state that `roots` reach, as it is now; `restore` puts it back.

    `roots` maps the first part of a path ("" for a module itself) to the object. `skip` has the ids of tensors whose
    values are not kept.
    """

    def __init__(self, roots: Mapping[str, Any], skip: Container[int] = ()) -> None:
        with torch.inference_mode():
            self.structure = Structure.of(roots)
            found = self.structure.tensors.items()
            self.kept = Kept.of((key, each) for key, each in found if key not in skip)
        self.states = [(each, generator_state(each)) for _, each in self.structure.generators.values()]

    def restore(self) -> None:
        """Put back contents, values and the states of generators."""
        for holder, content in self.structure.contents.values():
            holder.write(content)
        self.restore_values()

    def restore_values(self) -> None:
        """Put back the values of tensors and the states of generators only."""
        self.kept.restore()
        for generator, state in self.states:
            _set_state(generator, state)


def generator_state(generator: Any) -> Any:
    """Return the state of a generator of torch, Python or NumPy."""
    if isinstance(generator, numpy.random.Generator):
        return generator.bit_generator.state
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, numpy.random.Generator):
        generator.bit_generator.state = state
    else:
        (generator.setstate if isinstance(generator, random.Random) else generator.set_state)(state)
