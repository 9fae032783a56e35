"""The three clocks. Device: CUDA events around the step. Host: until the call returns. Wall: call plus wait.

The device time of eager code includes the gaps between kernels, because a user waits for them too.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns  # bound here: the module under test may replace the one in `time`
from typing import Any

import torch

from profiling.metrics.sampling import Sample

Run = Callable[[], Any]


class WallClock:
    """The wall clock, the only one on a CPU, where the work is done when the call returns."""

    def sample(self, run: Run) -> Sample:
        """Time one call; its output is freed after the clock has stopped."""
        start = perf_counter_ns()
        output = run()
        end = perf_counter_ns()
        del output
        return Sample(wall=(end - start) / 1e6)


class CudaClock:
    """All three clocks, on the current CUDA device; each call is waited for, as in a loop that shows every frame."""

    def __init__(self) -> None:
        self._start = torch.cuda.Event(enable_timing=True)
        self._end = torch.cuda.Event(enable_timing=True)

    def sample(self, run: Run) -> Sample:
        """Time one call on an idle device; the wait covers all streams."""
        self._start.record()
        start = perf_counter_ns()
        output = run()
        returned = perf_counter_ns()
        self._end.record()
        torch.cuda.synchronize()
        end = perf_counter_ns()
        del output
        return Sample(
            wall=(end - start) / 1e6, host=(returned - start) / 1e6, device=self._start.elapsed_time(self._end)
        )


def clock_of(device: torch.device) -> WallClock | CudaClock:
    """Return the clocks that can be read on `device`."""
    return CudaClock() if device.type == "cuda" else WallClock()


class CacheFlush:
    """Evicts the last-level cache between samples, by overwriting a buffer that is larger than the cache.

    Repeated calls read small weights from the cache; a loop with other work between two calls may not.
    """

    #: Size of the buffer on a CPU, larger than any cache.
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
