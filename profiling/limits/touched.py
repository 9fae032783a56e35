"""Which bytes of its weights, inputs and state a call reads and writes, seen from the operators that it runs.

Each byte counts once however often it is touched: a floor asks what must cross the memory bus, and a large enough cache
keeps the rest. What the call makes for itself on the way does not count at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from profiling.core.trees import named_tensors
from profiling.core.writes import written_tensors
from profiling.limits.extents import Extent, address_of, bytes_of, extent_of, united
from profiling.limits.written import most_written

aten = torch.ops.aten
#: Operators that take rows by number: of their first argument, by their second or third, only those rows are read.
_ROWS = {aten.embedding: 1, aten.index_select: 2}
#: Operators of which only as much of the first argument is read as comes out.
_PICKS = frozenset({aten.index, aten.gather, aten.take})
#: In-place operators that do not look at what was there before.
OVERWRITES = frozenset(
    {aten.copy_, aten.fill_, aten.zero_, aten.index_copy_, aten.scatter_, aten.index_put_, aten.set_}
)


@dataclass
class _Storage:
    """What was touched of one storage: stretches of it, rows by the view they belong to, picks."""

    kind: str
    read: set[Extent] = field(default_factory=set)
    written: dict[Extent, int] = field(default_factory=dict)
    rows: dict[Extent, list[Tensor]] = field(default_factory=dict)
    row_bytes: dict[Extent, int] = field(default_factory=dict)
    picks: dict[Extent, int] = field(default_factory=dict)

    def bytes_read(self) -> int:
        partly = 0
        for stretch in {*self.rows, *self.picks} - self.read:
            wanted = self.picks.get(stretch, 0)
            if stretch in self.rows:
                wanted += int(torch.unique(torch.cat(self.rows[stretch])).numel()) * self.row_bytes[stretch]
            partly += min(stretch[2], wanted)
        return united(self.read) + partly

    def bytes_written(self) -> int:
        return min(united(self.written), sum(self.written.values()))


class Touched(TorchDispatchMode):
    """Notes, while it is entered, what operators touch of the tensors that it was given.

    Embeddings and `index_select` count the distinct rows that they take. An in-place operator that overwrites reads
    nothing, and may write a part: of a ring it changes a slot (`most_written`). Operators from outside torch count by
    their arguments, in whole, and their in-place ones as overwriting.
    Besides, `operators` counts those that did more than make a view, and `traffic` all that they read and wrote, in
    bytes: what the memory bus carries when every operator runs by itself. `foreign` holds those from outside torch.
    """

    def __init__(self, kinds: Mapping[str, Iterable[Tensor]]) -> None:
        super().__init__()
        self.storages: dict[int, _Storage] = {}
        self.operators, self.traffic = 0, 0
        self.foreign: set[Any] = set()
        for kind, tensors in kinds.items():
            for tensor in tensors:
                self.storages.setdefault(address_of(tensor), _Storage(kind))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if isinstance(func, torch._ops.OpOverload):
            self._note(func, args, kwargs, result)
        return result

    def bytes_by(self, kind: str) -> tuple[int, int]:
        """Return (read, written) of the tensors given as `kind`."""
        mine = [storage for storage in self.storages.values() if storage.kind == kind]
        return sum(storage.bytes_read() for storage in mine), sum(storage.bytes_written() for storage in mine)

    def _note(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        given = [tensor for _, tensor in named_tensors((args, kwargs))]
        made = [tensor for _, tensor in named_tensors(result)]
        written = list(written_tensors(func, args, kwargs))
        mine = {address_of(tensor) for tensor in given}
        if not written and (not made or all(address_of(tensor) in mine for tensor in made)):
            return  # a view, or a question about a tensor
        if not given and "empty" in func._schema.name:
            return
        foreign = func.namespace not in ("aten", "prims")
        if foreign:
            self.foreign.add(func)
        self.operators += 1
        self.traffic += bytes_of((*given, *made))
        targets = {id(tensor) for tensor in written}
        out = "out" in func._schema.overload_name
        overwrites = foreign or out or func.overloadpacket in OVERWRITES
        for place, tensor in enumerate(given):
            if id(tensor) not in targets or not overwrites:
                self._read(func, args, place, tensor, bytes_of(made))
        for tensor, most in zip(written, most_written(func, written, given, made), strict=True):
            if (storage := self.storages.get(address_of(tensor))) is not None:
                stretch = extent_of(tensor)
                storage.written[stretch] = min(stretch[2], storage.written.get(stretch, 0) + most)

    def _read(self, func: Any, args: Any, place: int, tensor: Tensor, made: int) -> None:
        storage = self.storages.get(address_of(tensor))
        if storage is None:
            return
        stretch = extent_of(tensor)
        if place == 0 and func.overloadpacket in _ROWS:
            numbers = args[_ROWS[func.overloadpacket]]
            axis = 0 if func.overloadpacket is aten.embedding else args[1]
            storage.rows.setdefault(stretch, []).append(numbers.detach().clone().flatten())
            storage.row_bytes[stretch] = stretch[2] // max(1, tensor.shape[axis])
        elif place == 0 and func.overloadpacket in _PICKS:
            storage.picks[stretch] = max(storage.picks.get(stretch, 0), made)
        elif stretch[2]:
            storage.read.add(stretch)
