"""The three clocks. Device: CUDA events around the step. Host: until the call returns. Wall: call plus wait.

Event timing of eager code includes the gaps between launches, which is what the user feels.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from profiling.metrics.sampling import Sample

Run = Callable[[], Any]


class WallClock:
    """The only clock of a CPU: the call is over when it returns."""

    def sample(self, run: Run) -> Sample:
        """Time one call; its output is let go of after the clock has stopped."""
        start = time.perf_counter_ns()
        output = run()
        end = time.perf_counter_ns()
        del output
        return Sample(wall=(end - start) / 1e6)


class CudaClock:
    """All three clocks of the current device at once, each call waited for, as a loop that shows every frame does."""

    def __init__(self) -> None:
        self._start = torch.cuda.Event(enable_timing=True)
        self._end = torch.cuda.Event(enable_timing=True)

    def sample(self, run: Run) -> Sample:
        """Time one call on an idle device, waiting for every stream that the call used."""
        self._start.record()
        start = time.perf_counter_ns()
        output = run()
        returned = time.perf_counter_ns()
        self._end.record()
        torch.cuda.synchronize()
        end = time.perf_counter_ns()
        del output
        return Sample(
            wall=(end - start) / 1e6, host=(returned - start) / 1e6, device=self._start.elapsed_time(self._end)
        )


def clock_of(device: torch.device) -> WallClock | CudaClock:
    """Return the clocks that `device` has."""
    return CudaClock() if device.type == "cuda" else WallClock()


class CacheFlush:
    """Evicts the last-level cache by overwriting a buffer larger than it, outside every sample.

    Repeated calls find small weights in the cache; a real loop, with other work between two calls, may not.
    """

    #: Bytes written where the size of the cache is not known: more than any CPU's.
    CPU_BYTES = 512 * 2**20

    def __init__(self, device: torch.device) -> None:
        size = self.CPU_BYTES
        if device.type == "cuda":
            size = 4 * torch.cuda.get_device_properties(device).L2_cache_size
        self._buffer = torch.empty(size, dtype=torch.uint8, device=device)

    def __call__(self) -> None:
        """Overwrite the buffer and wait until that is done."""
        self._buffer.zero_()
        if self._buffer.is_cuda:
            torch.cuda.synchronize(self._buffer.device)
