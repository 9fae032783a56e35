"""Runs the cells of a run: each alone, or those of a component in turns, each in a process or all in one.

Cells are prepared side by side, as cores and memory allow: those of later components, and second processes of cells,
too. Nothing is timed meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from math import inf
from typing import Any, Self

from profiling.metrics.sampling import Turn
from profiling.results.record import BASELINE
from profiling.run.cell_records import LiveCell
from profiling.run.compile_caches import compares_times, compiled_ahead, compiled_code, shares_code
from profiling.run.job import FORWARD, LATENCY
from profiling.run.process import InProcess
from profiling.run.session import Pending, most_processes, side_by_side, wait
from profiling.run.turns import Placement, take_turns

#: A further cell is prepared beside others where this many times the memory of the largest of them is free.
MEMORY_MARGIN = 1.2
#: Most cells in preparation, as a multiple of those that may work at a time: the others wait for code, but use memory.
MOST_ALIVE = 2
#: What a control does not do.
_ONLY_ONCE = ("trace", "starts", "counters", "memory_snapshot", "stacks")


class CellsInTurns:
    """Prepares cells, times them in turns, and ends them, in the order of the caller.

    A context manager: at the end of its block the remaining cells are killed; after an interruption by the user,
    what they measured is kept. `now` returns seconds. Cells that run out of memory beside others are appended to
    `again`, to be measured once more; without that list they fail. `free` is the memory before the first cell, in
    bytes by kind.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        again: list[LiveCell] | None = None,
        free: Mapping[str, int] | None = None,
    ) -> None:
        self.again, self._now = again, now
        self.waiting: list[LiveCell] = []
        self._preparing: list[LiveCell] = []
        self._controls: dict[LiveCell, LiveCell] = {}  # by the cell; prepared, being prepared, or dead
        # Memory, by what was alive when it was measured.
        self._free: dict[frozenset[LiveCell], Mapping[str, int]] = {frozenset(): free or {}}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        alive = (*self.waiting, *(each for each in self._preparing if not each.is_control))
        for each in (*self.waiting, *self._preparing, *self._controls.values()):
            each.close()
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            for each in alive:
                each.records.keep_interrupted(each)

    @property
    def _placed(self) -> list[LiveCell]:
        """Cells and controls that have been prepared and are alive."""
        return [*self.waiting, *(each for each in self._controls.values() if each.placement and each.session)]

    def lacking_memory(self) -> str:
        """Return why no further cell fits beside those that wait or are prepared, or an empty string.

        What is free was measured when a cell had been prepared, beside those that are alive now, and maybe others.
        """
        alive = self._placed
        known = [each for each in self._free if each.issuperset(alive)]
        if not known:
            return ""
        taken = [each.waiting_in.ready.used for each in alive] + [_memory_of(each) for each in self._preparing]
        for kind, left in self._free[min(known, key=len)].items():
            used = max((each.get(kind, 0) for each in taken), default=0)
            if left < (1 + len(self._preparing)) * MEMORY_MARGIN * used:
                need, where = MEMORY_MARGIN * used / 1e9, {"device": "of the device", "host": "of the host"}[kind]
                return f"another one would need {need:.1f} GB of the memory {where}, and {left / 1e9:.1f} GB are free"
        return ""

    def prepare(self, cell: LiveCell) -> bool:
        """Prepare a cell beside those that wait; False if it ended before it was ready."""
        self.prepare_all([cell])
        return cell in self.waiting

    def run_alone(self, cell: LiveCell) -> None:
        """Run a cell from its start to its end, without turns."""
        cell.takes_turns = False
        self.prepare(cell)

    def prepare_all(self, cells: Sequence[LiveCell], later: Sequence[LiveCell] = (), most: int = 1) -> list[LiveCell]:
        """Prepare cells beside those that wait, `most` at a time, and return those that there is no memory for.

        The first one goes alone, and the others are expected to need as much memory; if an earlier run has shown what
        each of them needs, none goes alone. Of the cells that compile the same code one begins first, as that takes
        longest; when it compiles the others begin, which wait for that code. If an earlier run has compiled all of it,
        cells that compile nothing begin first, while the compiler is imported for the others. A compiler that compares
        times goes alone. Where there is room, `later` ones are prepared, too, and the controls that the turns need.
        """
        optional = [each for each in later if each.number == 0] if most > 1 else []
        left = [each for each in cells if each.number == 0]
        known = [_memory_of(each) for each in left]  # of all, before a cell of the other revision writes its own
        first = left[0] if left and not self.waiting and not all(known) else None
        while True:
            while self._has_place(most) and (cell := self._next(left, optional, first, most)) is not None:
                for due in (left, optional):
                    if cell in due:
                        due.remove(cell)
                self._begin(cell)
            if self._preparing:
                self._go_on(cells)
            elif left and (early := [each for each in self.waiting if each not in cells]):
                self._give_up(early[-1])
            else:
                break  # all are prepared, or there is no memory
        places = {cell: place for place, cell in enumerate((*cells, *later))}
        self.waiting.sort(key=lambda each: places.get(each, -1))
        return left

    def _next(
        self, left: Sequence[LiveCell], optional: Sequence[LiveCell], first: LiveCell | None, most: int
    ) -> LiveCell | None:
        """Return the next cell that can be prepared beside those that are being prepared; None if none can."""
        if first is not None and first in left:
            return None if self._preparing else first
        goes_alone = first in self._preparing or any(compares_times(each.job) for each in self._preparing)
        # In this process another cell would share the compiler's caches with one that has compiled.
        is_full = any(isinstance(each.executor, InProcess) and each.has_compiled for each in self.waiting)
        if goes_alone or is_full or self.lacking_memory():
            return None
        if most == 1:
            return left[0] if left else None
        fitting = [each for each in (*left, *optional) if not (self._preparing and compares_times(each.job))]
        codes = {_code(each) for each in self._preparing if self._is_compiled_anew(each)}
        fitting = [each for each in fitting if not (compiled_ahead(each.job) and _code(each) in codes)]
        compiling = [each for each in fitting if self._is_compiled_anew(each) and _code(each) not in codes]
        if compiling or any(self._will_compile(each) for each in self._preparing):
            return next(iter(compiling), None)  # others would share the device with what these do before they compile
        following = min(
            (*fitting, *self._without_control(left, optional)), key=lambda each: each.job.compiles, default=None
        )
        if following is None or following in fitting:
            return following
        return self._controls.setdefault(following, _control_of(following))

    def _without_control(self, *due: Sequence[LiveCell]) -> list[LiveCell]:
        """Return the cells that have begun, need a control (a second process) when turns begin, and have none yet.

        These are the baseline and the recipe with the most steps, which is probably the fastest; one with more steps
        may still be `due`.
        """
        begun = [each for each in (*self.waiting, *self._preparing) if not each.is_control]
        most = dict[str, int]()
        for each in chain(begun, *due):
            most[each.job.row] = max(most.get(each.job.row, 0), each.job.steps)
        needed = [each for each in begun if each.job.variant == BASELINE or each.job.steps == most[each.job.row]]
        possible = [each for each in needed if shares_code(each.job) or not each.job.compiles]
        return [each for each in possible if each.job.takes_windows and each not in self._controls]

    def _is_compiled_anew(self, cell: LiveCell) -> bool:
        """Return whether a cell compiles code that is not in the caches."""
        return cell.job.compiles and not cell.executor.caches.has_code(cell.job)

    def _will_compile(self, cell: LiveCell) -> bool:
        """Return whether a cell in preparation still plays its component eagerly, and then compiles anew."""
        compiles = self._is_compiled_anew(cell) and not compiled_ahead(cell.job)
        return compiles and not (cell.is_control or cell.is_held or cell.may_prepare)

    def _begin(self, cell: LiveCell) -> None:
        if cell.is_control or cell.records.begin(cell):
            others = any(_code(each) == _code(cell) for each in self._preparing)
            cell.start(loads=shares_code(cell.job) and (others or cell.executor.caches.has_code(cell.job)))
            self._preparing.append(cell)
            self._resume(cell, is_due=True)

    def _has_place(self, most: int) -> bool:
        """Return whether one more cell may begin: held cells are idle, but use memory."""
        return self._active < most and len(self._preparing) < MOST_ALIVE * most

    @property
    def _active(self) -> int:
        """How many cells are being prepared, without those that wait until others have compiled their code."""
        return sum(not each.is_held for each in self._preparing)

    def _go_on(self, due: Sequence[LiveCell]) -> None:
        """Wait until one of the processes has sent something, and handle it."""
        for each in tuple(self._preparing):
            if each.is_held and each in self._preparing:  # a control may have ended with its cell
                self._resume(each, is_due=each in due)
        active = tuple(each for each in self._preparing if not each.is_held)
        wait([each.pending for each in active if each.pending is not None])
        for each in active:
            if each not in self._preparing:
                continue  # a control that has ended with its cell
            each.concurrent = max(each.concurrent, self._active - 1)
            if not each.is_control:
                each.records.show(each, again=True)
            self._resume(each, is_due=each in due)

    def _may_prepare(self, cell: LiveCell) -> bool:
        """Return whether a cell need not wait: its code is in the caches, or no other cell compiles it.

        A control never compiles first: the seconds that compiling takes belong in the record of a cell.
        """
        others = [each for each in self._preparing if each is not cell and _code(each) == _code(cell)]
        waits = any(each.may_prepare or (cell.is_control and not each.is_control) for each in others)
        return cell.executor.caches.has_code(cell.job) or not waits

    def _resume(self, cell: LiveCell, *, is_due: bool) -> None:
        """Let the process of a cell go on until there is nothing to read, the cell is ready, is held, or has ended."""
        stops = not cell.is_held and cell.resume()
        if cell.measured.prepare is not None:
            cell.executor.caches.add_code(cell.job)
        if cell.is_held and self._may_prepare(cell):
            stops = cell.resume(Turn())
        if not stops:
            return
        if cell.placement is not None:
            self._preparing.remove(cell)
            if not cell.is_control:
                self.waiting.append(cell)
                cell.executor.caches.keep_memory(cell.job, cell.placement.ready.used)
            self._free[frozenset(self._placed)] = cell.placement.ready.free
            return
        if not cell.is_control:
            self._ended(cell, is_due=is_due)
        self._preparing.remove(cell)

    def _ended(self, cell: LiveCell, *, is_due: bool) -> None:
        """Keep the record of a cell that ended before it was ready, unless it is to run once more."""
        has_company = bool(self.waiting) or len(self._preparing) > 1  # maybe its own control
        self._end_controls([cell])
        if cell.ran_out_of_memory:
            cell.executor.caches.keep_memory(cell.job, {})  # it takes more than an earlier run has noted
        if not (cell.ran_out_of_memory and has_company and self.again is not None):
            cell.records.end(cell)
        elif is_due:
            self.again.append(cell)
        else:
            self._give_up(cell)

    def _give_up(self, cell: LiveCell) -> None:
        """End a cell that is prepared before it is due, for want of memory; it will begin once more."""
        cell.close()
        if cell in self.waiting:
            self.waiting.remove(cell)
        self._end_controls([cell])
        cell.anew()
        cell.records.total += 1

    def time(
        self, cells: Sequence[LiveCell], seconds: float | None, most_turns: float = inf, *, with_controls: bool = True
    ) -> None:
        """Time cells in turns until every comparison between them is decided, or a limit is met."""
        cells = [each for each in cells if each.waiting_in.ready.takes_windows]
        if not cells:
            return
        records, settings = cells[0].records, cells[0].job.settings
        _show(cells, "turns")
        again, placements = self._again if with_controls else None, [each.waiting_in for each in cells]
        spreads, late = records.spreads, settings.late_share
        take_turns(placements, seconds, settings.seed, self._now, again, spreads, late, most_turns)

    def _again(self, placement: Placement) -> Placement | None:
        """Return the control of a cell that waits, which is only timed; None where there is none."""
        cell = next(each for each in self.waiting if each.placement is placement)
        if cell not in self._controls:
            # A second placement in this process would not show by how much processes differ.
            if isinstance(cell.executor, InProcess) or self.lacking_memory():
                return None
            cell.records.progress.phase("control")
            self._controls[cell] = _control_of(cell)
            self._begin(self._controls[cell])
            while self._preparing:
                self._go_on(())
        return self._controls[cell].placement if self._controls[cell].session is not None else None

    def finish(self, cells: Sequence[LiveCell], note: str = "") -> None:
        """Let cells finish: one by one until they have traced their kernels, then side by side the analysis of traces.

        Where there is no room for that, or in this process, each finishes before the next.
        """
        timed = [each for each in self.waiting if each.placement and each.placement.start]
        self._end_controls(timed)
        if timed and cells:
            _show(cells, "finish")
        settings = cells[0].job.settings if cells else None
        at_once = settings is not None and not (settings.counters or settings.memory_snapshot)
        at_once = at_once and most_concurrent(cells) >= len(cells) and not self.lacking_memory()
        for together in [tuple(cells)] if at_once else [(each,) for each in cells]:
            for each in together:
                each.records.show(each)
                each.finish()
                if each.session is None:
                    self._finished(each, note)
            for pending in side_by_side(self._ending(each, note) for each in together if each.session is not None):
                wait([pending])

    def _ending(self, cell: LiveCell, note: str) -> Generator[Pending, Any, None]:
        yield from cell.ending()
        self._finished(cell, note)

    def _finished(self, cell: LiveCell, note: str) -> None:
        """Write the record of a cell that has ended; one that ran out of memory beside others is measured again."""
        if cell.ran_out_of_memory and cell.placement and cell.placement.others and self.again is not None:
            self.again.append(cell)
        else:
            cell.records.end(cell, note)
        self.waiting.remove(cell)

    def _end_controls(self, cells: Sequence[LiveCell]) -> None:
        """End the controls of cells: what follows needs the memory, and an idle device."""
        for each in cells:
            if each in self._controls:
                control = self._controls.pop(each)
                control.close()
                if control in self._preparing:
                    self._preparing.remove(control)


def _show(cells: Sequence[LiveCell], phase: str) -> None:
    """Show in the progress display what cells that have been prepared do together."""
    names = [each.label for each in cells]
    progress, which = cells[0].records.progress, " and ".join(names) if len(names) <= 2 else f"{len(names)} variants"
    progress.begin(f"{cells[0].job.row} · {which}", 0, 0)
    progress.phase(phase)


def _code(cell: LiveCell) -> tuple[str, str | None]:
    """Return the run, which has caches of its own, and what determines the code that a cell of it compiles."""
    return str(cell.records.folder), compiled_code(cell.job)


def _memory_of(cell: LiveCell) -> Mapping[str, int]:
    """Return the memory in bytes, by kind, that a cell took in an earlier run; empty where that is unknown."""
    return cell.executor.caches.memory_of(cell.job)


def _control_of(cell: LiveCell) -> LiveCell:
    """Return a second process of a cell, in which it is timed and nothing else."""
    job = cell.job
    settings = replace(job.settings, **dict.fromkeys(_ONLY_ONCE, False), ceilings="off")
    metrics = {name: node for name, node in job.metrics.items() if node["_target_"] == LATENCY}
    return LiveCell(cell.records, cell.executor, replace(job, settings=settings, metrics=metrics), is_control=True)


def run_in_turns(turns: CellsInTurns, cells: Sequence[LiveCell], later: Sequence[LiveCell] = ()) -> None:
    """Prepare cells, time them in turns, and let each finish: those of a component, say.

    Where there is no memory for all of them, those that are prepared take their turns first. Then the first one, with
    which the others are compared, stays if it leaves room, and the others follow beside it. `later` cells are those of
    other components, which are prepared meanwhile where there is room.
    """
    note, seconds, most = "", cells[0].records.config.seconds, most_concurrent(cells)

    def ready() -> list[LiveCell]:
        return [each for each in cells if each in turns.waiting]

    def time_and_finish(ending: Sequence[LiveCell]) -> None:
        """Let the cells that wait take turns, for the share of the component's seconds of those that then end."""
        turns.time(ready(), None if seconds is None else seconds * len(ending) / len(cells))
        # In one process a cell that ends must leave nothing behind that was there when another began.
        turns.finish(ending[::-1] if isinstance(cells[0].executor, InProcess) else ending, note)

    left = turns.prepare_all(cells, later, most)
    while left:
        if lacking := turns.lacking_memory():
            note = f"not all variants were prepared at the same time: {lacking}"
        time_and_finish(ready()[1:] or ready())
        left = turns.prepare_all(cells, most=most)
    time_and_finish(ready())


def waits(cells: Sequence[LiveCell]) -> bool:
    """Return whether cells may wait when they are prepared: for their windows, or for others to be prepared, too."""
    job = cells[0].job
    return job.procedure["_target_"] == FORWARD["_target_"] or (job.waits and most_concurrent(cells) > 1)


def most_concurrent(cells: Sequence[LiveCell]) -> int:
    """Return how many of these cells may be prepared at the same time.

    Only one in this process, where starts are measured, or a compile log, or where a cell may not wait when it is
    prepared, and is measured then.
    """
    job = cells[0].job
    waits = not isinstance(cells[0].executor, InProcess) and (job.takes_windows or job.waits)
    return most_processes() if waits and not (job.settings.starts or job.settings.trace) else 1


def run_again(cells: Sequence[LiveCell]) -> None:
    """Run cells alone that have run out of memory beside others."""
    for cell in cells:
        cell.records.total += 1  # it is begun once more
        cell.anew()
        cell.notes.append("measured again, alone: together with other variants it ran out of memory")
        with CellsInTurns() as turns:
            turns.run_alone(cell)
