"""Gives the cells of a component their turns: short windows, one cell active at a time, until the answer is known.

The cells have been prepared and wait, each in its process. In a block each cell has one window; the order of a block is
drawn, and the next block has it reversed (A B B A), so that a steady drift of the machine meets all cells alike. What
slows the machine for longer than a block slows neighbouring windows alike, and cancels out in their ratio.

After `CONTROL_AFTER` blocks the baseline, the best cell and those near it are prepared once more, as controls: how much
equal code differs between processes can only be seen in a second process. Turns end at a planned look (`judge.LOOKS`)
at which each comparison has its answer, or with the budget.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from statistics import median

import numpy as np

from profiling.machine.spreads import Spreads
from profiling.metrics.sampling import Ready, StoppedBy, Turn, WindowSamples
from profiling.results.judge import LOOKS, Cell, Windows, control_pairs, holds, is_settled
from profiling.results.judge import Spread as JudgedSpread
from profiling.results.measured import LATE, LEAST_VALUES, Control, Spread, Turns, Window
from profiling.results.stats import rates_of_calls
from profiling.results.verdicts import kind_of
from profiling.run.child import Performed, Session, advance

#: Shortest and longest window, in seconds; between them it has room for `WINDOW_CALLS` calls.
SHORTEST, LONGEST = 0.1, 0.5
WINDOW_CALLS = 10
#: Fewest windows that the limits of a cell leave room for, and those over which the samples of a fast cell are spread.
LEAST, SPREAD = 8, 20
#: Blocks after which controls are prepared. Cells within `NEAR` (relative) of the best one have a control, too.
CONTROL_AFTER, NEAR = 2, 0.03
#: Blocks that are taken beyond the budget where it suffices for no answer, and how many budgets they may take.
ENOUGH, MOST_BUDGETS = LEAST_VALUES + CONTROL_AFTER, 3.0
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
    device: str = "cpu"
    is_captured: bool = False
    frames_per_call: int = 1
    windows: list[tuple[int, WindowSamples]] = field(default_factory=list)
    beside: dict[str, None] = field(default_factory=dict)  # variants that were prepared at the same time
    controls: list[Resident] = field(default_factory=list)
    spread: Spread | None = None
    stopped_by: StoppedBy | None = None
    has_ended: bool = False

    @property
    def kind(self) -> str:
        """What decides how much equal code differs between processes."""
        wall, host = (sum(sum(getattr(each, clock)) for _, each in self.windows) for clock in ("wall_ms", "host_ms"))
        share = host / wall if wall and host else 1.0
        return kind_of(self.device, captured=self.is_captured, pinned=self.ready.pinned, host_share=share)

    def samples(self, first: int = 0) -> int:
        """Return the number of its samples from the block `first` on."""
        return sum(len(window.wall_ms) for block, window in self.windows if block >= first)

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

    def placement(self) -> Windows:
        """Return its windows as the judge reads them."""
        return Windows.of(
            [median(window.wall_ms) for _, window in self.windows],
            [block for block, _ in self.windows],
            [max(window.cpu_lost_share or 0.0, window.gpu_lost_share or 0.0) for _, window in self.windows],
            session="turns",
        )

    def cell(self, spread: JudgedSpread) -> Cell:
        """Return what the judge compares: its windows and those of its controls."""
        placed = [each for each in (self, *self.controls) if each.windows]
        return Cell(tuple(each.placement() for each in placed), spread)

    def section(self, start: Start) -> Turns:
        """Return the section of the record."""
        return Turns(
            began=start.utc,
            beside=tuple(self.beside),
            one_process=start.one_process,
            windows=self._recorded(start),
            stopped_by=self.stopped_by,
            controls=tuple(Control(windows=each._recorded(start)) for each in self.controls if each.windows),
            spread=self.spread,
        )

    def _recorded(self, start: Start) -> tuple[Window, ...]:
        return tuple(
            Window(
                block=block,
                start_s=window.start_s - start.seconds,
                n=len(window.wall_ms),
                p50=median(window.wall_ms),
                run_queue_wait_ms=window.run_queue_wait_ms,
                descheduled=window.descheduled,
                cpu_lost_share=window.cpu_lost_share,
                gpu_lost_share=window.gpu_lost_share,
                sm_clock_mhz=window.sm_clock_mhz,
            )
            for block, window in self.windows
        )


@dataclass
class WaitingProcess:
    """The process of a resident."""

    session: Session
    performed: Performed | None = None  # how it has ended

    def window(self, turn: Turn) -> WindowSamples | None:
        """Let the cell time one window; None where its process has ended."""
        try:
            return advance(self.session, turn).window
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
    seconds = min(LONGEST, max(SHORTEST, WINDOW_CALLS * ready.call_s), ready.max_seconds / LEAST)
    return Turn(seconds=seconds, calls=max(1, ready.max_iterations // SPREAD))


#: Starts a second process of a cell, its control; returns None if memory does not suffice, or if the process fails.
Again = Callable[[Resident], Resident | None]


def take_turns(
    residents: Sequence[Resident],
    seconds: float | None,
    seed: int,
    now: Callable[[], float] = time.monotonic,
    again: Again | None = None,
    spreads: Spreads | None = None,
    late: float = LATE,
) -> None:
    """Give the cells windows until they can be compared, or `seconds` are spent; the baseline is the first cell.

    Without `seconds`, the cells may take as long as their own limits would allow them one after the other. Preparing
    controls by `again` does not count. `spreads` holds the learned spreads of the device and is extended. `late` is
    the share of calls that may be late where a rate is held. A cell whose process ends costs its own windows only.
    """
    for resident in residents:
        resident.beside |= dict.fromkeys(other.variant for other in residents if other is not resident)
    spreads = Spreads() if spreads is None else spreads
    budget = sum(resident.ready.max_seconds for resident in residents) if seconds is None else seconds
    first = 1 + max((block for resident in residents for block, _ in resident.windows), default=-1)
    rng, spent, block = random.Random(seed), 0.0, first
    order, alive, stopped_by = list(residents), list(residents), None
    while alive and stopped_by is None:
        if (block - first) % 2 == 0:
            rng.shuffle(order)
        else:
            order.reverse()
        began = now()
        for resident in order:
            if not resident.has_ended:
                resident.take(block)
        for resident in residents:  # with the few windows of one that died, fewer blocks would have all of a cell
            resident.controls = [control for control in resident.controls if not control.has_ended]
        spent, block = spent + now() - began, block + 1
        alive = [resident for resident in residents if not resident.has_ended]
        if again is not None and block - first == CONTROL_AFTER and len(alive) > 1:
            order += _add_controls(alive, again)
        stopped_by = _stopped_by(alive, first, block - first, budget, spent, spreads, late) if alive else None
    for resident in residents:
        resident.stopped_by = stopped_by
        if resident.spread is None:  # else it was kept when turns ended before, beside other cells
            spreads.keep(resident.kind, _pairs([resident], spreads))
    for resident in residents:
        resident.spread = spreads.section(resident.kind)


def _add_controls(residents: Sequence[Resident], again: Again) -> list[Resident]:
    """Prepare the first cell, the best one and those near it once more, as far as memory allows."""
    times = {id(each): float(np.mean([median(window.wall_ms) for _, window in each.windows])) for each in residents}
    best = min(times.values())
    near = sorted(residents, key=lambda each: (each is not residents[0], times[id(each)]))
    added = list[Resident]()
    for each in near:
        if not each.controls and (each is residents[0] or times[id(each)] <= (1 + NEAR) * best):
            control = again(each)
            if control is not None:
                each.controls.append(control)
                added.append(control)
    return added


def _stopped_by(
    residents: Sequence[Resident], first: int, blocks: int, budget: float, spent: float, spreads: Spreads, late: float
) -> StoppedBy | None:
    """Return what ends the turns after so many blocks from the block `first` on; None: they go on."""
    sampled = all(resident.samples(first) >= resident.ready.min_iterations for resident in residents)
    if blocks in LOOKS and sampled:
        learned = _learned(residents, spreads)
        cells = [each.cell(learned[each.kind]) for each in residents]
        leader = residents[min(range(len(cells)), key=lambda place: cells[place].log_ms)]
        left = max(0.0, budget - spent) / max(spent, 1e-9) * leader.samples(first)  # calls until the budget is spent
        if is_settled(cells, LOOKS[blocks]) and not _wants_calls(leader, late, left):
            return "decided"
    if any(resident.samples(first) >= resident.ready.max_iterations for resident in residents):
        return "iterations"
    # Beside other processes a window may take much longer than its cell asked for: fewer windows would say nothing.
    enough = blocks >= ENOUGH or spent >= MOST_BUDGETS * budget
    return "time" if spent >= budget and enough else None


def _learned(residents: Sequence[Resident], spreads: Spreads) -> Mapping[str, JudgedSpread]:
    """Return the spread of each kind, with what the controls show so far."""
    kinds = dict.fromkeys(each.kind for each in residents)
    return {
        kind: spreads.known(kind).learned(_pairs([each for each in residents if each.kind == kind], spreads))
        for kind in kinds
    }


def _pairs(residents: Sequence[Resident], spreads: Spreads) -> list[tuple[float, float]]:
    """Return what the controls of cells show."""
    return control_pairs([each.cell(spreads.known(each.kind)) for each in residents if each.controls and each.windows])


def _wants_calls(leader: Resident, late: float, left: float) -> bool:
    """Return whether more calls of the best cell would tell if it holds a frame rate, and `left` calls suffice."""
    wall_ms = [ms for _, window in leader.windows for ms in window.wall_ms]
    rates = rates_of_calls(wall_ms, leader.frames_per_call)
    judged = [holds(each.misses, each.bursts or 0, len(wall_ms), late) for each in rates]
    return any(each.answer == "undecided" and each.wanted <= left for each in judged)


def lacking_memory(residents: Sequence[Resident], preparing: int = 0) -> str:
    """Return why no further cell may be prepared beside these, in words with GB; empty where one fits.

    What a further cell needs, and each that is `preparing`, is estimated by the largest of these, and what is free is
    what the last one measured.
    """
    for kind, free in residents[-1].ready.free.items():
        used = max(resident.ready.used.get(kind, 0) for resident in residents)
        if free < (1 + preparing) * MEMORY_MARGIN * used:
            need, where = MEMORY_MARGIN * used / 1e9, {"device": "of the device", "host": "of the host"}[kind]
            return f"another one would need {need:.1f} GB of the memory {where}, and {free / 1e9:.1f} GB are free"
    return ""
