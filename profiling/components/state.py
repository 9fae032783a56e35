"""What calls change in a module, learned from its first two calls, and put back before each measurement."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from profiling.components.snapshot import (
    MISSING,
    Contents,
    Holder,
    Kept,
    KeptTensor,
    Snapshot,
    Structure,
    restore,
    same,
)
from profiling.components.trees import keyed_leaves, tensors_in

#: A copy of a tensor that the first calls left unchanged is kept up to this size, since it costs nothing.
_SMALL = 2**20
#: Values that the first call may set as a flag.
_PLAIN = (bool, int, float, str, type(None))
#: A tensor of integers with at most so many elements may count calls.
_COUNTER = 16


@dataclass(frozen=True)
class _Change:
    """The contents of a holder before the first call, after it, and after the second call."""

    holder: Holder
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
        self, first: Structure, known: Container[tuple[int, str]]
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

    def flags(self) -> dict[Hashable, Any]:
        """Return the plain values that the first call set in an object of which the second one changed nothing.

        Such a flag may go with something outside of the walk: hooks that the first call registers, for example.
        """
        if self.varying or self.holder.kind not in ("attributes", "slots"):
            return {}
        return {n: self.after[n] for n in self.once if isinstance(self.after.get(n, MISSING), _PLAIN)}

    def counting(self) -> list[str]:
        """Return the paths of numbers that each call changes, and of what has another size after it."""
        paths = []
        for name in self.varying:
            old, new = self.after.get(name, MISSING), self.latest.get(name, MISSING)
            is_number = isinstance(new, int | float) and not isinstance(new, bool)
            if is_number or MISSING in (old, new) or _shapes(old) != _shapes(new):
                paths.append(
                    self.holder.place(name) if self.holder.kind in ("attributes", "slots") else self.holder.path
                )
        return paths

    def reassigned(self) -> list[str]:
        """Return the paths to which each call assigns other tensors."""
        return [self.holder.place(name) for name in self.varying if _tensors_in(self.latest.get(name))]

    @staticmethod
    def _same(name: Hashable, one: Mapping[Hashable, Any], other: Mapping[Hashable, Any]) -> bool:
        return same(one.get(name, MISSING), other.get(name, MISSING))


def _is_made_once(value: Any, first: Structure, known: Container[tuple[int, str]]) -> bool:
    """Return whether a value that the first call made holds tensors and is, apart from their values, as it was then."""
    structure = Structure.of({"": value})
    if not structure.tensors:
        return False
    for key, (_, content) in structure.contents.items():
        then = first.contents[key][1] if key in first.contents else None
        if key not in known and (then is None or then.keys() != content.keys()):
            return False
        if key not in known and then is not None and not all(same(then[name], each) for name, each in content.items()):
            return False
    return True


def _tensors_in(value: Any) -> list[Tensor]:
    return [tensor for _, tensor in Structure.of({"": value}).tensors.values()]


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
        self._observed: list[Structure] = []
        self._first = Kept({}, {})  # values after the first call of tensors that it made
        self._contents: Contents = []
        self._tensors: list[KeptTensor] = []
        self._rewound: Contents = []
        self._versions: dict[int, int] = {}
        self._settled: Sequence[tuple[Contents, list[KeptTensor], Contents]] = ()
        #: Settled: the tensors that calls change.
        self.changed: tuple[Tensor, ...] | None = None
        #: Settled: paths of state that grows with every call, such as a counter.
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
            self._start.restore_generators()
        if self.policy == "reset":
            module: Any = self.module
            module.reset()

    @contextmanager
    def replacing(self) -> Iterator[None]:
        """Keep what the block replaces in the module (submodules, buffers, their memory) through later resets.

        The block begins and ends in the state before the first call.
        """
        lists = [(self._contents, self._tensors, self._rewound), *self._settled]
        contents = [each for both in lists for each in (*both[0], *both[2])]
        old = {holder.key: holder.read() for holder, _ in contents}
        yield
        others: dict[int, Tensor] = {}  # by the id of the tensor that was replaced
        for holder, content in contents:
            before, now = old[holder.key], holder.read()
            for name in before.keys() - now.keys():
                content.pop(name, None)
            for name, value in now.items():
                if before.get(name, MISSING) is value:
                    continue
                content[name] = value
                if isinstance(value, Tensor) and isinstance(before.get(name), Tensor):
                    others[id(before[name])] = value
        for kept in {id(kept): kept for _, tensors, _ in lists for kept in tensors}.values():
            kept.follow(others.get(id(kept.tensor), kept.tensor))
        if self.changed is not None:
            self.changed = tuple(others.get(id(tensor), tensor) for tensor in self.changed)
            self._forget_replaced()

    def _forget_replaced(self) -> None:
        """Let go of what the module no longer reaches, so that replaced weights take no memory."""
        assert self._start is not None
        known, now = self._start.structure.tensors, Structure.of(self._roots)
        for contents, _, rewound in ((self._contents, self._tensors, self._rewound), *self._settled):
            for entries in (contents, rewound):
                entries[:] = [entry for entry in entries if entry[0].key in now.contents]
        now.tensors = {key: found for key, found in now.tensors.items() if key in known}  # not what a transform added
        self._start.structure, self._start.contents = now, []

    def restore_inputs(self) -> None:
        """Put back the containers and the objects in the inputs, before their tensors are drawn again.

        Not the objects between the two calls that show what calls change: what the first call makes once (the tensors
        of a transformers StaticCache) would be made again by the second.
        """
        if self._start is not None:
            kept = self._object_structure() if len(self._observed) == 1 else Structure()
            contents = [each for each in self._contents if each[0].path.startswith("inputs")]
            restore(
                [each for each in contents if each[0].key not in kept.contents],
                [t for t in self._tensors if t.path.startswith("inputs") and id(t.tensor) not in kept.tensors],
            )

    @property
    def has_input_objects(self) -> bool:
        """Whether there are objects among the inputs that a call may change."""
        return bool(self._object_structure().contents)

    def _object_structure(self) -> Structure:
        leaves = (leaf for _, leaf in keyed_leaves(self._inputs) if not isinstance(leaf, Tensor))
        return Structure.of({f"inputs{number}": leaf for number, leaf in enumerate(leaves)})

    def observe(self) -> None:
        """Look at what a call has left; only after the first two calls."""
        if self._start is not None and self.changed is None and len(self._observed) < 2:
            structure = Structure.of(self._roots)
            if not self._observed:
                known = self._start.structure.tensors
                with torch.inference_mode():
                    self._first = Kept.of((k, each) for k, each in structure.tensors.items() if k not in known)
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
        """Restore state that grows with every call, so that the next call does the work of the first."""
        restore(self._rewound, (kept for kept in self._tensors if kept.bytes <= _SMALL))

    def release(self) -> None:
        """Free the copies, after the last `reset`."""
        self._start, self._contents, self._tensors, self._rewound, self._settled = None, [], [], [], ()

    @property
    def counted(self) -> str:
        """State that grows with every call, in words: `at, history and 3 more`."""
        more = len(self.counting) - 2
        return ", ".join(self.counting[:2]) + (f" and {more} more" if more > 0 else "")

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
        """Yield (path, tensor) of each buffer, and of what attributes and objects among the inputs (caches) hold."""
        inputs = {id(tensor) for tensor in tensors_in(self._inputs)}
        for key, found in Structure.of({"": self.module, "inputs": self._inputs}).tensors.items():
            if key not in inputs:
                yield found

    def rewind_us(self) -> float:
        """Return the host time of one rewind in microseconds, the shortest of several."""
        times = []
        for _ in range(5):
            started = perf_counter()
            self.rewind()
            times.append(1e6 * (perf_counter() - started))
        return min(times)

    def _learn(self, start: Snapshot, first: Structure, second: Structure) -> None:
        contents, rewound, counting, reassigned, flagged = [], [], [], [], []
        lazy: dict[int, Any] = {}  # by the id of a tensor that the first call made: what was in its place
        known, objects = start.structure.contents, self._object_structure().contents
        for key, (holder, before) in known.items():
            after = first.contents[key][1] if key in first.contents else before
            latest = second.contents[key][1] if key in second.contents else after
            change = _Change(holder, before, after, latest)
            content, made = change.settled(first, known)
            if holder.path.startswith("inputs") and key not in objects:  # given anew to both calls
                content, made = dict(before), {}
            elif flags := change.flags():
                content = content | flags
                flagged.append(holder)
            contents.append((holder, content))
            for name, value in made.items():
                lazy |= {key: before.get(name) for key in Structure.of({"": value}).tensors}
            if content.keys() != latest.keys() or not all(same(each, latest[name]) for name, each in content.items()):
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
        self._first = Kept({}, {})
        changed += made
        counting += [kept.path for kept in changed if _is_counter(kept.tensor)]
        for key, (path, tensor) in start.structure.parameters.items():
            if _version(tensor) != self._versions[key]:
                self.not_restored[path] = "a parameter that the call writes to"
        self._settled = [(contents, tensors + made, rewound)]
        if lazy or flagged:
            holders = {holder.key: holder for holder in (*(each for each, _ in rewound), *flagged)}
            strict = [(holder, known[key][1]) for key, holder in holders.items()]
            self._settled.append((start.contents, tensors, strict))
        self.changed = tuple(kept.tensor for kept in changed)
        self.counting, self.reassigned = tuple(dict.fromkeys(counting)), tuple(dict.fromkeys(reassigned))
