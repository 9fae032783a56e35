"""The two chains whose calls are counted: a kernel that does next to nothing, and the library call models are made of.

Both write into buffers that exist already, so that the caching allocator is in no number; a model's own linears, which
allocate their outputs and go through a module, cost more host time than these.

All calls of a chain work on the same tensors: what fits into a cache is in it. A model whose weights come from memory
anew at each layer keeps its device busy with smaller operators than the linears here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch

from profiling.launch_overhead.options import CalibrationOptions

Operator = Callable[[], Any]
SizeName = Literal["elements", "width"]

#: From an operator that does next to nothing to one that takes several times its launch or dispatch; closer where a
#: GPU of today stops to starve.
ELEMENTS = {
    "cpu": (1, 256, 1024, 4096, 16384, 65536),
    "cuda": (1, 2**12, 2**16, 2**18, 2**20, 2**21, 2**22, 2**23, 2**24),
}
WIDTHS = {"cpu": (1, 16, 32, 64, 128, 256, 512), "cuda": (64, 256, 512, 1024, 2048, 3072, 4096, 6144, 8192)}


@dataclass(frozen=True)
class Chain:
    """A chain: its name, what its size is called, the sizes swept, and what a call at a size is and does."""

    name: Literal["elementwise", "linear"]
    size_name: SizeName
    sizes: tuple[int, ...]
    operator: Callable[[int], Operator]
    work: Callable[[float], Mapping[str, float]]  # size → bytes read and written once; FLOPs of a linear


def chains(device: torch.device, options: CalibrationOptions) -> tuple[Chain, Chain]:
    """Return the elementwise chain and the chain of linears, on `device`."""
    dtype: torch.dtype = getattr(torch, options.dtype)
    size, rows = dtype.itemsize, options.rows

    def elementwise(elements: int) -> Operator:
        # Negation: one kernel, values that never overflow, and no Python number to be made a tensor at each call,
        # which costs more than the dispatch itself.
        return torch.ones(elements, dtype=dtype, device=device).neg_

    def linear(width: int) -> Operator:
        generator = torch.Generator(device).manual_seed(options.seed)
        x = torch.randn(rows, width, dtype=dtype, device=device, generator=generator)
        weight = torch.randn(width, width, dtype=dtype, device=device, generator=generator)
        # What F.linear without a bias calls. The input is not the last output: products of random matrices shrink
        # into denormals, which are slow on a CPU.
        return partial(torch.mm, x, weight.t(), out=torch.empty_like(x))  # [rows, width] × [width, width]

    return (
        Chain(
            "elementwise",
            "elements",
            tuple(options.elements or ELEMENTS[device.type]),
            elementwise,
            lambda elements: {"bytes": 2 * elements * size},
        ),
        Chain(
            "linear",
            "width",
            tuple(options.widths or WIDTHS[device.type]),
            linear,
            lambda width: {"bytes": (width + 2 * rows) * width * size, "flops": 2 * rows * width**2},
        ),
    )
