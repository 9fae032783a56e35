"""Two ways to run the same thing, timed by the wall clock in turns so that drift of the machine is in both."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch

from profiling.transforms.gain import interleaved

Call = Callable[[], object]


def alternate(first: Call, second: Call, *, rounds: int = 31, warmup: int = 3) -> tuple[float, float]:
    """Return the median wall time of a call of each, in milliseconds, of `rounds` rounds of one call each.

    The device is idle at the start of every call and waited for at its end.
    """
    for _ in range(warmup):
        first()
        second()
    torch.cuda.synchronize()
    return interleaved(partial(_wall_ms, first), partial(_wall_ms, second), rounds)


def _wall_ms(call: Call) -> float:
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3
