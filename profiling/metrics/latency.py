"""Latency: warm-up until times settle, three clocks, samples in one window or in turns with other cells, conditions."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, ClassVar

import msgspec
import torch

from profiling.machine import nvml
from profiling.machine.gc_policy import no_garbage_collection
from profiling.machine.memory import used_and_free
from profiling.machine.run_queue import RunQueueMonitor, pinned
from profiling.metrics.clocks import CacheFlush, clock_of
from profiling.metrics.metric import Measured, Metric, Subject
from profiling.metrics.monitor import CallMonitor
from profiling.metrics.sampling import (
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
    rewarm,
    summaries,
    warm_up,
)
from profiling.results.measured import LatencyConditions
from profiling.results.stats import frame_rate, rates_of_calls
from profiling.trace.counters import snapshot
from profiling.trace.profiler import synchronize
from profiling.trace.spans import span

_CLOCKS = ("wall_ms", "device_ms")


@dataclass(frozen=True, kw_only=True)
class Latency(SamplingLimits, Metric):
    """Time a step until a sampling limit is met, or in the windows that the cell is given in turn with other cells.

    `cold` evicts the last-level cache before each sample.
    """

    takes_turns: ClassVar[bool] = True

    cold: bool = False

    def measure(self, subject: Subject) -> Measured:
        """Return wall_ms, on CUDA also device_ms and host_ms, fps, conditions of the timed window, and slow calls."""
        component = subject.component
        sample = self._sampler(subject)
        with no_garbage_collection(), closing(CallMonitor(component.device)) as calls:
            with span("warm-up"):
                warmup = warm_up(sample, snapshot, self, perf_counter)
            monitor = TimedWindowMonitor(component.device)
            with span("timing"):
                windows, stopped_by = self._in_turns(sample, subject, warmup, monitor, calls)
                if not windows:
                    subject.component.reset()
                    with monitor.on_own_cores(), calls.window(monitor.gpu_lost_share), monitor.window():
                        observed = _observed(sample, calls)
                        samples, stopped_by = collect(
                            observed, self, perf_counter, monitor.read_clocks, subject.component.place.calls
                        )
                    windows = [_window(0.0, samples)]
            invalid, conditions = monitor.invalid_reason(), monitor.conditions(warmup, cold=self.cold)
            wall_ms, device_ms = ([ms for each in windows for ms in getattr(each, name)] for name in _CLOCKS)
            slow = calls.slow_calls(wall_ms, device_ms)
        clocks = summaries(windows, stopped_by)
        fps = frame_rate(clocks["wall_ms"], component.frames_per_call)
        by_call = by_call_ms(windows, subject.component.place.calls)
        rates = rates_of_calls(wall_ms, component.frames_per_call)
        sections = {
            **clocks,
            "fps": fps,
            "rates": rates,
            "latency": conditions,
            "slow_calls": slow,
            "by_call_ms": by_call,
        }
        return Measured(sections, None if invalid is None else ("invalid", f"inside the timed window: {invalid}"))

    def _in_turns(
        self,
        sample: Callable[[], Sample],
        subject: Subject,
        warmup: Warmup,
        monitor: TimedWindowMonitor,
        calls: CallMonitor,
    ) -> tuple[list[WindowSamples], StoppedBy | None]:
        """Return the windows that this cell was given, and what ended them; none where it is measured alone."""
        windows: list[WindowSamples] = []
        if subject.take_turns is None:
            return windows, None
        place = subject.component.place
        used, free = used_and_free(monitor.device)
        ready = Ready(
            call_s=warmup.seconds / warmup.iterations,
            min_iterations=self.min_iterations,
            max_iterations=self.max_iterations,
            max_seconds=self.max_seconds,
            used=used,
            free=free,
            pinned=monitor.pins,
        )

        def window(turn: Turn) -> WindowSamples:
            with monitor.on_own_cores():
                rewarm(sample, turn, ready.call_s)
                subject.component.reset()  # a window is whole trajectories
                with calls.window(monitor.gpu_lost_share), monitor.window() as conditions:
                    start, samples = collect_window(_observed(sample, calls), turn, perf_counter, place.calls)
            windows.append(msgspec.structs.replace(_window(start, samples), **conditions))
            return windows[-1]

        stopped_by = subject.take_turns(ready, window)
        return windows, stopped_by

    def _sampler(self, subject: Subject) -> Callable[[], Sample]:
        device, step = subject.component.device, subject.step
        clock, flush = clock_of(device), CacheFlush(device) if self.cold else None

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
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._cuda = device if device.type == "cuda" else None
        self._reasons: list[str] = []
        self._retries = 0
        self._clocks = nvml.ClockMonitor(self._cuda)
        self._clocks.pause()
        self._switches = 0
        self._cores: tuple[int, ...] = ()
        self._waits_ms: list[float | None] = []
        self._lost: list[tuple[float, float | None, float | None]] = []  # seconds, share of the CPU and of the GPU

    @contextmanager
    def on_own_cores(self) -> Iterator[None]:
        """On a CPU with more cores than torch has threads, pin the process to as many cores inside the block.

        Otherwise threads move from core to core, and equal code takes different times.
        """
        with pinned(torch.get_num_threads() if self._cuda is None else 0) as self._cores:
            yield

    @property
    def pins(self) -> bool:
        """Whether windows are timed on cores of their own."""
        with self.on_own_cores():
            return bool(self._cores)

    @contextmanager
    def window(self) -> Iterator[dict[str, Any]]:
        """Observe the block; its conditions are in the dictionary when it has ended, as fields of `WindowSamples`."""
        conditions: dict[str, Any] = {}
        started = perf_counter()
        compiled, retries = snapshot(), self._allocator_retries()
        switches, run_queue = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw, RunQueueMonitor()
        self._clocks.resume()
        self.read_clocks()
        yield conditions
        switches = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw - switches
        self.read_clocks()
        cpu, wait_ms, sm_clock = run_queue.lost_share(), run_queue.wait_ms(), self._clocks.pause()
        seconds = perf_counter() - started
        gpu = None if self._cuda is None else nvml.share_beside_run(self._cuda, seconds)
        self._switches += switches
        self._waits_ms.append(wait_ms)
        self._lost.append((seconds, cpu, gpu))
        changed = snapshot().since(compiled).describe()
        self._reasons += [] if changed is None or changed in self._reasons else [changed]
        self._retries += self._allocator_retries() - retries
        conditions |= {"run_queue_wait_ms": wait_ms, "descheduled": switches, "sm_clock_mhz": sm_clock}
        conditions |= {"cpu_lost_share": cpu, "gpu_lost_share": gpu}

    def gpu_lost_share(self) -> float | None:
        """Return the share of the GPU that other processes took in the last window; None where it is not known."""
        return self._lost[-1][2] if self._lost else None

    def read_clocks(self) -> None:
        """Read the SM clock, now."""
        self._clocks.read()

    def invalid_reason(self) -> str | None:
        """Return why another program ran inside a window, or None."""
        reasons = list(self._reasons)
        if self._retries:
            retries = f"{self._retries} allocator retries"
            reasons.append(f"{retries} (the device ran out of memory and the cache was flushed)")
        return "; ".join(reasons) or None

    def conditions(self, warmup: Warmup, *, cold: bool) -> LatencyConditions:
        """Return the conditions of all windows so far."""
        waits = [wait for wait in self._waits_ms if wait is not None]
        lost = {
            "cpu_lost_share": _mean_share([(seconds, cpu) for seconds, cpu, _ in self._lost]),
            "gpu_lost_share": _mean_share([(seconds, gpu) for seconds, _, gpu in self._lost]),
        }
        return LatencyConditions(
            cold=cold,
            warmup_seconds=warmup.seconds,
            settled=warmup.settled,
            pinned_cores=self._cores,
            descheduled=self._switches,
            run_queue_wait_ms=sum(waits) if waits and len(waits) == len(self._waits_ms) else None,
            **{**msgspec.structs.asdict(self._clocks.conditions()), **lost},
        )

    def _allocator_retries(self) -> int:
        return 0 if self._cuda is None else torch.cuda.memory_stats(self._cuda).get("num_alloc_retries", 0)


def _observed(sample: Callable[[], Sample], calls: CallMonitor) -> Callable[[], Sample]:
    def observed() -> Sample:
        taken = sample()
        calls(taken.wall)
        return taken

    return observed


def _mean_share(shares: Sequence[tuple[float, float | None]]) -> float | None:
    """Return the mean of (seconds, share of them); None where a share is not known."""
    known = [(seconds, share) for seconds, share in shares if share is not None]
    total = sum(seconds for seconds, _ in known)
    return sum(seconds * share for seconds, share in known) / total if total and len(known) == len(shares) else None


def _window(start_s: float, samples: Sequence[Sample]) -> WindowSamples:
    return WindowSamples(
        start_s=start_s,
        wall_ms=tuple(sample.wall for sample in samples),
        host_ms=tuple(sample.host for sample in samples if sample.host is not None),
        device_ms=tuple(sample.device for sample in samples if sample.device is not None),
    )
