"""What each referee is held by: our times of a callable, and theirs and ours in turns as a row of the table."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from referee_callables import Call
from torch.utils.benchmark import Timer

from profiling.metrics.clocks import CacheFlush, clock_of
from profiling.metrics.sampling import Limits, collect
from profiling.results.stats import median_interval

Measure = Callable[[], float]  # → ms of a call
#: Many short turns: what a host does from second to second (half as fast again, on a shared one) is in both of a turn.
TURNS, BAR = 31, 0.02
#: What a measurement may take, theirs and ours: a device at its power limit has other clocks in the second after.
WARM_UP_MS, MEASURE_MS = 30, 100


@dataclass(frozen=True)
class Row:
    """A callable's times in ms, (theirs, ours) a turn.

    What is held against the bar is the median of the turns' ratios, with its 95% interval: the two of a turn are
    neighbours in time, so what the machine does from turn to turn is in both. An interval that reaches over the bar
    tells nothing.
    """

    call: str
    referee: str
    turns: tuple[tuple[float, float], ...]

    def cells(self) -> tuple[str, ...]:
        theirs, ours = (statistics.median(column) for column in zip(*self.turns, strict=True))
        ratios = [ours / theirs for theirs, ours in self.turns]
        low, high = median_interval(ratios)
        inside, outside = max(1 - low, high - 1) <= BAR, low > 1 + BAR or high < 1 - BAR
        within = "yes" if inside else "no" if outside else "can't tell"
        ratio = f"{statistics.median(ratios):.4f} [{low:.4f}, {high:.4f}]"
        return self.call, self.referee, f"{theirs:.5g}", f"{ours:.5g}", ratio, within

    def to_json(self) -> dict[str, Any]:
        """Return the row with all its turns."""
        return {"call": self.call, "referee": self.referee, "turns_theirs_ours_ms": self.turns}


def in_turns(call: str, referee: str, theirs: Measure, mine: Measure, count: int = TURNS) -> Row:
    """Measure both `count` times, the first of a turn last in the next: a drift over the turns favours neither."""
    turns = []
    for turn in range(count):
        if turn % 2:
            ours_ms = mine()
            turns.append((theirs(), ours_ms))
        else:
            turns.append((theirs(), mine()))
    return Row(call, referee, tuple(turns))


def ours(call: Call, device: torch.device, *, cold: bool = False) -> float:
    """Return our median of a call in ms: of the device's clock where it has one, of the wall clock otherwise.

    One call warms up: the turn before has just run the same.
    """
    clock, flush = clock_of(device), CacheFlush(device) if cold else None

    def take():
        if flush is not None:
            flush()
        return clock.sample(call)

    limits = Limits(interval=1e-6, max_seconds=MEASURE_MS / 1e3)  # never so tight: the whole time, as theirs
    take()
    samples, _ = collect(take, limits, time.perf_counter, lambda: None)
    return statistics.median([sample.wall if sample.device is None else sample.device for sample in samples])


def back_to_back(call: Call, device: torch.device) -> float:
    """Return the median time of a call in ms when the device is waited for once in five calls."""

    def five() -> None:
        for _ in range(5):
            call()

    call()
    clock, rounds = clock_of(device), []
    while sum(rounds) < MEASURE_MS:
        rounds.append(clock.sample(five).wall)
    return statistics.median(rounds) / 5


def timer(call: Call) -> float:
    """Return Timer's median of blocks of five calls in ms; `blocked_autorange` would run a second and more."""
    referee, blocks = Timer("call()", globals={"call": call}), []
    while 5 * sum(blocks) < MEASURE_MS:
        blocks.append(1e3 * referee.timeit(5).median)
    return statistics.median(blocks)
