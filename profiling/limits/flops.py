"""Floating-point operations of a call by class of operator, from torch's own counter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

#: Classes by what an operator's name holds, the first that fits.
CLASSES = {"attention": "atten", "convolution": "conv", "matmul": ""}


def _attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return sdpa_flop_count(query, key, value)


def _attention_backward(gradient: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return sdpa_backward_flop_count(gradient, query, key, value)


def _mv(matrix: Any, *_: Any, **__: Any) -> int:
    return 2 * matrix[0] * matrix[1]


def _addmv(_bias: Any, matrix: Any, *_: Any, **__: Any) -> int:
    return 2 * matrix[0] * matrix[1]


#: Operators that torch's counter passes over, by name; not every version of torch has each of them.
_MORE = {
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_fused_attention_overrideable": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "_scaled_dot_product_fused_attention_overrideable_backward": _attention_backward,
    "mv": _mv,
    "addmv": _addmv,
}


@contextmanager
def counted_flops() -> Iterator[dict[str, int]]:
    """Count inside; the yielded mapping is filled at the end: FLOPs by class, classes that do not occur left out.

    A multiplication with its addition counts as two. Products, convolutions and attention are counted; elementwise
    work and reductions are not, nor operators from outside torch that registered no formula: a lower bound. A
    convolution counts as the plain algorithm's, of which Winograd's needs a fraction.
    """
    found: dict[str, int] = {}
    extra = {packet: formula for name, formula in _MORE.items() if (packet := getattr(torch.ops.aten, name, None))}
    with FlopCounterMode(display=False, custom_mapping=extra) as counter:
        yield found
    found |= by_class(counter.get_flop_counts().get("Global", {}))


def by_class(counts: Mapping[Any, int]) -> dict[str, int]:
    """Add up counts by operator into counts by class."""
    found: dict[str, int] = {}
    for operator, flops in counts.items():
        kind = next(kind for kind, part in CLASSES.items() if part in str(operator))
        found[kind] = found.get(kind, 0) + flops
    return found
