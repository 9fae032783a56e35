"""Static inputs of a graph: buffers at fixed addresses with the layout, and the aliasing, of the caller's tensors.

A tensor of its own storage gets a buffer of the same shape and strides. Tensors that overlap (the same tensor twice,
views of each other) or that overlap themselves (expanded ones) are copied as the bytes beneath them, so that the module
sees them overlap just so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from profiling.graphs.signature import ALIGNMENT


@dataclass(frozen=True)
class _Bytes:
    """A range of bytes beneath some of the inputs: its buffer, and where to find it below the caller's tensor."""

    buffer: torch.Tensor  # uint8
    owner: int  # an input whose storage holds the range
    before: int  # bytes from the range's start to that input's first element
    members: frozenset[int]


class StaticInputs:
    """The buffers that a captured call reads: `tensors`, one for each tensor of `given`."""

    def __init__(self, given: Sequence[torch.Tensor]) -> None:
        tensors: dict[int, torch.Tensor] = {}
        self._plain: dict[torch.dtype, list[int]] = {}
        self._ranges: list[_Bytes] = []
        for group in _overlapping(given):
            (first, *others) = group
            if not others and not _overlaps_itself(given[first]):
                leaf = given[first]
                tensors[first] = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device)
                self._plain.setdefault(leaf.dtype, []).append(first)
            else:
                tensors |= self._views(given, group)
        # A leaf that needs a gradient is another tensor on the same memory: copies go to the one without.
        self.tensors = tuple(
            tensors[i].detach().requires_grad_() if leaf.requires_grad and torch.is_grad_enabled() else tensors[i]
            for i, leaf in enumerate(given)
        )
        self._buffers = tuple(tensors[i] for i in range(len(given)))
        self.fill(given)

    def _views(self, given: Sequence[torch.Tensor], group: Sequence[int]) -> dict[int, torch.Tensor]:
        start = min(_start(given[i]) for i in group) // ALIGNMENT * ALIGNMENT
        stop = max(_stop(given[i]) for i in group)
        owner = group[0]
        buffer = torch.empty(stop - start, dtype=torch.uint8, device=given[owner].device)
        self._ranges.append(_Bytes(buffer, owner, _start(given[owner]) - start, frozenset(group)))
        return {i: _view(buffer.untyped_storage(), _start(given[i]) - start, given[i]) for i in group}

    def fill(self, given: Sequence[torch.Tensor]) -> None:
        """Copy the values of `given` in, in stream order; a tensor that is the buffer itself is left where it is."""
        tensors = self.tensors
        for group in self._plain.values():
            stale = [index for index in group if given[index] is not tensors[index]]
            if stale:  # one launch for all of a dtype: a copy_ of each costs the host several times as much
                leaves = [given[i].detach() if given[i].requires_grad else given[i] for i in stale]
                torch._foreach_copy_([self._buffers[i] for i in stale], leaves)  # pyright: ignore[reportPrivateImportUsage]
        for item in self._ranges:
            if given[item.owner] is not tensors[item.owner]:
                item.buffer.copy_(_beneath(item, given))

    def changed(self, given: Sequence[torch.Tensor]) -> set[int]:
        """Return which buffers hold other values than `given`; waits for the device. NaN counts as another value."""
        pairs = enumerate(zip(self._buffers, given, strict=True))
        return {index for index, (buffer, leaf) in pairs if not torch.equal(buffer, leaf)}

    def give_back(self, given: Sequence[torch.Tensor], indices: Iterable[int]) -> None:
        """Copy what the module wrote into its inputs back into the caller's tensors."""
        written = set(indices)
        with torch.no_grad():
            for item in self._ranges:  # as bytes: a tensor that overlaps itself cannot be written to element by element
                if item.members & written and given[item.owner] is not self.tensors[item.owner]:
                    _beneath(item, given).copy_(item.buffer)
                written -= item.members
            for index in written:
                if given[index] is not self.tensors[index]:
                    given[index].copy_(self._buffers[index])


def as_given(output: torch.Tensor, static: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """Return the view of `given` that `output` is of `static`."""
    offset = output.storage_offset() - static.storage_offset() + given.storage_offset()
    return given.as_strided(output.shape, output.stride(), offset)


def _beneath(item: _Bytes, given: Sequence[torch.Tensor]) -> torch.Tensor:
    leaf = given[item.owner]
    start = _start(leaf) - item.before
    return torch.empty(0, dtype=torch.uint8, device=leaf.device).set_(
        leaf.untyped_storage(), start, (item.buffer.numel(),), (1,)
    )


def _view(storage: torch.UntypedStorage, start: int, like: torch.Tensor) -> torch.Tensor:
    offset = start // like.element_size()
    return torch.empty(0, dtype=like.dtype, device=like.device).set_(storage, offset, like.shape, like.stride())  # pyright: ignore[reportArgumentType]


def _start(tensor: torch.Tensor) -> int:
    return int(tensor.storage_offset()) * tensor.element_size()


def _stop(tensor: torch.Tensor) -> int:
    if tensor.numel() == 0:
        return _start(tensor)
    last = sum(int(stride) * (size - 1) for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return _start(tensor) + (last + 1) * tensor.element_size()


def _overlapping(given: Sequence[torch.Tensor]) -> list[list[int]]:
    """Group the inputs whose byte ranges meet in one storage; an input alone makes a group of one."""
    groups: list[tuple[int, int, list[int]]] = []  # storage, end of the range, members
    order = sorted(range(len(given)), key=lambda i: (given[i].untyped_storage().data_ptr(), _start(given[i])))
    for index in order:
        leaf = given[index]
        storage = leaf.untyped_storage().data_ptr()
        if groups and storage and groups[-1][0] == storage and _start(leaf) < groups[-1][1]:
            _, stop, members = groups.pop()
            groups.append((storage, max(stop, _stop(leaf)), [*members, index]))
        else:
            groups.append((storage, _stop(leaf), [index]))
    return [members for _, _, members in groups]


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    """Say whether two elements may share memory: sorted by stride, each dimension must step over all smaller ones."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False
