"""Latency: warm-up until times settle, three clocks, samples in one window or in turns with other cells, conditions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from time import perf_counter
from typing import ClassVar

import torch

from profiling.machine import nvml
from profiling.machine.gc_policy import no_garbage_collection
from profiling.machine.memory import used_and_free
from profiling.machine.run_queue import RunQueueMonitor, pinned
from profiling.metrics.clocks import CacheFlush, CallClock
from profiling.metrics.metric import Measured, Metric, Subject
from profiling.metrics.monitor import CallMonitor
from profiling.metrics.sampling import (
    REWARM,
    Ready,
    Sample,
    SamplingLimits,
    StoppedBy,
    Turn,
    Warmup,
    WindowSamples,
    by_call_ms,
    collect,
    collect_window,
    summaries,
    warm_up,
    window_of,
)
from profiling.results.measured import LatencyConditions
from profiling.results.stats import frame_rate, rates_of_calls
from profiling.trace.counters import snapshot
from profiling.trace.profiler import synchronize
from profiling.trace.spans import span

#: Seconds of a call before which no untimed call is made: it fills the caches itself.
LONG_CALL = 0.1


@dataclass(frozen=True, kw_only=True)
class Latency(SamplingLimits, Metric):
    """Time a step until a sampling limit is met, or in the windows that the cell is given in turn with other cells.

    `cold` evicts the last-level cache before each sample.
    """

    takes_turns: ClassVar[bool] = True

    cold: bool = False

    def measure(self, subject: Subject) -> Measured:
        """Return wall_ms, on CUDA also device_ms and host_ms, fps, conditions of the timed windows, and slow calls."""
        component = subject.component
        with no_garbage_collection(), closing(CallMonitor(component.device)) as calls:
            monitor = TimedWindowMonitor(component.device, calls)
            stopped_by, warmup = self._timed(subject, monitor)
        clocks, invalid = summaries(monitor.windows, stopped_by), monitor.invalid_reason()
        wall, device = clocks["wall_ms"], clocks.get("device_ms")
        sections = {
            **clocks,
            "fps": frame_rate(wall, component.frames_per_call),
            "rates": rates_of_calls(wall.samples, component.frames_per_call),
            "latency": monitor.conditions(warmup, cold=self.cold),
            "slow_calls": calls.slow_calls(wall.samples, () if device is None else device.samples),
            "by_call_ms": by_call_ms(monitor.windows, component.place.calls),  # a window is whole trajectories
        }
        return Measured(sections, None if invalid is None else ("invalid", f"inside the timed window: {invalid}"))

    def _timed(self, subject: Subject, monitor: TimedWindowMonitor) -> tuple[StoppedBy | None, Warmup]:
        """Time the windows that this cell is given, or takes alone; return what ended them, and the warm-up.

        That is made before the first window and not earlier: while cells are prepared side by side, times do not
        settle, and calls of one delay the others.
        """
        used, free = used_and_free(monitor.device)
        ready = Ready(
            min_iterations=self.min_iterations,
            max_iterations=self.max_iterations,
            max_seconds=self.max_seconds,
            used=used,
            free=free,
            pinned=monitor.pins,
        )
        component, sample = subject.component, self._sampler(subject)
        observed = monitor.observed(sample)
        warmup: Warmup | None = None

        def window(turn: Turn) -> WindowSamples:
            nonlocal warmup
            with monitor.on_own_cores():
                if warmup is None:
                    with span("warm-up"):
                        warmup = warm_up(sample, snapshot, self, perf_counter)
                elif subject.take_turns is not None and warmup.seconds < LONG_CALL * warmup.iterations:
                    collect_window(sample, REWARM, perf_counter)
                component.reset()
                with span("timing"), monitor.window() as samples:
                    samples += collect_window(observed, turn, perf_counter, component.place.calls)
            return monitor.windows[-1]

        stopped_by = None if subject.take_turns is None else subject.take_turns(ready, window)
        if warmup is None:  # no window was asked for
            stopped_by = collect(partial(window, window_of(ready)), self, perf_counter)
        assert warmup is not None, "of the first window"
        return stopped_by, warmup

    def _sampler(self, subject: Subject) -> Callable[[], Sample]:
        device, step = subject.component.device, subject.step
        clock, flush = CallClock(device), CacheFlush(device) if self.cold else None

        def sample() -> Sample:
            step.advance()
            if flush is not None:
                flush()
            synchronize(device)  # the copies of the inputs are not part of the call
            return clock.sample(step.run)

        return sample


class TimedWindowMonitor:
    """Observes the timed windows of a cell; it runs only between samples, and not between windows.

    A recompile, a capture or an allocator retry inside a window means that another program was timed, and makes the
    samples invalid. Lower clocks and other processes are conditions: they are recorded, and the samples stay valid.
    `calls` observes each call.
    """

    def __init__(self, device: torch.device, calls: CallMonitor) -> None:
        self.device = device
        self.windows: list[WindowSamples] = []
        self._cuda = device if device.type == "cuda" else None
        self._calls = calls
        self._reasons: list[str] = []
        self._retries = 0
        self._clocks = nvml.ClockMonitor(self._cuda)
        self._clocks.pause()
        with self.on_own_cores():
            self.pins = bool(self._cores)  # whether windows are timed on cores of their own

    @contextmanager
    def on_own_cores(self) -> Iterator[None]:
        """On a CPU with more cores than torch has threads, pin the process to as many cores inside the block.

        Otherwise threads move from core to core, and equal code takes different times.
        """
        with pinned(torch.get_num_threads() if self._cuda is None else 0) as self._cores:
            yield

    def observed(self, sample: Callable[[], Sample]) -> Callable[[], Sample]:
        """Return `sample`, each call of which is observed after it has ended."""

        def observed() -> Sample:
            taken = sample()
            self._calls(taken.wall)
            return taken

        return observed

    @contextmanager
    def window(self) -> Iterator[list[Sample]]:
        """Observe the block, which fills the list with the samples of a window; it is then the last of `windows`."""
        self._calls.begin()
        compiled, retries = snapshot(), self._allocator_retries()
        run_queue = RunQueueMonitor()
        self._clocks.resume()
        self._clocks.read()
        samples, start = list[Sample](), perf_counter()
        yield samples
        self._clocks.read()
        cpu = run_queue.lost_share()
        self._clocks.pause()
        gpu = None if self._cuda is None else nvml.share_of_others(self._cuda, perf_counter() - start)
        self._calls.end(gpu)
        changed = snapshot().since(compiled).describe()
        self._reasons += [] if changed is None or changed in self._reasons else [changed]
        self._retries += self._allocator_retries() - retries
        window = WindowSamples(
            start_s=start,
            wall_ms=tuple(sample.wall for sample in samples),
            host_ms=tuple(sample.host for sample in samples if sample.host is not None),
            device_ms=tuple(sample.device for sample in samples if sample.device is not None),
            cpu_lost_share=cpu,
            gpu_lost_share=gpu,
        )
        self.windows.append(window)

    def invalid_reason(self) -> str | None:
        """Return why another program ran inside a window, or None."""
        retries = f"{self._retries} allocator retries (the device ran out of memory and the cache was flushed)"
        return "; ".join([*self._reasons, retries] if self._retries else self._reasons) or None

    def conditions(self, warmup: Warmup, *, cold: bool) -> LatencyConditions:
        """Return the conditions over all windows so far; one that was not measured in every window is None."""
        clocks = self._clocks.conditions()
        return LatencyConditions(
            cold=cold,
            warmup_seconds=warmup.seconds,
            settled=warmup.settled,
            pinned_cores=self._cores,
            limited_share=clocks.limited_share,
            sm_clock_median_mhz=clocks.sm_clock_median_mhz,
            cpu_lost_share=self._mean_share("cpu_lost_share"),
            gpu_lost_share=self._mean_share("gpu_lost_share"),
        )

    def _mean_share(self, name: str) -> float | None:
        """Return the mean of a share of the windows' time; None where one of them does not know it."""
        shares, times_ms = [getattr(each, name) for each in self.windows], [sum(each.wall_ms) for each in self.windows]
        return None if None in shares or not any(times_ms) else fmean(shares, times_ms)

    def _allocator_retries(self) -> int:
        return 0 if self._cuda is None else torch.cuda.memory_stats(self._cuda).get("num_alloc_retries", 0)
