"""What each referee is held by: our times of a callable, and theirs and ours in turns as a row of the table."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from referee_callables import Call
from torch.utils.benchmark import Timer

from profiling.metrics.clocks import CacheFlush, clock_of
from profiling.metrics.sampling import Limits, collect, warm_up
from profiling.tracing.counters import snapshot

Measure = Callable[[], float]  # → ms of a call
TURNS, BAR = 3, 0.02


@dataclass(frozen=True)
class Row:
    """A callable's time in ms, theirs and ours; without `held`, the two are known to measure different things."""

    call: str
    referee: str
    theirs: float
    ours: float
    held: bool = True

    def cells(self) -> tuple[str, ...]:
        ratio = self.ours / self.theirs
        within = ("yes" if abs(ratio - 1) <= BAR else "no") if self.held else "not held"
        return self.call, self.referee, f"{self.theirs:.5g}", f"{self.ours:.5g}", f"{ratio:.4f}", within


def in_turns(call: str, referee: str, theirs: Measure, mine: Measure, *, held: bool = True) -> Row:
    """Measure both, one after the other, `TURNS` times: what the machine does meanwhile is in both."""
    taken = [(theirs(), mine()) for _ in range(TURNS)]
    return Row(call, referee, *(statistics.median(column) for column in zip(*taken, strict=True)), held=held)


def ours(call: Call, device: torch.device, *, cold: bool = False) -> float:
    """Return our median of a call in ms: of the device's clock where it has one, of the wall clock otherwise."""
    clock, flush = clock_of(device), CacheFlush(device) if cold else None

    def take():
        if flush is not None:
            flush()
        return clock.sample(call)

    limits = Limits(interval=0.002, max_seconds=1.5)
    warm_up(take, snapshot, limits, time.perf_counter)
    samples, _ = collect(take, limits, time.perf_counter, lambda: None)
    return statistics.median([sample.wall if sample.device is None else sample.device for sample in samples])


def back_to_back(call: Call, device: torch.device, count: int = 50) -> float:
    """Return the time of a call in ms when the device is waited for once in `count` calls: the median of rounds."""

    def many() -> None:
        for _ in range(count):
            call()

    clock = clock_of(device)
    return statistics.median(clock.sample(many).wall / count for _ in range(9))


def timer(call: Call) -> float:
    return 1e3 * Timer("call()", globals={"call": call}).blocked_autorange(min_run_time=1).median
