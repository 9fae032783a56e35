"""Latency: three clocks, a settled start, a stopping rule, and a watch that nothing disturbed the window."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from profiling.core.components import Component
from profiling.core.garbage import no_garbage_collection
from profiling.core.stats import summarize
from profiling.errors import InputError
from profiling.metrics.clocks import CacheFlush, clock_of
from profiling.metrics.disturbances import DisturbanceWatch
from profiling.metrics.metric import Measured, Metric, Subject
from profiling.metrics.sampling import Limits, Sample, collect, warm_up
from profiling.tracing.counters import snapshot
from profiling.tracing.spans import span


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
            sections[f"{name}_ms"] = {**summarize(values, seed=seed).to_json(), "stopped_by": stopped_by}
    return sections


def frames_per_second(wall: dict[str, Any], component: Component) -> dict[str, float]:
    """Return the frame rate from the wall clock; its minimum belongs to the slowest call."""
    per_call = 1000 * component.frames_per_call
    return {"mean": per_call / wall["mean"], "min": per_call / wall["max"], "max": per_call / wall["min"]}
