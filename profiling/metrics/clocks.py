"""The three clocks. Device: CUDA events around the step. Host: until the call returns. Wall: call plus wait.

The device time of eager code includes the gaps between kernels, because a user waits for them too.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns  # bound here: the module under test may replace the one in `time`
from typing import Any

import torch

from profiling.metrics.sampling import Sample


class CallClock:
    """Times a call on the current device, and waits for it, as a loop does that shows every frame.

    On CUDA by all three clocks; on a CPU, where the work is done when the call returns, by the wall clock alone.
    """

    def __init__(self, device: torch.device) -> None:
        on_cuda = device.type == "cuda"
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if on_cuda else None

    def sample(self, run: Callable[[], Any]) -> Sample:
        """Time one call on an idle device; the wait covers all streams, and the output is freed after it."""
        if self._events is None:
            start = perf_counter_ns()
            output = run()
            end = perf_counter_ns()
            del output
            return Sample(wall=(end - start) / 1e6)
        begun, ended = self._events
        begun.record()
        start = perf_counter_ns()
        output = run()
        returned = perf_counter_ns()
        ended.record()
        torch.cuda.synchronize()
        end = perf_counter_ns()
        del output
        return Sample(wall=(end - start) / 1e6, host=(returned - start) / 1e6, device=begun.elapsed_time(ended))


class CacheFlush:
    """Evicts the last-level cache between samples, by overwriting a buffer that is larger than the cache.

    Repeated calls read small weights from the cache; a loop with other work between two calls may not.
    """

    #: Size of the buffer on a CPU, larger than any cache.
    CPU_BYTES = 512 * 2**20

    def __init__(self, device: torch.device) -> None:
        on_cpu = device.type != "cuda"
        size = self.CPU_BYTES if on_cpu else 4 * torch.cuda.get_device_properties(device).L2_cache_size
        self._buffer = torch.empty(size, dtype=torch.uint8, device=device)

    def __call__(self) -> None:
        """Overwrite the buffer and wait until that is done."""
        self._buffer.zero_()
        if self._buffer.is_cuda:
            torch.cuda.synchronize(self._buffer.device)
