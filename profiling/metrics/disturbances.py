"""What must not happen inside a timed window: compiling, capturing, allocator retries, clocks held down."""

from __future__ import annotations

import psutil
import torch

from profiling.core import nvml
from profiling.tracing.counters import snapshot


class DisturbanceWatch:
    """Looks before, during and after a timed window; each look is outside every sample."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device if device.type == "cuda" else None
        self._compiled = snapshot()
        self._retries = self._allocator_retries()
        self._throttled: set[str] = set()
        self._clocks: list[int] = []
        self._switches = psutil.Process().num_ctx_switches().involuntary
        self.look()

    def look(self) -> None:
        """Ask the driver for the clock, and whether it is held down, at this moment."""
        if self._cuda is not None:
            self._throttled |= nvml.throttle_reasons(self._cuda)
            clock = nvml.clock_mhz(self._cuda, "sm")
            self._clocks += [] if clock is None else [clock]

    def descheduled(self) -> int:
        """Return how often the system took the processor from this process inside the window."""
        return psutil.Process().num_ctx_switches().involuntary - self._switches

    def clocks(self) -> dict[str, int]:
        """Return the lowest and highest SM clock seen inside the window, in MHz; empty where nobody tells it."""
        if not self._clocks:
            return {}
        return {"sm_clock_min_mhz": min(self._clocks), "sm_clock_max_mhz": max(self._clocks)}

    def cause(self) -> str | None:
        """Return what disturbed the window, or None if nothing did."""
        self.look()
        causes = []
        compiled = snapshot().since(self._compiled).describe()
        if compiled is not None:
            causes.append(compiled)
        retries = self._allocator_retries() - self._retries
        if retries:
            causes.append(f"{retries} allocator retries (the device ran out of memory and the cache was flushed)")
        if self._throttled:
            causes.append(f"clocks held down: {', '.join(sorted(self._throttled))}")
        return "; ".join(causes) or None

    def _allocator_retries(self) -> int:
        return 0 if self._cuda is None else torch.cuda.memory_stats(self._cuda).get("num_alloc_retries", 0)
