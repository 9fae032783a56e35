"""The two operators whose calls are timed in chains: a negligible elementwise kernel, and a linear.

Both write to buffers that exist already, so no time of the caching allocator is included. A linear of a model, which
allocates its output and goes through a module, costs more host time than these.

All calls of a chain use the same tensors, which stay in the cache if they fit. A model that reads other weights in each
layer keeps its device busy with smaller operators than the linears here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch

from profiling.launch_overhead.options import CalibrationOptions

Operator = Callable[[], Any]
SizeName = Literal["elements", "width"]

#: From a negligible operator to one that takes several times its launch or dispatch; denser where current GPUs stop
#: being starved.
ELEMENTS = {
    "cpu": (1, 256, 1024, 4096, 16384, 65536),
    "cuda": (1, 2**12, 2**16, 2**18, 2**20, 2**21, 2**22, 2**23, 2**24),
}
WIDTHS = {"cpu": (1, 16, 32, 64, 128, 256, 512), "cuda": (64, 256, 512, 1024, 2048, 3072, 4096, 6144, 8192)}


@dataclass(frozen=True)
class Chain:
    """A kind of operator at several sizes."""

    name: Literal["elementwise", "linear"]
    size_name: SizeName
    sizes: tuple[int, ...]
    operator: Callable[[int], Operator]


def make_chains(
    device: torch.device, options: CalibrationOptions, dtype: torch.dtype, seed: int
) -> tuple[Chain, Chain]:
    """Return the elementwise chain and the chain of linears, on `device`."""
    rows = options.rows

    def elementwise(elements: int) -> Operator:
        # Negation: one kernel, values that never overflow, and no Python number that each call would convert to a
        # tensor, which costs more than the dispatch.
        return torch.ones(elements, dtype=dtype, device=device).neg_

    def linear(width: int) -> Operator:
        generator = torch.Generator(device).manual_seed(seed)
        x = torch.randn(rows, width, dtype=dtype, device=device, generator=generator)
        weight = torch.randn(width, width, dtype=dtype, device=device, generator=generator)
        # The call that F.linear makes without a bias. The input is not the last output: repeated products of random
        # matrices shrink to denormals, which are slow on a CPU.
        return partial(torch.mm, x, weight.t(), out=torch.empty_like(x))  # [rows, width] × [width, width]

    return (
        Chain("elementwise", "elements", tuple(options.elements or ELEMENTS[device.type]), elementwise),
        Chain("linear", "width", tuple(options.widths or WIDTHS[device.type]), linear),
    )
