"""Gives the cells of a component their turns: short windows, one cell active at a time, until the answer is known.

The cells have been prepared and wait, each in its process. In a block each cell has one window; the order of a block is
drawn, and the next block has it reversed (A B B A), so that a steady drift of the machine meets all cells alike. What
slows the machine for longer than a block slows neighbouring windows alike, and cancels out in their ratio.

After `CONTROL_AFTER` blocks the baseline, the best cell and those that may be as fast are prepared once more, as
controls: how much equal code differs between processes can only be seen in a second process. Turns end at a planned
look (`judge.LOOKS`) at which each comparison has its answer, or with the budget; whether a frame rate is held needs
more calls of the best cell alone.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf
from statistics import median

import numpy as np

from profiling.machine.spreads import Spreads
from profiling.metrics.sampling import Ready, StoppedBy, Turn, WindowSamples, window_of
from profiling.results.judge import (
    LOOKS,
    ONE_PROCESS,
    Cell,
    control_pairs,
    fewest_windows,
    holds,
    is_settled,
    rank,
)
from profiling.results.measured import LATE, LEAST_VALUES, Control, Spread, Turns, Window
from profiling.results.stats import rates_of_calls
from profiling.results.verdicts import kind_of, windows_of

#: Blocks after which controls are prepared. A cell near the best one has a control, too: within 3%, or within so many
#: standard deviations of what equal code of its kind differs by, so that a second process may decide of it.
CONTROL_AFTER, NEAR, NEAR_SPREADS = 2, 0.03, 3.0
#: Blocks that are taken beyond the budget where it suffices for no answer, and how many budgets they may take.
ENOUGH, MOST_BUDGETS = LEAST_VALUES + CONTROL_AFTER, 3.0
#: Share of the budget (0 to 1) that may be spent beyond it on calls that tell whether the best cell holds a rate.
RATES_SHARE = 0.1
#: Times that further calls are made for that; each look may be wrong.
RATE_LOOKS = 2


@dataclass
class Start:
    """When the cells of a component began to take turns: UTC for the record, seconds on the clock of the windows."""

    utc: str = field(default_factory=lambda: datetime.now(UTC).isoformat())
    seconds: float = field(default_factory=time.perf_counter)  # CLOCK_MONOTONIC, which all processes share
    turns: int = 0  # that have been given since, also to a cell alone


@dataclass(eq=False)
class Placement:
    """A cell prepared in a process, or in this one, where it waits for its turns, and the windows that it has had."""

    name: str  # its variant, and which of the runs it is of where there are several
    ready: Ready
    window: Callable[[Turn], WindowSamples | None]  # lets it time one window; None: it cannot go on
    device: str = "cpu"
    is_captured: bool = False
    frames_per_call: int = 1
    start: Start | None = None  # once it has taken turns
    windows: list[tuple[int, WindowSamples]] = field(default_factory=list)  # with the number of the turn
    others: dict[str, None] = field(default_factory=dict)  # names of those that were prepared at the same time
    controls: list[Placement] = field(default_factory=list)
    spread: Spread | None = None
    stopped_by: StoppedBy | None = None
    rate_looks: int = 1  # at whether it holds a frame rate
    has_ended: bool = False

    @property
    def kind(self) -> str:
        """What decides how much equal code differs between processes."""
        wall, host = (sum(sum(getattr(each, clock)) for _, each in self.windows) for clock in ("wall_ms", "host_ms"))
        share = host / wall if wall and host else 1.0
        return kind_of(self.device, captured=self.is_captured, pinned=self.ready.pinned, host_share=share)

    def samples(self, first: int = 0) -> int:
        """Return the number of its samples from the turn `first` on."""
        return sum(len(window.wall_ms) for turn, window in self.windows if turn >= first)

    def take(self, turn: int, now: Callable[[], float]) -> float:
        """Let the cell time one window, in the turn of this number; it may end in it.

        Return the seconds of its warm-up, which comes before its first window.
        """
        began, is_first = now(), not self.windows
        window = self.window(window_of(self.ready))
        if window is None:
            self.has_ended = True
            return 0.0
        self.windows.append((turn, window))
        return max(0.0, window.start_s - began) if is_first else 0.0

    def cell(self, spread: Spread) -> Cell:
        """Return what the judge compares: its windows and those of its controls."""
        placed = [each for each in (self, *self.controls) if each.windows]
        start = self.start or Start()
        return Cell(tuple(windows_of(each._recorded(start), "turns") for each in placed), spread)

    def section(self) -> Turns | None:
        """Return the section of the record; None if it took no turns."""
        if self.start is None or not self.windows:
            return None
        return Turns(
            began=self.start.utc,
            beside=tuple(self.others),
            windows=self._recorded(self.start),
            stopped_by=self.stopped_by,
            controls=tuple(Control(windows=each._recorded(self.start)) for each in self.controls if each.windows),
            spread=self.spread,
            rate_looks=self.rate_looks,
        )

    def _recorded(self, start: Start) -> tuple[Window, ...]:
        return tuple(
            Window(
                block=turn,
                start_s=window.start_s - start.seconds,
                n=len(window.wall_ms),
                p50=median(window.wall_ms),
                min=min(window.wall_ms),
                cpu_lost_share=window.cpu_lost_share,
                gpu_lost_share=window.gpu_lost_share,
            )
            for turn, window in self.windows
        )


#: Places a cell a second time, as its control; returns None if memory does not suffice, or if that fails.
Again = Callable[[Placement], Placement | None]


def take_turns(
    placements: Sequence[Placement],
    seconds: float | None,
    seed: int,
    now: Callable[[], float] = time.monotonic,
    again: Again | None = None,
    spreads: Spreads | None = None,
    late: float = LATE,
    most_turns: float = inf,
) -> None:
    """Give the cells windows until they can be compared, or a limit is met; the baseline is the first cell.

    The limits are `seconds` and `most_turns`. Without `seconds`, the cells may take as long as their own limits would
    allow them one after the other; with 0 seconds they have one window each, which says what a cell takes and decides
    nothing. Preparing controls by `again` and warming up do not count. `spreads` holds the learned spreads of the
    device and is extended. `late` is the share of calls that may be late where a rate is held. A cell whose process
    ends costs its own windows only.
    """
    start = next((each.start for each in placements if each.start is not None), None) or Start()
    for each in placements:
        each.start = each.start or start
        each.others |= dict.fromkeys(other.name for other in placements if other is not each)
    spreads = Spreads() if spreads is None else spreads
    budget = sum(each.ready.max_seconds for each in placements) if seconds is None else seconds
    rng, spent, first = random.Random(seed), 0.0, start.turns
    turn = first
    order = [*placements, *(control for each in placements for control in each.controls)]
    alive, stopped_by = list(placements), None
    while alive and stopped_by is None:
        if (turn - first) % 2 == 0:
            rng.shuffle(order)
        else:
            order.reverse()
        began, warming = now(), 0.0
        for each in order:
            if not each.has_ended:
                warming += each.take(turn, now)
        for each in placements:  # with the few windows of one that died, fewer turns would have all of a cell
            each.controls = [control for control in each.controls if not control.has_ended]
        spent, turn = spent + now() - began - warming, turn + 1
        alive = [each for each in placements if not each.has_ended]
        if again is not None and turn - first == CONTROL_AFTER and len(alive) > 1:
            order += _add_controls(alive, again, spreads)
        stopped_by = _stopped_by(alive, first, turn - first, budget, spent, spreads, late) if alive else None
        if stopped_by is None and turn - first >= most_turns:
            stopped_by = "time"
    if stopped_by in ("decided", "time") and alive and turn - first < most_turns:
        fastest = alive[int(rank({str(n): each.cell(ONE_PROCESS) for n, each in enumerate(alive)}).leader)]
        turn = _settle_rates(fastest, turn, max(budget - spent, RATES_SHARE * budget), late, now)
    start.turns = turn
    for each in placements:
        each.stopped_by = stopped_by
        if each.spread is None:  # else it was kept when turns ended before, beside other cells
            spreads.keep(each.kind, _pairs([each], spreads))
    for each in placements:
        each.spread = spreads.known(each.kind)


def _add_controls(placements: Sequence[Placement], again: Again, spreads: Spreads) -> list[Placement]:
    """Place the first cell, the best one and those near it once more, as far as memory allows."""
    # Other processes can only lengthen a window.
    times = {id(each): min(median(window.wall_ms) for _, window in each.windows) for each in placements}
    best = min(times.values())
    added = list[Placement]()
    for each in sorted(placements, key=lambda each: (each is not placements[0], times[id(each)])):
        near = max(1 + NEAR, np.exp(NEAR_SPREADS * spreads.known(each.kind).std))
        if not each.controls and (each is placements[0] or times[id(each)] <= near * best):
            control = again(each)
            if control is not None:
                each.controls.append(control)
                added.append(control)
    return added


def _stopped_by(
    placements: Sequence[Placement], first: int, turns: int, budget: float, spent: float, spreads: Spreads, late: float
) -> StoppedBy | None:
    """Return what ends the turns after so many from the turn `first` on; None: they go on."""
    if turns in LOOKS and all(each.samples(first) >= each.ready.min_iterations for each in placements):
        learned = _learned(placements, spreads)
        if is_settled([each.cell(learned[each.kind]) for each in placements], LOOKS[turns]):
            return "decided"
    if any(each.samples(first) >= each.ready.max_iterations for each in placements):
        return "iterations"
    # Beside other processes a window may take much longer than its cell asked for: fewer windows would say nothing.
    fewest = fewest_windows(len(placements)) if budget else 1
    enough = turns >= ENOUGH or (turns >= fewest and spent >= MOST_BUDGETS * budget)
    return "time" if spent >= budget and enough else None


def _settle_rates(leader: Placement, turn: int, seconds: float, late: float, now: Callable[[], float]) -> int:
    """Let the best cell alone make the calls that tell if it holds a frame rate, where `seconds` suffice for them.

    Return the number of the next turn.
    """
    began = now()
    for _ in range(RATE_LOOKS):
        wanted, calls = _wanted_calls(leader, late), leader.samples()
        call_ms = float(np.mean([median(window.wall_ms) for _, window in leader.windows]))
        left = min(leader.ready.max_iterations, (seconds - (now() - began)) * 1e3 / call_ms)
        if not 0 < wanted <= left:
            break
        leader.rate_looks += 1
        while leader.samples() - calls < wanted and not leader.has_ended:
            leader.take(turn, now)
            turn += 1
    return turn


def _wanted_calls(leader: Placement, late: float) -> int:
    """Return the fewest further calls that may tell whether a cell holds a frame rate; 0: that is known of each.

    What is known is asked as in the last look, what they can tell as in a further one.
    """
    wall_ms = [ms for _, window in leader.windows for ms in window.wall_ms]
    rates = rates_of_calls(wall_ms, leader.frames_per_call)
    asked = [(each.misses, each.bursts, len(wall_ms), late) for each in rates]
    open_ = [each for each in asked if holds(*each, leader.rate_looks).answer == "undecided"]
    return min((holds(*each, leader.rate_looks + 1).wanted for each in open_), default=0)


def _learned(placements: Sequence[Placement], spreads: Spreads) -> Mapping[str, Spread]:
    """Return the spread of each kind, with what the controls show so far."""
    kinds = dict.fromkeys(each.kind for each in placements)
    return {
        kind: spreads.known(kind).taught(_pairs([each for each in placements if each.kind == kind], spreads))
        for kind in kinds
    }


def _pairs(placements: Sequence[Placement], spreads: Spreads) -> list[tuple[float, float]]:
    return control_pairs([each.cell(spreads.known(each.kind)) for each in placements if each.controls and each.windows])
