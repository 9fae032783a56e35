"""Warm-up, windows and stopping rules of a timed loop; the clock and the step are parameters, so tests replace them.

Nothing here imports torch: the process that gives the cells their turns reads the same types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf
from statistics import median
from typing import Literal

import msgspec

from profiling.errors import InputError, check_number, check_whole
from profiling.results.judge import ONE_PROCESS, Cell, Windows, compare, judged
from profiling.results.measured import Summary
from profiling.results.stats import relative_half_width, summarize

StoppedBy = Literal["interval", "decided", "iterations", "time"]


@dataclass(frozen=True)
class Sample:
    """Milliseconds of one call of the step; host and device times only if the device works asynchronously.

    Raises:
        ValueError: a clock went back or stood still.

    """

    wall: float
    host: float | None = None
    device: float | None = None

    def __post_init__(self) -> None:
        """Check that time has passed."""
        if not 0 < self.wall < inf:
            raise ValueError(f"the wall clock {_instead(self.wall)} during a call")
        for name, value in (("host", self.host), ("device", self.device)):  # a call without work takes 0 ms there
            if value is not None and not 0 <= value < inf:
                raise ValueError(f"the {name} clock {_instead(value)} during a call")


def _instead(passed_ms: float) -> str:
    if passed_ms == 0:
        return "stood still"
    return f"went back by {-passed_ms:.4g} ms" if -inf < passed_ms < 0 else f"advanced by {passed_ms} ms"


@dataclass(frozen=True, kw_only=True)
class SamplingLimits:
    """Limits at which the timed loop stops: width of the median's interval, number of iterations, seconds.

    Raises:
        InputError: an option that is out of range.

    """

    interval: float = 0.01  # relative half width of the median's 95% interval
    min_iterations: int = 60
    max_iterations: int = 2000
    max_seconds: float = 10.0
    warmup_min_iterations: int = 10
    warmup_max_iterations: int = 100_000
    warmup_max_seconds: float = 20.0

    def __post_init__(self) -> None:
        """Check the options."""
        for name in ("min_iterations", "max_iterations", "warmup_min_iterations", "warmup_max_iterations"):
            check_whole(name, getattr(self, name))
        for name in ("interval", "max_seconds", "warmup_max_seconds"):
            check_number(name, getattr(self, name), above=0, below=1 if name == "interval" else inf)
        for low, high in (
            ("min_iterations", "max_iterations"),
            ("warmup_min_iterations", "warmup_max_iterations"),
        ):
            if getattr(self, low) > getattr(self, high):
                raise InputError(f"{low}={getattr(self, low)} is more than {high}={getattr(self, high)}. Raise {high}.")


@dataclass(frozen=True)
class Warmup:
    """Length of the warm-up; `settled` is true if times had settled and nothing compiled any more at its end."""

    iterations: int
    seconds: float
    settled: bool


#: Times have settled when the medians of two consecutive windows differ by less than this share.
SETTLED = 0.05
#: Least number of samples and least seconds of a warm-up window, so that clocks have time to ramp up.
WINDOW_ITERATIONS, WINDOW_SECONDS = 5, 0.1


def warm_up(
    sample: Callable[[], Sample], compiled: Callable[[], object], limits: SamplingLimits, now: Callable[[], float]
) -> Warmup:
    """Call `sample` until times settle and nothing compiles: `compiled()` returns another value after every compile.

    `now` returns seconds.
    """
    start, count, before = now(), 0, None
    while True:
        opened, compiled_before, window = now(), compiled(), []
        while len(window) < WINDOW_ITERATIONS or now() - opened < WINDOW_SECONDS:
            window.append(sample().wall)
            count += 1
            if count >= limits.warmup_max_iterations or now() - start >= limits.warmup_max_seconds:
                return Warmup(count, now() - start, settled=False)
        quiet = compiled() == compiled_before
        current = median(window)
        steady = quiet and before is not None and abs(current - before) <= SETTLED * before
        if steady and count >= limits.warmup_min_iterations:
            return Warmup(count, now() - start, settled=True)
        before = current if quiet else None


#: Fewest seconds and calls of a window, unless its limits are below them.
SHORTEST, WINDOW_CALLS = 0.1, 8


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """What a cell that waits is told: time one window of at most `seconds` and `calls`, or, without them, go on."""

    seconds: float = 0.0
    calls: int = 0
    stopped_by: StoppedBy | None = None  # what ended the turns


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """A cell that is prepared: memory in bytes by kind (device, host), and its limits.

    One that takes no windows waits until it is alone, and is then measured at once: a loop, for example. One that is
    not `prepared` waits until no other cell compiles its code.
    """

    used: dict[str, int]  # by this process, at its peak
    free: dict[str, int]  # now, for any process
    takes_windows: bool = True
    prepared: bool = True
    min_iterations: int = 0
    max_iterations: int = 0
    max_seconds: float = 0.0
    pinned: bool = False  # to cores of its own


class WindowSamples(msgspec.Struct, frozen=True, kw_only=True):
    """Samples of one window in milliseconds, and its conditions; `start_s` is on a clock that all processes share."""

    start_s: float
    wall_ms: tuple[float, ...]
    host_ms: tuple[float, ...] = ()
    device_ms: tuple[float, ...] = ()
    cpu_lost_share: float | None = None
    gpu_lost_share: float | None = None


#: Longest window, in seconds. Fewest windows that the limits of a cell leave room for, and those over which the samples
#: of a fast cell are spread.
LONGEST, LEAST, SPREAD = 0.5, 8, 20


def window_of(ready: Ready) -> Turn:
    """Return the turn for one window of a cell, by its limits."""
    return Turn(seconds=min(LONGEST, ready.max_seconds / LEAST), calls=max(1, ready.max_iterations // SPREAD))


#: Called by a cell that is ready, with a function that times one window; it returns when the cell may go on, with what
#: ended the turns. A cell whose function was never called times itself alone.
TakeTurns = Callable[[Ready, Callable[[Turn], WindowSamples]], StoppedBy | None]

#: Seconds of untimed calls before a window, since other cells have used the caches meanwhile.
REWARM = 0.01


def rewarm(sample: Callable[[], Sample], now: Callable[[], float]) -> None:
    """Make the untimed calls before a window, at least one."""
    start = now()
    sample()
    while now() - start < REWARM:
        sample()


def collect_window(sample: Callable[[], Sample], turn: Turn, now: Callable[[], float], whole: int = 1) -> list[Sample]:
    """Return the samples of one window: a multiple of `whole`, the calls of a trajectory."""
    start, samples = now(), list[Sample]()
    while True:
        samples.append(sample())
        if len(samples) % whole:
            continue
        seconds, calls = now() - start, len(samples)
        if seconds >= turn.seconds or calls >= turn.calls or (seconds >= SHORTEST and calls >= WINDOW_CALLS):
            return samples


#: Calls of a trajectory differ where that is more than this share: less needs no sentence.
DIFFERING = 0.05


def by_call_ms(windows: Sequence[WindowSamples], calls: int) -> dict[str, float]:
    """Return the median wall time in ms of the first, middle and last call of a trajectory, where they differ."""
    if calls < 2 or not windows:
        return {}
    cells, medians = dict[str, Cell](), dict[str, float]()
    for name, number in (("first", 0), ("middle", calls // 2), ("last", calls - 1)):
        parts = [window.wall_ms[number::calls] for window in windows]
        cells[name] = Cell((Windows.of([median(part) for part in parts], session="calls"),), ONE_PROCESS)
        medians[name] = median(ms for part in parts for ms in part)
    pairs = {names: compare(*(cells[name] for name in names)) for names in combinations(cells, 2)}
    answers = {pair.answer(resolution=DIFFERING) for pair in judged(pairs, DIFFERING).values()}
    return medians if answers & {"faster", "slower"} else {}


def collect(window: Callable[[], WindowSamples], limits: SamplingLimits, now: Callable[[], float]) -> StoppedBy:
    """Time windows of a cell that is alone until a limit is met; return which. The warm-up does not count."""
    taken, wall_ms = window(), list[float]()
    began = taken.start_s
    while True:
        wall_ms += taken.wall_ms
        if len(wall_ms) >= limits.min_iterations and relative_half_width(wall_ms) <= limits.interval:
            return "interval"
        if len(wall_ms) >= limits.max_iterations:
            return "iterations"
        if now() - began >= limits.max_seconds:
            return "time"
        taken = window()


def summaries(windows: Sequence[WindowSamples], stopped_by: StoppedBy | None) -> dict[str, Summary]:
    """Return the summary of each clock that was read, in milliseconds: wall_ms, device_ms, host_ms."""
    clocks = {}
    for name in ("wall_ms", "device_ms", "host_ms"):
        if values := [value for window in windows for value in getattr(window, name)]:
            clocks[name] = msgspec.structs.replace(summarize(values), stopped_by=stopped_by)
    return clocks
