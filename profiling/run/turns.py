"""Gives the cells of a component their turns: short windows, one cell active at a time, until the answer is known.

The cells have been prepared and wait, each in its process. In a block each cell has one window; the order of a block is
drawn, and the next block has it reversed (A B B A), so that a steady drift of the machine meets all cells alike. What
slows the machine for longer than a block slows neighbouring windows alike, and cancels out in their ratio. A window of
which other processes took too much does not count, so that the turns go on for another one in its place.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import nan
from statistics import median

from profiling.metrics.sampling import Ready, StoppedBy, Turn, WindowSamples
from profiling.results.judgement import lost_in
from profiling.results.measured import LEAST_VALUES, Turns, Window
from profiling.results.stats import is_decided
from profiling.run.worker_process import Performed, Session

#: Shortest and longest window, in seconds; between them it has room for `WINDOW_CALLS` calls.
SHORTEST, LONGEST = 0.1, 0.5
WINDOW_CALLS = 10
#: Least number of windows over which the samples of a fast cell are spread.
SPREAD = 20
#: The turns end after this many blocks where too few of a cell's windows were undisturbed: the others stay.
GIVE_UP = 4 * LEAST_VALUES
#: A further cell is prepared beside others where this many times the memory of the largest of them is free.
MEMORY_MARGIN = 1.2


@dataclass(frozen=True)
class Start:
    """When the cells of a component began to take turns: UTC for the record, seconds on the clock of the windows."""

    utc: str = field(default_factory=lambda: datetime.now(UTC).isoformat())
    seconds: float = field(default_factory=time.perf_counter)  # CLOCK_MONOTONIC, which all processes share
    one_process: bool = False


@dataclass
class Resident:
    """A cell that has been prepared and waits for its turns, and the windows that it has had, with their blocks."""

    variant: str
    ready: Ready
    window: Callable[[Turn], WindowSamples | None]  # lets it time one window; None: it cannot go on
    windows: list[tuple[int, WindowSamples]] = field(default_factory=list)
    beside: dict[str, None] = field(default_factory=dict)  # variants that were prepared at the same time
    stopped_by: StoppedBy | None = None
    has_ended: bool = False

    def undisturbed(self, first: int = 0) -> Mapping[int, WindowSamples]:
        """Return its windows from the block `first` on of which others took little, by block."""
        taken = {block: lost_in(window, sum(window.wall_ms)) for block, window in self.windows if block >= first}
        return {
            block: window
            for block, window in self.windows
            if block >= first and ((lost := taken[block]) is None or not lost.disturbs)
        }

    def samples(self, first: int = 0) -> int:
        """Return the number of samples of its undisturbed windows from the block `first` on."""
        return sum(len(window.wall_ms) for window in self.undisturbed(first).values())

    def take(self, block: int) -> None:
        """Let the cell time one window, as the window of this block; it may end in it."""
        window = self.window(window_of(self.ready))
        if window is None:
            self.has_ended = True
        else:
            self.windows.append((block, window))

    def end(self) -> None:
        """Give it no further windows, and let go of its module, for which others may need the memory."""
        self.window = lambda _: None
        self.has_ended = True

    def section(self, start: Start) -> Turns:
        """Return the section of the record."""
        windows = tuple(
            Window(
                block=block,
                start_s=window.start_s - start.seconds,
                n=len(window.wall_ms),
                run_queue_wait_ms=window.run_queue_wait_ms,
                descheduled=window.descheduled,
                cpu_lost_share=window.cpu_lost_share,
                gpu_lost_share=window.gpu_lost_share,
                sm_clock_mhz=window.sm_clock_mhz,
            )
            for block, window in self.windows
        )
        return Turns(
            began=start.utc,
            beside=tuple(self.beside),
            one_process=start.one_process,
            windows=windows,
            stopped_by=self.stopped_by,
        )


@dataclass
class WaitingProcess:
    """The process of a resident."""

    session: Session
    performed: Performed | None = None  # how it has ended

    def window(self, turn: Turn) -> WindowSamples | None:
        """Let the cell time one window; None where its process has ended."""
        try:
            return self.session.send(turn).window
        except StopIteration as end:
            self.performed = end.value
            return None

    def finish(self, stopped_by: StoppedBy | None) -> Performed:
        """Let the cell do what follows its timing, to its end; without windows it first times itself alone."""
        while self.performed is None:
            self.window(Turn(stopped_by=stopped_by))
        return self.performed


def window_of(ready: Ready) -> Turn:
    """Return the turn for one window of a cell, by the time of its calls and its limits."""
    seconds = min(LONGEST, max(SHORTEST, WINDOW_CALLS * ready.call_s), ready.max_seconds / LEAST_VALUES)
    return Turn(seconds=seconds, calls=max(1, ready.max_iterations // SPREAD))


def take_turns(
    residents: Sequence[Resident],
    seconds: float | None,
    seed: int,
    now: Callable[[], float] = time.monotonic,
) -> None:
    """Give the cells windows until they can be compared, or `seconds` are spent; the baseline is the first cell.

    Without `seconds`, the cells may take as long as their own limits would allow them one after the other. A cell whose
    process ends costs its own windows only. Windows that others disturbed are taken again, in later blocks, unless
    nearly all are disturbed.
    """
    for resident in residents:
        resident.beside |= dict.fromkeys(other.variant for other in residents if other is not resident)
    budget = sum(resident.ready.max_seconds for resident in residents) if seconds is None else seconds
    first = 1 + max((block for resident in residents for block, _ in resident.windows), default=-1)
    rng, start, block = random.Random(seed), now(), first
    order, alive, stopped_by = list(residents), list(residents), None
    while alive and stopped_by is None:
        if (block - first) % 2 == 0:
            rng.shuffle(order)
        else:
            order.reverse()
        for resident in order:
            if not resident.has_ended:
                resident.take(block)
        block += 1
        alive = [resident for resident in residents if not resident.has_ended]
        stopped_by = _stopped_by(alive, first, block, budget, now() - start) if alive else None
    for resident in residents:
        resident.stopped_by = stopped_by


def _stopped_by(
    residents: Sequence[Resident], first: int, block: int, budget: float, elapsed: float
) -> StoppedBy | None:
    """Return what ends the turns after the blocks from `first` to before `block`; None: they go on."""
    undisturbed = [resident.undisturbed(first) for resident in residents]
    medians = [
        [median(windows[number].wall_ms) if number in windows else nan for number in range(first, block)]
        for windows in undisturbed
    ]
    sampled = all(resident.samples(first) >= resident.ready.min_iterations for resident in residents)
    width = min((resident.ready.interval for resident in residents), default=0.0)
    if (block - first) % 2 == 0 and sampled and is_decided(medians, width=width):
        return "decided"
    if any(resident.samples(first) >= resident.ready.max_iterations for resident in residents):
        return "iterations"
    if block - first >= GIVE_UP and min(map(len, undisturbed), default=0) < LEAST_VALUES:
        return "disturbed"
    return "time" if elapsed >= budget else None


def lacking_memory(residents: Sequence[Resident]) -> str:
    """Return why no further cell may be prepared beside these, in words with GB; empty where one fits.

    What a further cell needs is estimated by the largest of these, and what is free is what the last one measured.
    """
    for kind, free in residents[-1].ready.free.items():
        used = max(resident.ready.used.get(kind, 0) for resident in residents)
        if free < MEMORY_MARGIN * used:
            need, where = MEMORY_MARGIN * used / 1e9, {"device": "of the device", "host": "of the host"}[kind]
            return f"another one would need {need:.1f} GB of the memory {where}, and {free / 1e9:.1f} GB are free"
    return ""
