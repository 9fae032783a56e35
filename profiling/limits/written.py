"""How many bytes of a tensor an operator writes at most, where it changes only a part of it: a ring's slot, a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from profiling.limits.extents import address_of, bytes_of, extent_of

aten = torch.ops.aten
#: Operators of torch that write as many elements as they are given, and leave the others as they were.
_PARTLY = frozenset({aten.index_copy_, aten.scatter_, aten.index_put_})


def most_written(func: Any, written: Sequence[Tensor], given: Sequence[Tensor], made: Sequence[Tensor]) -> list[int]:
    """Return for each of `written` how many bytes the operator `func` changes at most.

    `given` are all its tensors, `made` what it returns. Nobody says what an operator from outside torch does: it is
    taken to make no more than it is given. Of its other arguments, those of the written tensor's dtype are what it
    writes and what it returns, each byte once. That is a bound from above where it passes some of them over (and one
    that fills a tensor with what it was not given writes more).
    """
    targets = {id(tensor) for tensor in written}
    others = [tensor for tensor in given if id(tensor) not in targets]
    if func.overloadpacket in _PARTLY and others:
        elements = max(tensor.numel() for tensor in others)
        return [min(extent_of(tensor)[2], elements * tensor.element_size()) for tensor in written]
    if func.namespace in ("aten", "prims") or not others:
        return [extent_of(tensor)[2] for tensor in written]
    known = {address_of(tensor) for tensor in given}
    fresh = [tensor for tensor in made if address_of(tensor) not in known]
    most: dict[int, int] = {}
    for dtype in {tensor.dtype for tensor in written}:
        same = [tensor for tensor in others if tensor.dtype == dtype]
        left = bytes_of(same) - bytes_of(tensor for tensor in fresh if tensor.dtype == dtype)
        left = left if left > 0 else bytes_of(others)
        wanting = sorted((tensor for tensor in written if tensor.dtype == dtype), key=lambda item: extent_of(item)[2])
        for place, tensor in enumerate(wanting):  # alike, but for what a small one cannot take
            most[id(tensor)] = min(extent_of(tensor)[2], left // (len(wanting) - place))
            left -= most[id(tensor)]
    return [most[id(tensor)] for tensor in written]
