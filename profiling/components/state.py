"""What calls change in a module: found by walking its attributes, kept once, and put back before each measurement.

The walk follows buffers, plain attributes, containers and objects (a transformers cache, for example), and skips
weights, functions and classes. What is put back are the original containers with their original contents, and the
values of tensors, in place: a captured CUDA graph reads fixed addresses.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from time import perf_counter
from types import MethodType, ModuleType
from typing import Any, Literal

import numpy
import torch
from torch import Tensor, nn

from profiling.components.trees import tensors_in
from profiling.errors import reason_of
from profiling.machine.memory import free_bytes

#: Attributes of `nn.Module` that calls do not change, or that are opened in another way.
_MODULE_INTERNALS = frozenset(vars(nn.Module())) - {"training"}
#: Packages whose objects are not opened.
_CLOSED = (
    *("torch._", "torch.cuda", "torch.utils", "torch.fx", "torch.jit", "torch.storage", "torch.autograd"),
    *("torch.distributed", "torch.profiler", "threading", "_thread", "weakref", "logging", "concurrent", "asyncio"),
    *("multiprocessing", "io", "_io", "re", "inspect", "typing", "ctypes", "importlib"),
    "profiling.graphs",  # the engine that captures a call may stand for the module's forward
)
_ATOMS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout, torch.Size, Enum)
_GENERATORS = (torch.Generator, random.Random, numpy.random.Generator, numpy.random.RandomState)
_MISSING = object()
#: A copy of a tensor that the first calls left unchanged is kept up to this size, since it costs nothing.
_SMALL = 2**20
#: A tensor of integers with at most so many elements may count calls.
_COUNTER = 16


@dataclass(frozen=True)
class _Holder:
    """An object whose content can be read and written: its attributes, slots, items, or the elements of a sequence."""

    path: str
    owner: Any
    kind: Literal["attributes", "slots", "items", "sequence", "set"]
    dotted: bool = False  # items that Python code reaches as attributes: buffers and submodules

    @property
    def key(self) -> tuple[int, str]:
        return id(self.owner), self.kind

    def read(self) -> dict[Hashable, Any]:
        match self.kind:
            case "attributes":
                skipped = _MODULE_INTERNALS if isinstance(self.owner, nn.Module) else ()
                return {name: value for name, value in vars(self.owner).items() if name not in skipped}
            case "slots":
                slots = {name: getattr(self.owner, name, _MISSING) for name in _slots(type(self.owner))}
                return {name: value for name, value in slots.items() if value is not _MISSING}
            case "items":
                return dict(self.owner.items())
            case "sequence":
                return dict(enumerate(self.owner))
            case "set":
                return dict.fromkeys(self.owner)

    def write(self, content: Mapping[Hashable, Any]) -> None:
        """Write the content, and nothing where it is the same already."""
        now = self.read()
        if now.keys() == content.keys() and all(now[key] is value for key, value in content.items()):
            return
        match self.kind:
            case "attributes" | "slots":
                for name in now.keys() - content.keys():
                    self._attribute(name)
                for name, value in content.items():
                    if now.get(name, _MISSING) is not value:
                        self._attribute(name, value)
            case "items":
                if list(now) != list(content):
                    self.owner.clear()
                for key, value in content.items():
                    self.owner[key] = value
            case "sequence":
                self.owner.clear()
                self.owner.extend(content.values())
            case "set":
                self.owner.clear()
                self.owner.update(content)

    def _attribute(self, name: Any, value: Any = _MISSING) -> None:
        """Set or delete an attribute without the class's own `__setattr__`, which may check or count."""
        if self.kind == "slots":
            object.__delattr__(self.owner, name) if value is _MISSING else object.__setattr__(self.owner, name, value)
        elif value is _MISSING:
            del vars(self.owner)[name]
        else:
            vars(self.owner)[name] = value

    def place(self, key: Hashable) -> str:
        """Return the path of an entry, as Python code."""
        if self.kind in ("attributes", "slots") or self.dotted:
            return f"{self.path}.{key}".lstrip(".")
        return f"{self.path}[{key!r}]"


def _slots(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        names = vars(base).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            private = name.startswith("__") and not name.endswith("__")
            if name not in ("__dict__", "__weakref__"):
                yield f"_{base.__name__.lstrip('_')}{name}" if private else name


@dataclass
class _Structure:
    """What the walk found at one moment: holders with their contents, tensors and generators, each with its path."""

    contents: dict[tuple[int, str], tuple[_Holder, dict[Hashable, Any]]] = field(default_factory=dict)
    tensors: dict[int, tuple[str, Tensor]] = field(default_factory=dict)
    parameters: dict[int, tuple[str, Tensor]] = field(default_factory=dict)
    generators: dict[int, tuple[str, Any]] = field(default_factory=dict)
    closed: dict[str, str] = field(default_factory=dict)  # by path: why it could not be opened
    _seen: dict[int, Any] = field(default_factory=dict)  # by id; the values keep the ids from being reused

    @classmethod
    def of(cls, roots: Mapping[str, Any]) -> _Structure:
        structure = cls()
        pending: list[tuple[str, Any]] = list(roots.items())[::-1]
        while pending:
            path, value = pending.pop()
            if isinstance(value, _ATOMS) or id(value) in structure._seen:
                continue
            structure._seen[id(value)] = value
            pending += reversed(list(structure._visit(path, value)))
        return structure

    def _visit(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        """Add what `value` is; yield what it contains."""
        if isinstance(value, Tensor):
            if isinstance(value, nn.Parameter):
                self.parameters[id(value)] = path, value
            elif not value.is_meta:
                self.tensors[id(value)] = path, value
        elif isinstance(value, numpy.ndarray):
            with suppress(TypeError, ValueError):  # of objects or text; read-only
                self.tensors[id(value)] = path, torch.from_numpy(value)
        elif isinstance(value, _GENERATORS):
            self.generators[id(value)] = path, value
        elif isinstance(value, tuple | frozenset):
            yield from ((f"{path}[{index}]", each) for index, each in enumerate(value))
        elif isinstance(value, partial):
            yield from ((path, value.func), (f"{path}.args", value.args), (f"{path}.keywords", value.keywords))
        else:
            for holder in _holders(path, value):
                try:
                    content = holder.read()
                except Exception as error:  # a property or an iterator of the user's
                    self.closed[path] = f"{type(value).__name__} cannot be read: {reason_of(error)}"
                    continue
                self.contents[holder.key] = holder, content
                yield from ((holder.place(key), each) for key, each in content.items())
            if isinstance(value, nn.Module):
                # A TorchScript module keeps its buffers outside of its attributes.
                own = (*value.named_parameters("", recurse=False), *value.named_buffers("", recurse=False))
                yield from ((f"{path}.{name}".lstrip("."), each) for name, each in own)


def _holders(path: str, value: Any) -> Iterator[_Holder]:
    """Yield the parts of an object that hold others."""
    if isinstance(value, nn.Module):
        yield _Holder(path, value, "attributes")
        for name in ("_buffers", "_modules"):
            if isinstance(vars(value).get(name), dict):
                yield _Holder(path, vars(value)[name], "items", dotted=True)
        return
    if isinstance(value, MutableMapping):
        yield _Holder(path, value, "items")
    elif isinstance(value, list | deque):
        yield _Holder(path, value, "sequence")
    elif isinstance(value, set):
        yield _Holder(path, value, "set")
    kind = type(value)
    if isinstance(value, type | ModuleType | MethodType) or hasattr(value, "__code__") or kind.__module__ == "builtins":
        return
    if any(kind.__module__ == name or kind.__module__.startswith(f"{name}.") for name in _CLOSED):
        return
    if kind.__module__.startswith("torch._"):
        return
    if isinstance(getattr(value, "__dict__", None), dict):
        yield _Holder(path, value, "attributes")
    if any(True for _ in _slots(kind)):
        yield _Holder(path, value, "slots")


def _same(one: Any, other: Any) -> bool:
    """Return whether two entries are one object, or equal numbers, text, or tuples of such."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return isinstance(one, _ATOMS) and (one == other or one != one)


class _KeptTensor:
    """A tensor and a copy of its values; restoring writes them into the same memory."""

    def __init__(self, path: str, tensor: Tensor, device: torch.device | None = None) -> None:
        self.path, self.tensor, self.failure = path, tensor, None
        self._memory = tensor.detach()  # the same memory under another tensor, should the call swap it (`.data = …`)
        self._narrow = _without_repeats(self._memory)
        self.values = self._narrow.to(device or tensor.device, copy=True)

    @property
    def bytes(self) -> int:
        return self.values.nbytes

    def is_unchanged(self) -> bool:
        """Return whether the tensor has its kept values; NaN equals NaN."""
        if self._is_swapped():
            return False
        now, kept = self._narrow, self.values.to(self._narrow.device)
        return bool(((now == kept) | ((now != now) & (kept != kept))).all())

    def zero(self) -> None:
        """Keep zeros in place of the values."""
        self.values.zero_()

    def restore(self) -> None:
        if self._is_swapped():
            self.tensor.data = self._memory
        self._narrow.copy_(self.values)

    def _is_swapped(self) -> bool:
        now, kept = self.tensor, self._memory
        return now.data_ptr() != kept.data_ptr() or now.shape != kept.shape or now.stride() != kept.stride()


def _without_repeats(tensor: Tensor) -> Tensor:
    """Return a view without the elements that `expand` repeats, which no copy can write to."""
    for dimension, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[dimension] > 1:
            tensor = tensor.narrow(dimension, 0, 1)
    return tensor


_Contents = list[tuple[_Holder, dict[Hashable, Any]]]


@dataclass(frozen=True)
class _Kept:
    """Copies of tensors, and in words what could not be copied."""

    tensors: dict[int, _KeptTensor]
    failures: dict[str, str]

    @classmethod
    def of(cls, tensors: Iterable[tuple[int, tuple[str, Tensor]]]) -> _Kept:
        """Copy the tensors where they are; to host memory where half of the device's free memory is too little."""
        tensors = list(tensors)
        on_cuda = [tensor for _, (_, tensor) in tensors if tensor.device.type == "cuda"]
        crowded = bool(on_cuda) and 2 * sum(each.nbytes for each in on_cuda) > free_bytes(on_cuda[0].device)
        kept = cls({}, {})
        for key, (path, tensor) in tensors:
            try:
                kept.tensors[key] = _KeptTensor(path, tensor, torch.device("cpu") if crowded else None)
            except (RuntimeError, NotImplementedError, TypeError) as error:
                kept.failures[path] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        return kept


class Snapshot:
    """The state below `roots` (by the name that begins each path) at the moment when it was made.

    `skip` are the ids of tensors whose values are not kept.
    """

    def __init__(self, roots: Mapping[str, Any], skip: Container[int] = ()) -> None:
        with torch.inference_mode():
            self.structure = _Structure.of(roots)
            self.contents = list(self.structure.contents.values())
            found = self.structure.tensors.items()
            self.kept = _Kept.of((key, each) for key, each in found if key not in skip)
        self.states = [(each, _generator_state(each)) for _, each in self.structure.generators.values()]

    def restore(self) -> None:
        """Put back contents, values and the states of generators."""
        restore(self.contents, self.kept.tensors.values())
        for generator, state in self.states:
            _set_generator_state(generator, state)


def restore(contents: Iterable[tuple[_Holder, Mapping[Hashable, Any]]], tensors: Iterable[_KeptTensor]) -> None:
    """Put back the contents, then the values of the tensors."""
    for holder, content in contents:
        holder.write(content)
    with torch.inference_mode():  # the one mode that may write to every tensor
        for kept in tensors:
            kept.restore()


def _generator_state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, numpy.random.RandomState):
        return generator.get_state()
    return generator.bit_generator.state


def _set_generator_state(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator | numpy.random.RandomState):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.bit_generator.state = state


@dataclass(frozen=True)
class _Change:
    """The contents of a holder before the first call, after it, and after the second call."""

    holder: _Holder
    before: Mapping[Hashable, Any]
    after: Mapping[Hashable, Any]
    latest: Mapping[Hashable, Any]

    @property
    def varying(self) -> list[Hashable]:
        """The entries that the second call changed again."""
        return [name for name in {**self.after, **self.latest} if not self._same(name, self.after, self.latest)]

    @property
    def once(self) -> list[Hashable]:
        """The entries that the first call set, and the second one did not touch."""
        names = {**self.before, **self.after}
        varying = set(self.varying)
        return [n for n in names if n not in varying and not self._same(n, self.before, self.after)]

    def settled(
        self, first: _Structure, known: Container[tuple[int, str]]
    ) -> tuple[dict[Hashable, Any], dict[Hashable, Any]]:
        """Return (the content to restore, the entries in it that the first call made and that hold tensors).

        `first` is the structure after the first call, `known` are the keys of the holders of before it.
        """
        before, varying = dict(self.before), self.varying
        by_name = self.holder.kind in ("attributes", "slots")
        if varying and not by_name and self.after.keys() != self.latest.keys():
            return before, {}  # it grows: its first entries are not made once, they are of the first call
        once = [name for name in self.once if name in self.after]
        made = {name: self.after[name] for name in once if _is_made_once(self.after[name], first, known)}
        if self.holder.kind in ("sequence", "set") and len(made) < len(once):
            return before, {}
        content = before | made
        if made and not any(_tensors_in(self.latest.get(name)) for name in varying):
            # Flags and sizes that go with these tensors; where others are assigned in each call, they go with those.
            content |= {name: self.after[name] for name in once}
        return content, made

    def counting(self) -> list[str]:
        """Return the paths of numbers that each call changes, and of what has another size after it."""
        paths = []
        for name in self.varying:
            old, new = self.after.get(name, _MISSING), self.latest.get(name, _MISSING)
            is_number = isinstance(new, int | float) and not isinstance(new, bool)
            if is_number or _MISSING in (old, new) or _shapes(old) != _shapes(new):
                paths.append(
                    self.holder.place(name) if self.holder.kind in ("attributes", "slots") else self.holder.path
                )
        return paths

    def reassigned(self) -> list[str]:
        """Return the paths to which each call assigns other tensors."""
        return [self.holder.place(name) for name in self.varying if _tensors_in(self.latest.get(name))]

    @staticmethod
    def _same(name: Hashable, one: Mapping[Hashable, Any], other: Mapping[Hashable, Any]) -> bool:
        return _same(one.get(name, _MISSING), other.get(name, _MISSING))


def _is_made_once(value: Any, first: _Structure, known: Container[tuple[int, str]]) -> bool:
    """Return whether a value that the first call made holds tensors and is, apart from their values, as it was then."""
    structure = _Structure.of({"": value})
    if not structure.tensors:
        return False
    for key, (_, content) in structure.contents.items():
        then = first.contents[key][1] if key in first.contents else None
        if key not in known and (then is None or then.keys() != content.keys()):
            return False
        if key not in known and then is not None and not all(_same(then[name], each) for name, each in content.items()):
            return False
    return True


def _tensors_in(value: Any) -> list[Tensor]:
    return [tensor for _, tensor in _Structure.of({"": value}).tensors.values()]


def _shapes(value: Any) -> list[torch.Size]:
    return [tensor.shape for tensor in _tensors_in(value)]


def _is_counter(tensor: Tensor) -> bool:
    """Return whether a tensor that each call changes may count calls: a position, a length."""
    is_integer = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    return is_integer and tensor.numel() <= _COUNTER


def _version(tensor: Tensor) -> int:
    """Return how often the tensor was written to; 0 where torch does not count."""
    return 0 if tensor.is_inference() else tensor._version


class State:
    """The state of a module and of the containers in its inputs, and how it is put back.

    It is learned from the first two calls: `reset` takes a snapshot before them, `observe` is called after each, and
    `settle` then finds out what they changed. What the first call makes once (a mask, a table, the tensors of a
    transformers StaticCache) stays, with its first values; the rest is as it was before the first call. `policy` is
    "snapshot", "reset" (by the module's method) or "none".
    """

    def __init__(self, module: nn.Module, inputs: Any, policy: str) -> None:
        self.module, self.policy = module, policy
        self._inputs = inputs
        self._roots = {"": module, "inputs": inputs} if policy == "snapshot" else {"inputs": inputs}
        self._start: Snapshot | None = None
        self._observed: list[_Structure] = []
        self._first = _Kept({}, {})  # values after the first call of tensors that it made
        self._contents: _Contents = []
        self._tensors: list[_KeptTensor] = []
        self._rewound: _Contents = []
        self._versions: dict[int, int] = {}
        self._settled: Sequence[tuple[_Contents, list[_KeptTensor], _Contents]] = ()
        #: Settled: the tensors that calls change.
        self.changed: tuple[Tensor, ...] | None = None
        #: Settled: paths of what counts calls or grows with them.
        self.counting: tuple[str, ...] = ()
        #: Settled: paths to which each call assigns another tensor, which a captured graph cannot follow.
        self.reassigned: tuple[str, ...] = ()
        #: What is not restored: its path and why.
        self.not_restored: dict[str, str] = {}

    @property
    def is_started(self) -> bool:
        """Whether the state of before the first call is known."""
        return self._start is not None

    def reset(self) -> None:
        """Restore the state of before the first call; the first time, take the snapshot."""
        if self._start is None:
            # Tensors that are inputs are drawn again before each check.
            self._start = start = Snapshot(self._roots, {id(tensor) for tensor in tensors_in(self._inputs)})
            self._contents, self._tensors = list(start.contents), list(start.kept.tensors.values())
            self.not_restored = start.structure.closed | start.kept.failures
            self._versions = {key: _version(tensor) for key, (_, tensor) in start.structure.parameters.items()}
        else:
            restore(self._contents, self._tensors)
            for generator, state in self._start.states:
                _set_generator_state(generator, state)
        if self.policy == "reset":
            module: Any = self.module
            module.reset()

    def restore_inputs(self) -> None:
        """Put back the containers and the objects in the inputs, before their tensors are drawn again."""
        if self._start is not None:
            contents = [each for each in self._contents if each[0].path.startswith("inputs")]
            restore(contents, (kept for kept in self._tensors if kept.path.startswith("inputs")))

    def observe(self) -> None:
        """Look at what a call has left; only after the first two calls."""
        if self._start is not None and self.changed is None and len(self._observed) < 2:
            structure = _Structure.of(self._roots)
            if not self._observed:
                known = self._start.structure.tensors
                with torch.inference_mode():
                    self._first = _Kept.of((k, each) for k, each in structure.tensors.items() if k not in known)
            self._observed.append(structure)

    def settle(self) -> bool:
        """Learn from the observed calls; return whether they made something that stays, which the caller must check."""
        if self._start is None or len(self._observed) < 2:
            return False
        with torch.inference_mode():
            self._learn(self._start, *self._observed)
        self._observed = []
        self.keep_lazy(True)
        return len(self._settled) > 1

    def keep_lazy(self, kept: bool) -> None:
        """Choose whether what the first call made stays, or is made again by the first call after each reset."""
        self._contents, self._tensors, self._rewound = self._settled[0 if kept else 1]

    def rewind(self) -> None:
        """Restore what counts calls or grows with them, so that the next call does the work of the first."""
        restore(self._rewound, (kept for kept in self._tensors if kept.bytes <= _SMALL))

    @property
    def bytes(self) -> int:
        """Bytes of the copies that are kept."""
        return sum(kept.bytes for kept in self._tensors)

    @property
    def on_host(self) -> bool:
        """Whether copies of tensors on a device are kept in host memory."""
        return any(kept.values.device != kept.tensor.device for kept in self._tensors)

    def keep(self) -> Callable[[], None]:
        """Take a snapshot of the state as it is now; return the function that restores it."""
        state_tensors: Any = getattr(self.module, "state_tensors", None)
        if self.policy != "snapshot" and state_tensors is not None:
            return Snapshot({"state": list(state_tensors())}).restore
        constant: set[int] = set()
        if self._start is not None and self.changed is not None:
            constant = set(self._start.structure.tensors) - {id(tensor) for tensor in self.changed}
        return Snapshot({"": self.module}, constant).restore

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (path, tensor) for each buffer and each tensor that the module's attributes hold now."""
        yield from _Structure.of({"": self.module}).tensors.values()

    def rewind_us(self) -> float:
        """Return the host time of one rewind in microseconds, the shortest of several."""
        times = []
        for _ in range(5):
            started = perf_counter()
            self.rewind()
            times.append(1e6 * (perf_counter() - started))
        return min(times)

    def _learn(self, start: Snapshot, first: _Structure, second: _Structure) -> None:
        contents, rewound, counting, reassigned = [], [], [], []
        lazy: dict[int, Any] = {}  # by the id of a tensor that the first call made: what was in its place
        known = start.structure.contents
        for key, (holder, before) in known.items():
            after = first.contents[key][1] if key in first.contents else before
            latest = second.contents[key][1] if key in second.contents else after
            change = _Change(holder, before, after, latest)
            content, made = change.settled(first, known)
            contents.append((holder, content))
            for name, value in made.items():
                lazy |= {key: before.get(name) for key in _Structure.of({"": value}).tensors}
            if content.keys() != latest.keys() or not all(_same(each, latest[name]) for name, each in content.items()):
                rewound.append((holder, content))
                # Each call gets the same inputs, also in what it changes without counting.
                counting += change.counting() or ([holder.path] if holder.path.startswith("inputs") else [])
                reassigned += change.reassigned()
        changed = [kept for kept in start.kept.tensors.values() if not kept.is_unchanged()]
        ids = {id(kept) for kept in changed}
        tensors = [k for k in start.kept.tensors.values() if id(k) in ids or k.bytes <= _SMALL]
        copies = {id(kept.tensor): kept for kept in start.kept.tensors.values()}
        start.kept.tensors.clear()
        made = []
        for key, old in lazy.items():
            kept = self._first.tensors.get(key)
            if kept is None or kept.is_unchanged():
                continue
            # Its values before the first call: those of the tensor in whose place it is, else zeros.
            source = copies.get(id(old))
            if source is not None and source.values.shape == kept.values.shape:
                kept.values.copy_(source.values)
            else:
                kept.zero()
            made.append(kept)
        self._first = _Kept({}, {})
        changed += made
        counting += [kept.path for kept in changed if _is_counter(kept.tensor)]
        for key, (path, tensor) in start.structure.parameters.items():
            if _version(tensor) != self._versions[key]:
                self.not_restored[path] = "a parameter that the call writes to"
        self._settled = [(contents, tensors + made, rewound)]
        if lazy:
            strict = [(holder, known[holder.key][1]) for holder, _ in rewound]
            self._settled.append((start.contents, tensors, strict))
        self.changed = tuple(kept.tensor for kept in changed)
        self.counting, self.reassigned = tuple(dict.fromkeys(counting)), tuple(dict.fromkeys(reassigned))
