"""Two ways to run the same thing, timed in turns so that drift of the machine is in both."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch

Call = Callable[[], object]


def alternate(first: Call, second: Call, *, rounds: int = 30, warmup: int = 3) -> tuple[float, float]:
    """Return the median wall time of a call of each, in milliseconds, of `rounds` rounds of one call each.

    The device is idle at the start of every call and waited for at its end.
    """
    calls = (first, second)
    for _ in range(warmup):
        for call in calls:
            call()
    torch.cuda.synchronize()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for call, taken in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            torch.cuda.synchronize()
            taken.append((time.perf_counter() - start) * 1e3)
    return median(times[0]), median(times[1])
