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
from msgspec.structs import replace

from profiling.errors import InputError, check_number, check_whole
from profiling.results.judge import ONE_PROCESS, Cell, Windows, compare, judged
from profiling.results.measured import Interference, Summary
from profiling.results.rounds import CLOCKS
from profiling.results.stats import relative_half_width, summarize

StoppedBy = Literal["interval", "decided", "iterations", "time"]


class Sample(msgspec.Struct, frozen=True):
    """Milliseconds of one call of the step; host and device times only if the device works asynchronously.

    Raises:
        ValueError: a clock went back or stood still.

    """

    wall: float
    host: float | None = None
    device: float | None = None

    def __post_init__(self) -> None:
        """Check that time has passed; a call without work takes 0 ms of the host or the device."""
        for name, ms in (("wall", self.wall), ("host", self.host), ("device", self.device)):
            if ms is None or 0 < ms < inf or (ms == 0 and name != "wall"):
                continue
            passed = f"went back by {-ms:.4g} ms" if -inf < ms < 0 else f"advanced by {ms} ms"
            raise ValueError(f"the {name} clock {passed if ms else 'stood still'} during a call")


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
        check_number("interval", self.interval, above=0, below=1)
        for part in ("", "warmup_"):
            low, high, seconds = f"{part}min_iterations", f"{part}max_iterations", f"{part}max_seconds"
            least, most = getattr(self, low), getattr(self, high)
            check_whole(low, least)
            check_whole(high, most)
            check_number(seconds, getattr(self, seconds), above=0)
            if least > most:
                raise InputError(f"{low}={least} is more than {high}={most}. Raise {high}.")


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


class WindowSamples(Interference, frozen=True, kw_only=True):
    """Samples of one window in milliseconds, and its conditions; `start_s` is on a clock that all processes share."""

    start_s: float
    wall_ms: tuple[float, ...]
    host_ms: tuple[float, ...] = ()
    device_ms: tuple[float, ...] = ()


#: Longest window, in seconds. Fewest windows that the limits of a cell leave room for, and those over which the samples
#: of a fast cell are spread.
LONGEST, LEAST, SPREAD = 0.5, 8, 20


def window_of(ready: Ready) -> Turn:
    """Return the turn for one window of a cell, by its limits."""
    return Turn(seconds=min(LONGEST, ready.max_seconds / LEAST), calls=max(1, ready.max_iterations // SPREAD))


#: Called by a cell that is ready, with a function that times one window; it returns when the cell may go on, with what
#: ended the turns. A cell whose function was never called times itself alone.
TakeTurns = Callable[[Ready, Callable[[Turn], WindowSamples]], StoppedBy | None]

#: The untimed calls before a window, at least one, since other cells have used the caches meanwhile.
REWARM = Turn(seconds=0.01, calls=10**9)


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
    clocks = {name: [value for window in windows for value in getattr(window, name)] for name in CLOCKS}
    return {name: replace(summarize(values), stopped_by=stopped_by) for name, values in clocks.items() if values}
