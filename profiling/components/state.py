"""The state of a module and of its inputs: S0, the state after the warm calls, and how it is put back.

Measurements begin from S0, in which caches, masks and generators exist that a module makes in its first calls.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from profiling.components.effects import (
    QUIET,
    WARM_CALLS,
    Effects,
    Observer,
    Watch,
    is_below,
    name_of,
    read_later,
    watching,
)
from profiling.components.outputs import Outputs, difference, to_host
from profiling.components.snapshot import MISSING, Holder, Kept, Snapshot, Structure, differ
from profiling.components.trees import forms_of, keyed_tensors, named_tensors, other_form


class State:
    """The state of a module and of its inputs.

    `begin` is called before the warm calls and `settle` after them; `restore` then puts S0 back. `learn` is given what
    the calls of a trajectory change, so that only that is copied. `policy` is "snapshot", "reset" (by the module's
    method `reset()`, and the warm calls again) or "none" (only what the inputs hold is put back).

    Attributes:
        effects: what calls change, once a trajectory has been observed.
        changed: the tensors that calls write to; None before that.
        carried: ids of the tensors among the inputs that calls write to: they are state, and never drawn again.
        warm_calls: number of warm calls that S0 is the state after.
        not_restored: what is not put back: its path and why.

    """

    def __init__(self, module: nn.Module, inputs: Any, policy: str) -> None:
        self.module, self.policy = module, policy
        self._inputs = inputs
        self.roots: Mapping[str, Any] = {"": module, "inputs": inputs}
        self._restored = self.roots if policy == "snapshot" else {"inputs": inputs}
        self._cold: Snapshot | None = None
        self._warmed: list[tuple[Holder, dict[Hashable, Any]]] = []  # what the warm calls changed, as it was before
        self._given = Kept()  # values of the input tensors before the warm calls
        self._start: Snapshot | None = None
        self._parameters = Kept()  # those that calls write to
        self._forms = forms_of(inputs)
        self._tensors = [*named_tensors(inputs)]
        self.effects = Effects()
        self.changed: tuple[Tensor, ...] | None = None
        self.carried: frozenset[int] = frozenset()
        self.warm_calls = 0
        self.not_restored: dict[str, str] = {}

    @property
    def is_started(self) -> bool:
        """Whether S0 is known."""
        return self._start is not None

    def begin(self, *, keep_cold: bool = False) -> None:
        """Note the inputs before the warm calls; with `keep_cold` all state, for `restore_cold`."""
        self._given = Kept.of((id(each), (f"inputs{path}", each)) for path, each in self._input_tensors())
        if keep_cold:
            self._cold = Snapshot(self.roots)

    def warm_up(self, call: Callable[[int], bool], calls: int | None = None, *, watched: bool = True) -> int:
        """Make `calls` warm calls, by default until the structure of the state repeats; return their number.

        `call` is given the number of the call, from 0, and returns whether it could be made. For `restore_cold`,
        parameters that `watched` calls write to are kept.
        """
        form, made = None if calls is not None else Structure.of(self.roots).form(), 0
        with self._watch_parameters(self._cold) if watched and self._cold is not None else nullcontext():
            while made < (WARM_CALLS if calls is None else calls) and call(made):
                made += 1
                if calls is None:
                    before, form = form, Structure.of(self.roots).form()
                    if form == before:
                        break
        return made

    def settle(self, warm_calls: int) -> None:
        """Take the present state as S0."""
        self.warm_calls = warm_calls
        self.carried |= {key for key, kept in self._given.tensors.items() if not kept.is_unchanged()}
        drawn = {id(each) for _, each in self._input_tensors()} - self.carried
        self._start = Snapshot(self._restored, drawn)
        if self._cold is not None:
            known = self._cold.structure.contents.values()  # also what is not reached any more
            self._warmed = [each for each in known if differ(each[1], each[0].read())]
        self.not_restored = self._start.structure.closed | self._start.kept.failures

    def restore(self) -> None:
        """Put S0 back; of the policy "reset" only what the inputs hold."""
        assert self._start is not None
        self._start.restore()
        self._parameters.restore()

    def restore_cold(self) -> None:
        """Put back what was there before the warm calls; what they made, and later calls keep, stays allocated.

        A tensor that the warm calls made and that calls write to begins with zeros, and a generator with its seed.
        """
        assert self._cold is not None
        if self._start is None:  # a warm call has failed
            self.restore_unmade()
            return
        self.restore()
        first_made = self.made()
        with torch.inference_mode():
            for kept in self._start.kept.tensors.values():
                if kept.path in first_made:
                    kept.tensor.zero_()
        for key, (_, generator) in self._start.structure.generators.items():
            if key not in self._cold.structure.generators and isinstance(generator, torch.Generator):
                generator.manual_seed(generator.initial_seed())
        for holder, content in self._warmed:
            now = holder.read()
            made = {
                name
                for name, value in now.items()
                if content.get(name) is None and self._is_constant(holder, name) and _holds_tensors(value)
            }
            if holder.kind in ("sequence", "set"):
                holder.write(now if made and len(now) == len(content) else content)
            else:
                holder.write(content | {name: now[name] for name in made})
        self._cold.restore_values()

    def _is_constant(self, holder: Holder, key: Hashable) -> bool:
        """Whether calls only write into the tensors at or below an entry, assign nothing there anew, and keep it.

        Of a dict to which calls add entries, or take some from, no entry is sure to be kept.
        """
        path, places = name_of(holder, key), (*self.effects.carried, *self.effects.numbers)
        if holder.kind == "items" and holder.path in places:
            return False
        return not any(is_below(each, path) for each in places)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Put all state back after the block, also what only the first calls write, which S0 does not have."""
        assert self._cold is not None
        cold, now = self._cold.kept.tensors.items(), Snapshot(self.roots)
        written = Kept.of(
            (key, (each.path, each.tensor)) for key, each in cold if isinstance(each.tensor, nn.Parameter)
        )
        try:
            yield
        finally:
            now.restore()
            written.restore()

    def restore_unmade(self) -> None:
        """Put back what was there before the warm calls, without what they made."""
        assert self._cold is not None
        self._cold.restore()

    def made(self) -> list[str]:
        """Return the paths of the tensors that the warm calls made and that calls write to."""
        assert self._start is not None
        assert self._cold is not None
        known, changed = self._cold.structure.tensors, {id(tensor) for tensor in self.changed or ()}
        kept = self._start.kept.tensors.items()
        return [each.path for key, each in kept if key not in known and id(each.tensor) in changed]

    def first_values_fault(self, call: Callable[[], Any]) -> str | None:
        """Return in one line why zeros in what the first call makes are no start of a session; None: they are.

        The module's first call, which makes it, is compared with one on what is there already. `call` is eager, and
        given the same inputs each time.
        """
        made = self.made()
        if not made:
            return None
        now = Structure.of(self.roots).contents.values()
        outputs = []
        for restore_first in (self.restore_cold, self.restore_unmade):
            restore_first()
            outputs.append(to_host(output=call()))
            for holder, content in now:
                holder.write(content)
        self.restore_cold()
        found = difference(*outputs)
        if found.fault is None and found.error <= QUIET:
            return None
        return (
            f"`{made[0]}` is made in the first call with values that cannot be put back: make it in __init__ "
            "(register_buffer)"
        )

    def observer(self) -> Observer:
        """Return what observes the calls of a trajectory, from S0."""
        assert self._start is not None
        inputs = {id(each): f"inputs{path}" for path, each in self._input_tensors()}
        copied = {**self._start.kept.tensors}
        others = ((k, each) for k, each in Structure.of(self.roots).tensors.items() if k not in {**copied, **inputs})
        copies = Kept({**copied, **Kept.of(others).tensors})
        return Observer(self.roots, copies, inputs)

    def learn(self, observer: Observer, ignored: Collection[str] = ()) -> bool:
        """Take over what calls change: only that is put back from now on.

        Return whether calls write to an input that the warm calls left as it was: it is state from now on, and what was
        observed began with other values in it.
        """
        assert self._start is not None
        self.effects = observer.effects.without(ignored)
        self._parameters = observer.watch.kept
        kept = self._start.kept.tensors
        self.changed = tuple(observer.copies[key].tensor for key in observer.changed if key in observer.copies)
        for key in kept.keys() - observer.changed.keys():
            del kept[key]
        contents = self._start.structure.contents
        self._start.structure.contents = {key: entry for key, entry in contents.items() if key in observer.touched}
        late = (self._given.tensors.keys() & observer.changed.keys()) - self.carried
        kept.update({key: self._given.tensors[key] for key in late})
        self.carried |= late
        self._given = Kept()
        return bool(late)

    def test_reads(self, play: Callable[[Callable[[], None]], list[Outputs]]) -> None:
        """Find out which of the attributes that calls assign anew no later call reads; see `read_later`."""
        carried = read_later(self.effects.assigned, self.roots, play)
        self.effects = replace(self.effects, unread=tuple(p for p in self.effects.assigned if p not in carried))

    def written(self) -> dict[str, Tensor]:
        """Return the module's tensors that calls write to, weights included, by path."""
        changed = {id(tensor) for tensor in self.changed or ()} - {id(tensor) for _, tensor in self._input_tensors()}
        found = {path: each for key, (path, each) in Structure.of(self.roots).tensors.items() if key in changed}
        return found | {kept.path: kept.tensor for kept in self._parameters.tensors.values()}

    def drawn(self) -> dict[str, Tensor]:
        """Return the tensors of the inputs that are drawn anew for each call, by path."""
        return {path: tensor for path, tensor in self._tensors if id(tensor) not in self.carried}

    def values(self) -> dict[str, Any]:
        """Return what calls change, as it is now, by path: tensors and numbers."""
        effects = self.effects
        now = Structure.of(self.roots).values
        names = {*effects.written, *effects.inputs, *effects.numbers}
        return {
            path: value
            for path, value in now.items()
            if path in names or any(is_below(path, each) for each in effects.carried)
        }

    def load(self, values: Mapping[str, Any]) -> list[str]:
        """Write the tensors of another module's `values()` into this one, in its dtypes, and take that as S0.

        Inputs among them are state here, too.

        Return the paths that do not exist here.
        """
        now = Structure.of(self.roots).values
        missing = []
        with torch.inference_mode():
            for path, value in values.items():
                here = now.get(path)
                if isinstance(value, Tensor) and isinstance(here, Tensor) and here.shape == value.shape:
                    here.copy_(value)
                    self.carried |= {id(here)} & {id(each) for _, each in self._tensors}
                elif isinstance(value, Tensor):
                    missing.append(path)
        self._given = Kept()
        self.settle(self.warm_calls)
        return missing

    def pairs(self, inputs: Any) -> list[tuple[Tensor, Tensor]]:
        """Return (tensor of the inputs, its counterpart in `inputs`) for all that are drawn anew.

        Raises:
            ValueError: `inputs` has another structure, shape, dtype or plain value; the text says which.

        """
        if (other := other_form(inputs, self._forms)) is not None:
            raise ValueError(other)
        fresh = dict(named_tensors(inputs))
        return [(target, fresh[path]) for path, target in self.drawn().items()]

    @contextmanager
    def replacing(self) -> Iterator[None]:
        """Keep what the block replaces in the module (submodules, buffers, their memory) through later resets.

        The block begins and ends in S0.
        """
        snapshots = [each for each in (self._start, self._cold) if each is not None]
        old = Structure.of(self.roots).contents  # of all: what calls write to in place is not in the contents of S0
        yield
        others: dict[int, Tensor] = {}  # by the id of the tensor that was replaced
        for key, (holder, before) in old.items():
            now = holder.read()
            replaced = {name: value for name, value in now.items() if before.get(name, MISSING) is not value}
            for _, content in (each.structure.contents[key] for each in snapshots if key in each.structure.contents):
                for name in before.keys() - now.keys():
                    content.pop(name, None)
                content |= replaced
            for name, value in replaced.items():
                if isinstance(value, Tensor) and isinstance(before.get(name), Tensor):
                    others[id(before[name])] = value
        del old
        for copies in (self._parameters, *(each.kept for each in snapshots)):
            for kept in copies.tensors.values():
                kept.follow(others.get(id(kept.tensor), kept.tensor))
        if self.changed is not None:
            self.changed = tuple(others.get(id(tensor), tensor) for tensor in self.changed)
        reached = Structure.of(self.roots)
        for each in snapshots:
            each.structure.forget_all_but(reached)

    @property
    def bytes(self) -> int:
        """Bytes of the copies that are kept."""
        copies = [] if self._start is None else self._start.kept.tensors.values()
        return sum(kept.values.nbytes for kept in (*copies, *self._parameters.tensors.values()))

    @property
    def on_host(self) -> bool:
        """Whether copies of tensors on a device are kept in host memory."""
        copies = [] if self._start is None else self._start.kept.tensors.values()
        return any(kept.values.device != kept.tensor.device for kept in copies)

    def keep(self) -> Callable[[], None]:
        """Take a snapshot of the state as it is now; return the function that restores it."""
        constant = {id(tensor) for _, tensor in self._input_tensors()} - self.carried
        if self._start is not None and self.changed is not None:
            constant |= set(self._start.structure.tensors) - {id(tensor) for tensor in self.changed}
        return Snapshot(self.roots, constant).restore

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (path, tensor) of each buffer, and of what attributes and objects among the inputs (caches) hold."""
        inputs = {id(tensor) for _, tensor in self._input_tensors()} - self.carried
        for key, found in Structure.of(self.roots).tensors.items():
            if key not in inputs:
                yield found

    def generators(self) -> list[torch.Generator]:
        """Return torch's random number generators that the module and its inputs hold."""
        found = Structure.of(self.roots).generators.values()
        return [each for _, each in found if isinstance(each, torch.Generator)]

    def _watch_parameters(self, cold: Snapshot) -> Watch:
        """Return a watch that adds a copy of each parameter to `cold` before a call first writes to it."""
        watch = watching(Structure.of(self.roots).parameters.values())
        watch.kept = cold.kept
        return watch

    def _input_tensors(self) -> Iterator[tuple[str, Tensor]]:
        for keys, tensor in keyed_tensors(self._inputs):
            yield "".join(map(str, keys)), tensor


def _holds_tensors(value: Any) -> bool:
    found = Structure.of({"": value})
    return bool(found.tensors or found.generators)
