"""Which bytes of its storage a tensor covers, and how many several of them cover together."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

#: (start, stop, bytes) in a storage; fewer bytes than lie between the two where the tensor leaves some out.
Extent = tuple[int, int, int]


def address_of(tensor: Tensor) -> int:
    """Return what tells the tensor's storage from others."""
    return tensor.untyped_storage().data_ptr()


def extent_of(tensor: Tensor) -> Extent:
    """Return where the tensor lies in its storage; elements that lie on one another count once."""
    if tensor.numel() == 0:
        return 0, 0, 0
    size, axes = tensor.element_size(), list(zip(tensor.shape, tensor.stride(), strict=True))
    start = int(tensor.storage_offset()) * size
    elements, last = 1, 0
    for length, stride in axes:
        elements *= length if stride else 1
        last += (length - 1) * stride
    return start, start + (last + 1) * size, min(elements, last + 1) * size


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of `tensors`, those that lie in one storage counted again for each."""
    return sum(extent_of(tensor)[2] for tensor in tensors)


def distinct_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of `tensors`, those that lie in one storage counted once."""
    by_storage: dict[int, set[Extent]] = {}
    for tensor in tensors:
        by_storage.setdefault(address_of(tensor), set()).add(extent_of(tensor))
    return sum(map(united, by_storage.values()))


def united(extents: Iterable[Extent]) -> int:
    """Return how many bytes the extents cover, or hold by themselves where that is less (a column of a matrix)."""
    covered, reached, held = 0, 0, 0
    for start, stop, size in sorted(extents):
        covered += max(0, stop - max(start, reached))
        reached = max(reached, stop)
        held += size
    return min(covered, held)
