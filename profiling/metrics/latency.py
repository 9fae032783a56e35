"""Latency: warm-up until times settle, three clocks, a stopping rule, and the conditions of the timed window."""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import msgspec
import torch

from profiling.components.component import Component
from profiling.machine import nvml
from profiling.machine.gc_policy import no_garbage_collection
from profiling.machine.run_queue import RunQueueMonitor
from profiling.metrics.clocks import CacheFlush, clock_of
from profiling.metrics.metric import Measured, Metric, Subject
from profiling.metrics.sampling import Sample, SamplingLimits, StoppedBy, Warmup, collect, warm_up
from profiling.results.record import FrameRate, LatencyConditions, Summary
from profiling.results.stats import summarize
from profiling.trace.counters import snapshot
from profiling.trace.spans import span


@dataclass(frozen=True, kw_only=True)
class Latency(SamplingLimits, Metric):
    """Time a step until a sampling limit is met; `cold` evicts the last-level cache before each sample."""

    cold: bool = False

    def measure(self, subject: Subject) -> Measured:
        """Return wall_ms, on CUDA also device_ms and host_ms, fps, and the conditions of the timed window."""
        component = subject.component
        sample = self._sampler(subject)
        with no_garbage_collection():
            with span("warm-up"):
                warmup = warm_up(sample, snapshot, self, perf_counter)
            monitor = TimedWindowMonitor(component.device)
            with span("timing"):
                samples, stopped_by = collect(sample, self, perf_counter, monitor.read_clocks)
            invalid, conditions = monitor.invalid_reason(), monitor.conditions(warmup, cold=self.cold)
        clocks = summaries(samples, stopped_by, subject.seed)
        sections = {**clocks, "fps": frame_rate(clocks["wall_ms"], component), "latency": conditions}
        return Measured(sections, None if invalid is None else ("invalid", f"inside the timed window: {invalid}"))

    def _sampler(self, subject: Subject) -> Callable[[], Sample]:
        clock, run, rewind = clock_of(subject.component.device), subject.step.run, subject.step.rewind
        flush = CacheFlush(subject.component.device) if self.cold else None
        if flush is None and rewind is None:
            return lambda: clock.sample(run)

        def sample() -> Sample:
            if rewind is not None:
                rewind()
            if flush is not None:
                flush()
            return clock.sample(run)

        return sample


class TimedWindowMonitor:
    """Observes a timed window, which starts when the monitor is constructed; it runs only between samples.

    A recompile, a capture or an allocator retry inside the window means that another program was timed, and makes the
    samples invalid. Lower clocks and other processes are conditions: they are recorded, and the samples stay valid.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device if device.type == "cuda" else None
        self._compiled = snapshot()
        self._retries = self._allocator_retries()
        self._clocks = nvml.ClockMonitor(self._cuda)
        self._switches = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
        self._run_queue = RunQueueMonitor()
        self.read_clocks()

    def read_clocks(self) -> None:
        """Read the SM clock, now."""
        self._clocks.read()

    def invalid_reason(self) -> str | None:
        """Return why another program ran inside the window, or None."""
        compiled = snapshot().since(self._compiled).describe()
        retries = self._allocator_retries() - self._retries
        reasons = [] if compiled is None else [compiled]
        if retries:
            reasons.append(f"{retries} allocator retries (the device ran out of memory and the cache was flushed)")
        return "; ".join(reasons) or None

    def conditions(self, warmup: Warmup, *, cold: bool) -> LatencyConditions:
        """Return the conditions of the window so far."""
        switches = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw - self._switches
        self.read_clocks()
        return LatencyConditions(
            cold=cold,
            warmup_iterations=warmup.iterations,
            warmup_seconds=warmup.seconds,
            settled=warmup.settled,
            descheduled=switches,
            run_queue_wait_ms=self._run_queue.wait_ms(),
            **msgspec.structs.asdict(self._clocks.conditions()),
        )

    def _allocator_retries(self) -> int:
        return 0 if self._cuda is None else torch.cuda.memory_stats(self._cuda).get("num_alloc_retries", 0)


def summaries(samples: Sequence[Sample], stopped_by: StoppedBy, seed: int) -> dict[str, Summary]:
    """Return the summary of each clock that was read, in milliseconds: wall_ms, device_ms, host_ms."""
    clocks = {}
    for name in ("wall", "device", "host"):
        values = [value for sample in samples if (value := getattr(sample, name)) is not None]
        if values:
            clocks[f"{name}_ms"] = msgspec.structs.replace(summarize(values, seed=seed), stopped_by=stopped_by)
    return clocks


def frame_rate(wall: Summary, component: Component) -> FrameRate:
    """Return the frames per second (FPS) by the wall clock; the minimum is that of the slowest call."""
    frames_ms = 1000 * component.frames_per_call
    return FrameRate(mean=frames_ms / wall.mean, min=frames_ms / wall.max, max=frames_ms / wall.min)
