"""What a call changes: the one observer of calls, and what it means for a recipe that runs no Python in later calls.

Between two calls everything that the module and its inputs reach is walked (`Structure`) and compared: Python numbers,
the tensors that attributes and containers hold, generators. Values of tensors are compared with copies, and the
operators of a call are watched for writes (`Watch`), which also finds a write of equal values.

A CUDA graph, an exported program or a rewritten graph repeats the work that the device did once. A number that each
call changes keeps its value, and an attribute that each call assigns anew stays the tensor that it was. Whether a later
call reads such an attribute is tested: eager calls are repeated with other values in it (`read_later`).
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from profiling.components.outputs import Outputs, difference
from profiling.components.snapshot import (
    GENERATORS,
    MISSING,
    Holder,
    Kept,
    Structure,
    bits,
    differ,
    generator_state,
    same,
)
from profiling.components.trees import map_tensors, tensors_in, written_tensors

#: Most calls before the state of a module is known: they end once its structure repeats.
WARM_CALLS = 4
#: Most values of a number that a sentence lists.
_SHOWN = 4
#: Most attributes that are tested alone, after all of them together changed an output.
_ALONE = 8
#: Two eager calls that differ by less are equal: on a GPU, sums have no fixed order.
QUIET = 1e-5


class Watch(TorchDispatchMode):
    """Notes the addresses of the storages that operators write to, in `written`.

    Of the tensors in `guarded`, each with its path, a copy is kept before the first write.
    """

    supports_higher_order_operators = True

    def __init__(self, guarded: Iterable[tuple[str, Tensor]] = ()) -> None:
        super().__init__()
        self.written: set[int] = set()
        self.kept = Kept()
        self._guarded = {storage_of(tensor): (path, tensor) for path, tensor in guarded}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Leave compiled code alone: inside a mode, Dynamo would run it eagerly or refuse (FlexAttention)."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and note its writes."""
        return self._run(func, args, kwargs or {})

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        if not isinstance(func, torch._ops.OpOverload):  # a higher-order operator, such as FlexAttention's
            return func(*args, **kwargs)
        for tensor in written_tensors(func, args, kwargs):
            address = storage_of(tensor)
            if not address:  # an empty tensor has none
                continue
            if address in self._guarded and address not in self.written:
                self.kept.add(address, *self._guarded[address])
            self.written.add(address)
        return func(*args, **kwargs)


class _WatchWithoutDynamo(Watch):
    """The same where Dynamo is not loaded. Torch would import it to keep it out of `Watch`, which takes a second."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._run(func, args, kwargs or {})


def watching(guarded: Iterable[tuple[str, Tensor]]) -> Watch:
    """Return a Watch that Dynamo does not trace, with tensors to guard and their paths."""
    return (Watch if "torch._dynamo" in sys.modules else _WatchWithoutDynamo)(guarded)


def storage_of(tensor: Tensor) -> int:
    """Return the address of the memory that a tensor is a view of; 0 where it has none."""
    with suppress(RuntimeError):  # a sparse tensor has none
        return tensor.untyped_storage().data_ptr()
    return 0


@dataclass(frozen=True)
class Effects:
    """What the calls of a trajectory changed, by path in the module (`cache.keys`) or its inputs (`inputs['x']`).

    Attributes:
        numbers: each value that Python code changed (numbers, flags, text), before the first call and after each.
        assigned: attributes and entries of containers to which calls assigned other tensors, or added some, and those
            that hold an input: the next call has another one.
        held: those of `assigned` that hold an input.
        unread: those of `assigned` that no later call reads: they only hold what a call has made.
        written: tensors of the module, or of objects among the inputs, that calls wrote to in place.
        inputs: tensors given as arguments that calls wrote to.
        parameters: parameters that calls wrote to.
        generators: random number generators that calls advanced.
        aliases: outputs that share memory with what the module keeps, as `output is PATH`.

    """

    numbers: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    assigned: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    generators: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()

    def without(self, ignored: Collection[str]) -> Effects:
        """Return the effects without those on `ignored` paths and on what lies below them."""

        def kept(path: str) -> bool:
            return not any(is_below(path, each) for each in ignored)

        numbers = {path: values for path, values in self.numbers.items() if kept(path)}
        return replace(self, numbers=numbers, assigned=tuple(filter(kept, self.assigned)))

    @property
    def carried(self) -> tuple[str, ...]:
        """Attributes and entries that are assigned anew, and that a later call reads."""
        return tuple(path for path in self.assigned if path not in self.unread)

    @property
    def overwritten(self) -> str | None:
        """Return in one line what a later call reads of an input, in whose memory the next one lies; None: nothing."""
        found = [path for path in self.held if path in self.carried]
        if not found:
            return None
        return (
            f"`{found[0]}` holds an input, and a later call reads it: the inputs of the next call are written into the "
            "same memory. Keep a copy (x.clone())."
        )

    def obstacles(self) -> list[tuple[str, str]]:
        """Return (what a replay cannot follow, what to write instead) for each reason, the likeliest first."""
        found = [
            (f"`{path}` is a Python {_kind(values)} that each call changes ({_sequence(values)})", _KEEP_IN_TENSOR)
            for path, values in self.numbers.items()
        ]
        found += [
            (f"`{path}` is assigned anew by each call, and a later call reads it", _COPY) for path in self.carried
        ]
        return found

    def refusal(self) -> str | None:
        """Return in one line why what runs no Python cannot follow the state of the module; None: it can."""
        found = self.obstacles()
        if not found:
            return None
        reasons = "; ".join(reason for reason, _ in found[:3])
        more = f"; and {len(found) - 3} more" if len(found) > 3 else ""
        return f"cannot follow the module's state: {reasons}{more}. {found[0][1]}"

    def explanation(self) -> str | None:
        """Return in one line which effect may be the cause of outputs that are wrong from a later call on."""
        if found := self.obstacles():
            return ". ".join(found[0])
        if self.generators:
            return f"`{self.generators[0]}` is a random number generator, which draws other numbers in each call"
        if self.written or self.inputs:
            return f"calls write to `{(*self.written, *self.inputs)[0]}`"
        return None

    def notes(self) -> list[str]:
        """Return a line for each effect that is no fault, and that a user of a captured graph should know."""
        return [
            f"`{path}` holds what a call has made: a replay does not assign it, so it stays what the capture left"
            for path in self.unread
        ]

    def lines(self) -> list[str]:
        """Return a line for each kind of effect, for `check=true`."""
        lines = [
            f"`{path}` {_sequence(values)}: torch.compile may compile once a value; a CUDA graph freezes it"
            for path, values in self.numbers.items()
        ]
        for path in self.assigned:
            which = "no later call" if path in self.unread else "a later call"
            lines.append(f"`{path}` is assigned anew by each call, and {which} reads it")
        for words, paths in (
            ("written in place", self.written),
            ("inputs that the call writes to (state: carried over from call to call)", self.inputs),
            ("weights that the call writes to", self.parameters),
            ("random number generators that it advances", self.generators),
            ("outputs that share memory with state", self.aliases),
        ):
            if paths:
                more = f" and {len(paths) - _ALONE} more" if len(paths) > _ALONE else ""
                lines.append(f"{words}: {', '.join(paths[:_ALONE])}{more}")
        return lines


def is_below(path: str, place: str) -> bool:
    """Return whether a path is `place`, or leads to something in it."""
    return path == place or path.startswith((f"{place}.", f"{place}["))


_KEEP_IN_TENSOR = "Keep it in a tensor on the device and change that in place (self.pos.add_(1))."
_COPY = "Keep one tensor and write to it in place (copy_)."


def _kind(values: Sequence[Any]) -> str:
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) != 1:
        return "value"
    kind = kinds.pop()
    if issubclass(kind, numpy.number):
        return "number"
    return {int: "number", float: "number", bool: "flag", str: "text"}.get(kind, "value")


def _sequence(values: Sequence[Any]) -> str:
    texts = [repr(value.item() if isinstance(value, numpy.generic) else value) for value in values[:_SHOWN]]
    shown = [text if len(text) < 20 else f"{text[:20]}…" for text in texts]
    return " → ".join(shown) + (" → …" if len(values) > _SHOWN else "")


class Observer:
    """Compares what `roots` reach after each call with before it, and collects the effects.

    `kept` are copies of the tensors that are compared by value. `inputs` has the paths of tensors given as arguments,
    by their ids: what they hold changes between calls, too, and is compared before and after each.
    """

    def __init__(self, roots: Mapping[str, Any], kept: Kept, inputs: Mapping[int, str] | None = None) -> None:
        self._roots, self._inputs = roots, inputs or {}
        self.copies = dict(kept.tensors)
        self._compared = {key: each for key, each in kept.tensors.items() if key not in self._inputs}
        self._given = Kept()
        self.before = Structure.of(roots)
        self._states = {path: _fingerprint(each) for path, each in self.before.generators.values()}
        self._numbers: dict[str, list[Any]] = {}
        self._found: dict[str, dict[str, None]] = {
            name: {} for name in ("assigned", "held", "written", "inputs", "parameters", "generators", "aliases")
        }
        #: Ids of the tensors that calls wrote to, of those that are compared; keys of holders whose content changed.
        self.changed: dict[int, None] = {}
        self.touched: set[tuple[int, str]] = set()
        self.watch = watching(self.before.parameters.values())

    @property
    def effects(self) -> Effects:
        """The effects of all calls so far."""
        found = {name: tuple(paths) for name, paths in self._found.items()}
        return Effects(numbers={path: tuple(values) for path, values in self._numbers.items()}, **found)

    @contextmanager
    def calling(self, *, watched: bool = True) -> Iterator[None]:
        """Enclose a call; with `watched`, its operators are watched too, which some code does not allow."""
        tensors = self.before.tensors
        self._given = Kept.of((key, (path, tensors[key][1])) for key, path in self._inputs.items() if key in tensors)
        with self.watch if watched else nullcontext():
            yield

    def after_call(self, output: Any = None) -> None:
        """Compare with the call before."""
        before, now = self.before, Structure.of(self._roots)
        moved = self._compare_values(before, now)
        for key, (_, content) in before.contents.items():
            if key not in now.contents or differ(content, now.contents[key][1]):
                self.touched.add(key)
        for path, values in self._numbers.items():
            if path not in moved:
                values.append(values[-1])
        for name, copies in (("written", self._compared), ("inputs", self._given.tensors)):
            for key, kept in list(copies.items()):
                if storage_of(kept.tensor) in self.watch.written or not kept.is_unchanged():
                    self._found[name][kept.path] = None
                    self.changed[key] = None
                    del copies[key]
        for path, parameter in now.parameters.values():
            if storage_of(parameter) in self.watch.written:
                self._found["parameters"][path] = None
        for path, generator in now.generators.values():
            state = _fingerprint(generator)
            if self._states.setdefault(path, state) != state:
                self._found["generators"][path] = None
                self._states[path] = state
        drawn = (key for key, path in self._inputs.items() if path not in self._found["inputs"])
        given = {storage_of(before.tensors[key][1]) for key in drawn if key in before.tensors} - {0}
        for path, each in now.values.items():
            if isinstance(each, Tensor) and storage_of(each) in given and not is_below(path, "inputs"):
                entry = now.entries.get(path)
                name = path if entry is None else name_of(*entry)
                self._found["assigned"][name] = self._found["held"][name] = None
        held = {storage_of(each): path for path, each in now.values.items() if isinstance(each, Tensor)}
        held.pop(0, None)
        tensors = list[Tensor]()
        with suppress(RecursionError):  # it contains itself, which is said where outputs are compared
            tensors = tensors_in(output)
        for number, tensor in enumerate(tensors):
            if (path := held.get(storage_of(tensor))) is not None:
                self._found["aliases"][f"output {number} is {path}"] = None
        self.before = now

    def _compare_values(self, before: Structure, now: Structure) -> set[str]:
        """Note what is assigned or counted; return the paths of the numbers that the call changed."""
        holds, moved = (Tensor, numpy.ndarray, *GENERATORS), set[str]()
        for path in {**before.values, **now.values}:
            old, new = before.values.get(path, MISSING), now.values.get(path, MISSING)
            if same(old, new):
                continue
            entry = now.entries.get(path) or before.entries.get(path)
            grown = old is MISSING or new is MISSING
            if isinstance(old, holds) or isinstance(new, holds) or (grown and _is_part(path, entry)):
                self._found["assigned"][path if entry is None else name_of(*entry, grown=grown)] = None
            elif not grown:
                self._numbers.setdefault(path, [old]).append(new)
                moved.add(path)
        return moved


def _fingerprint(generator: Any) -> Any:
    state = generator_state(generator)
    return state.cpu().numpy().tobytes() if isinstance(state, Tensor) else repr(state)


def name_of(holder: Holder, key: Any, *, grown: bool = False) -> str:
    """Return the path of an entry: that of the list where it is one of a list, or of the dict that has `grown`."""
    whole = holder.kind in ("sequence", "set") or (grown and holder.kind == "items" and not holder.dotted)
    return holder.path if whole else holder.place(key)


def _is_part(path: str, entry: tuple[Holder, Any] | None) -> bool:
    """Return whether a value is one of a container, and no attribute of its own: the container's length may be read."""
    return entry is not None and (entry[0].kind not in ("attributes", "slots") or path != entry[0].place(entry[1]))


def read_later(
    paths: Sequence[str],
    roots: Mapping[str, Any],
    play: Callable[[Callable[[], None]], list[Outputs]],
) -> tuple[str, ...]:
    """Return those of `paths` whose values a later call reads.

    Args:
        paths: attributes and entries that calls assign anew.
        roots: what the paths begin at.
        play: makes some eager calls from the start of a trajectory, calling its argument before each, and returns the
            outputs of each and the state after the last.

    """
    if not paths:
        return ()
    expected = play(lambda: None)

    def changes(some: Sequence[str]) -> bool:
        frozen = _Frozen(roots, some)
        try:
            outputs = play(frozen)
        except Exception:  # it met a value that it cannot use
            return True
        finally:
            frozen.undo()
        pairs = zip(outputs, expected, strict=True)
        return any((found := difference(*pair)).fault is not None or found.error > 2 * QUIET for pair in pairs)

    if not changes(paths):
        return ()
    if len(paths) == 1 or len(paths) > _ALONE:
        return tuple(paths)
    return tuple(path for path in paths if changes([path])) or tuple(paths)


class _Frozen:
    """Before each call, puts back what was in some places before the first one, with other numbers in its tensors.

    A call that reads none of them returns the same as without this, and so does one that a graph replays.
    """

    def __init__(self, roots: Mapping[str, Any], paths: Sequence[str]) -> None:
        self._roots, self._paths = roots, paths
        self._first: dict[Any, tuple[Holder, dict[Any, Any]]] | None = None  # by place: a call may replace the holder

    def __call__(self) -> None:
        holders = [(_place(holder), holder, content) for holder, content in Structure.of(self._roots).contents.values()]
        if self._first is None:
            found = ((place, holder, self._frozen(holder, content)) for place, holder, content in holders)
            self._first = {place: (holder, first) for place, holder, first in found if first is not None}
        for place, holder, now in holders:
            if place in self._first:
                first = self._first[place][1]
                others = {key: value if value is MISSING else _other(value) for key, value in first.items()}
                holder.write(self._merged(holder, now, others))

    def undo(self) -> None:
        """Let the places hold the objects again that they held at first."""
        for holder, first in (self._first or {}).values():
            holder.write(self._merged(holder, holder.read(), first))

    def _frozen(self, holder: Holder, content: Mapping[Any, Any]) -> dict[Any, Any] | None:
        """Return what of a holder is put back, MISSING for attributes that later calls add; None: nothing."""
        if holder.path in self._paths:
            return dict(content)
        named = {holder.place(key): key for key in content if not isinstance(content[key], _LISTS)}
        added = () if holder.kind == "items" and not holder.dotted else (path.rpartition(".") for path in self._paths)
        first: dict[Any, Any] = {name: MISSING for above, _, name in added if above == holder.path}
        first = {name: MISSING for name in first if name not in content}
        first |= {named[path]: content[named[path]] for path in self._paths if path in named}
        return first or None

    def _merged(self, holder: Holder, now: Mapping[Any, Any], first: Mapping[Any, Any]) -> dict[Any, Any]:
        """Return the content of a holder with that of `first` in it, in the order that it has."""
        if holder.path in self._paths:
            return dict(first)
        return {key: value for key, value in {**now, **first}.items() if value is not MISSING}


#: Containers that are holders of their own, and keep their identity.
_LISTS = (list, deque, set, MutableMapping)


def _place(holder: Holder) -> tuple[Any, ...]:
    return holder.path, holder.kind, id(holder.owner) if holder.dotted else 0


def _other(value: Any) -> Any:
    """Return `value` with other numbers in the tensors that it holds, in memory of their own."""
    if isinstance(value, numpy.ndarray):
        return _other_values(torch.from_numpy(value)).numpy()
    return map_tensors(_other_values, value)


def _other_values(tensor: Tensor) -> Tensor:
    """Return other values in the range of the present ones: an index stays one, so that no kernel reads elsewhere."""
    if tensor.layout != torch.strided or not tensor.numel():
        return tensor
    flat = tensor.detach().clone().reshape(-1)
    rolled = flat.roll(1)
    if not torch.equal(bits(rolled), bits(flat)):
        return rolled.view(tensor.shape)
    if tensor.dtype == torch.bool:
        return (~flat).view(tensor.shape)
    if tensor.is_floating_point() or tensor.is_complex():
        half = flat.float() if flat.itemsize < 4 else flat
        return torch.where(half == 0, 0.5, half / 2).to(tensor.dtype).view(tensor.shape)
    return torch.where(flat > 0, flat - 1, flat + 1).view(tensor.shape)
