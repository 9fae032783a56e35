"""Latency: three clocks, a settled start, a stopping rule, and a watch that nothing disturbed the window."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil
import torch
from msgspec import to_builtins

from profiling.components.component import Component
from profiling.errors import InputError
from profiling.machine import nvml
from profiling.machine.gc_policy import no_garbage_collection
from profiling.metrics.clocks import CacheFlush, clock_of
from profiling.metrics.metric import Measured, Metric, Subject
from profiling.metrics.sampling import Limits, Sample, collect, warm_up
from profiling.results.stats import summarize
from profiling.trace.counters import snapshot
from profiling.trace.spans import span


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


@dataclass(frozen=True, kw_only=True)
class Latency(Limits, Metric):
    """Time a step; the limits are those of the loop, `cold` evicts the last-level cache before each sample."""

    cold: bool = False

    def __post_init__(self) -> None:
        """Check the limits and the one option of its own."""
        super().__post_init__()
        if not isinstance(self.cold, bool):
            raise InputError(f"cold={self.cold!r}: true or false.")

    def measure(self, subject: Subject) -> Measured:
        """Return wall_ms, on CUDA device_ms and host_ms, fps, and how the loop went."""
        component = subject.component
        component.reset()
        take = self._taker(subject)
        with no_garbage_collection():
            with span("warm-up"):
                warmup = warm_up(take, snapshot, self, time.perf_counter)
            watch = DisturbanceWatch(component.device)
            with span("timing"):
                samples, stopped_by = collect(take, self, time.perf_counter, watch.look)
            cause, descheduled = watch.cause(), watch.descheduled()
        sections = clocks_of(samples, stopped_by, subject.seed)
        sections["fps"] = frames_per_second(sections["wall_ms"], component)
        sections["latency"] = {
            "cold": self.cold,
            "warmup_iterations": warmup.iterations,
            "warmup_seconds": warmup.seconds,
            "settled": warmup.settled,
            "descheduled": descheduled,
            **watch.clocks(),
        }
        return Measured(sections, None if cause is None else ("invalid", f"inside the timed window: {cause}"))

    def _taker(self, subject: Subject) -> Callable[[], Sample]:
        clock, run = clock_of(subject.component.device), subject.step.run
        if not self.cold:
            return lambda: clock.sample(run)
        flush = CacheFlush(subject.component.device)

        def take_cold() -> Sample:
            flush()
            return clock.sample(run)

        return take_cold


def clocks_of(samples: Any, stopped_by: str, seed: int) -> dict[str, Any]:
    """Summarize each clock that was read."""
    sections = {}
    for name in ("wall", "device", "host"):
        values = [getattr(sample, name) for sample in samples]
        if None not in values:
            sections[f"{name}_ms"] = {**to_builtins(summarize(values, seed=seed)), "stopped_by": stopped_by}
    return sections


def frames_per_second(wall: dict[str, Any], component: Component) -> dict[str, float]:
    """Return the frame rate from the wall clock; its minimum belongs to the slowest call."""
    per_call = 1000 * component.frames_per_call
    return {"mean": per_call / wall["mean"], "min": per_call / wall["max"], "max": per_call / wall["min"]}
