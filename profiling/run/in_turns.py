"""Runs cells: alone, or those of a component beside each other, timed in turns, each in a process or all in one."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

from profiling.metrics.sampling import Ready, StoppedBy, Turn, WindowSamples
from profiling.results.verdicts import is_captured
from profiling.run.cell_records import CellInProgress, CellRecords
from profiling.run.job import Job
from profiling.run.process import Executor, InProcess, Isolated
from profiling.run.task import Cell
from profiling.run.turns import Again, Resident, Start, WaitingProcess, lacking_memory, take_turns

#: The metric that takes turns, and what a control does not do.
LATENCY = "profiling.metrics.latency.Latency"
_ONLY_ONCE = ("trace", "starts", "counters", "memory_snapshot", "stacks")


@dataclass(frozen=True)
class DueCell:
    """A cell to be timed in turns, which may be of another run than those beside it."""

    records: CellRecords
    executor: Isolated
    job: Job

    @property
    def name(self) -> str:
        """Its variant, and which of the runs it is of where there are several."""
        label = self.records.label
        return f"{self.job.variant} of {label}" if label else self.job.variant


def run_cell(records: CellRecords, job: Job, executor: Executor, round_: int, note: str = "") -> None:
    """Run one cell from its start to its end."""
    cell = records.begin(job, round_, note)
    if cell is None:
        return
    try:
        cell.events.performed = executor.perform(Cell(job=job), job.name, cell.events.receive)
        records.end(cell)
    except KeyboardInterrupt:
        records.keep_interrupted(cell)
        raise


@dataclass
class PreparedCell:
    """A prepared cell that waits in its process for its turns."""

    due: DueCell
    cell: CellInProgress
    resident: Resident
    process: WaitingProcess


class CellsInTurns:
    """Prepares cells one after the other, times them in turns, and ends them, in the order of the caller.

    A context manager: at the end of its block the remaining cells are killed; after an interruption by the user,
    what they measured is kept. `now` returns seconds. Cells that run out of memory beside others are appended to
    `again`, to be measured once more; without that list they fail.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic, again: list[DueCell] | None = None) -> None:
        self.start, self.again, self._now = Start(), again, now
        self.waiting: list[PreparedCell] = []
        self._controls: list[tuple[WaitingProcess, Resident]] = []
        self._beginning: CellInProgress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for process in (*(each.process for each in self.waiting), *(process for process, _ in self._controls)):
            process.session.close()
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            for cell in (*(each.cell for each in self.waiting), *([self._beginning] if self._beginning else [])):
                cell.records.keep_interrupted(cell, self.start)

    def lacking_memory(self) -> str:
        """Return why no further cell fits beside those that wait, or an empty string."""
        waiting = [*(each.resident for each in self.waiting), *(control for _, control in self._controls)]
        return lacking_memory(waiting) if waiting else ""

    def prepare(self, due: DueCell) -> PreparedCell | None:
        """Prepare a cell beside those that wait; None if it ended before it was ready."""
        cell = self._beginning = due.records.begin(due.job, 1)
        if cell is None:
            return None
        process = WaitingProcess(due.executor.session(Cell(job=due.job), due.job.name, cell.events.receive))
        try:
            ready = next(process.session).ready
        except StopIteration as end:
            cell.events.performed = end.value
            if cell.ran_out_of_memory and self.waiting and self.again is not None:
                self.again.append(due)
            else:
                due.records.end(cell)
            return None
        finally:
            if not isinstance(sys.exception(), KeyboardInterrupt):
                self._beginning = None
        assert ready is not None
        cell.resident = _resident(due.name, ready, process.window, cell)
        self.waiting.append(PreparedCell(due, cell, cell.resident, process))
        return self.waiting[-1]

    def time(self, cells: Sequence[PreparedCell], seconds: float | None, *, with_controls: bool = True) -> None:
        """Let cells take turns until they can be compared, or for `seconds`; a single cell takes none."""
        if cells:
            residents = [each.resident for each in cells]
            again = self._again if with_controls else None
            _time(cells[0].due.records, residents, cells[0].due.job.component.name, seconds, self._now, again)

    def _again(self, resident: Resident) -> Resident | None:
        """Prepare a cell that waits once more, as a control that is only timed; None where that is not possible."""
        if self.lacking_memory():
            return None
        prepared = next(each for each in self.waiting if each.resident is resident)
        job = as_control(prepared.due.job)
        prepared.due.records.progress.phase("control")
        task = Cell(job=job, control=True)
        session = prepared.due.executor.session(task, f"{job.name}.control", lambda event: None)
        process = WaitingProcess(session)
        try:
            ready = next(process.session).ready
        except StopIteration:
            return None
        assert ready is not None
        control = replace(_resident(resident.variant, ready, process.window, prepared.cell), device=resident.device)
        self._controls.append((process, control))
        return control

    def finish(self, cells: Sequence[PreparedCell], note: str = "") -> None:
        """Let cells finish: other metrics, the second parity check, explanations."""
        for each in tuple(cells):
            self._end_controls()  # what follows needs the memory, and an idle device
            each.cell.records.show(each.cell)
            each.cell.events.performed = each.process.finish(each.resident.stopped_by)
            if each.cell.ran_out_of_memory and each.resident.beside and self.again is not None:
                self.again.append(each.due)
            else:
                each.cell.records.end(each.cell, self.start, note)
            self.waiting.remove(each)

    def _end_controls(self) -> None:
        while self._controls:
            self._controls.pop()[0].session.close()


def as_control(job: Job) -> Job:
    """Return the job of a second process of a cell, in which it is timed and nothing else."""
    settings = replace(job.settings, **dict.fromkeys(_ONLY_ONCE, False), ceilings="off")
    metrics = {name: node for name, node in job.metrics.items() if node["_target_"] == LATENCY}
    return replace(job, settings=settings, metrics=metrics)


def _resident(
    name: str, ready: Ready, window: Callable[[Turn], WindowSamples | None], cell: CellInProgress
) -> Resident:
    measured = cell.events.measured
    return Resident(
        name,
        ready,
        window,
        device=cell.job.settings.device,
        is_captured=is_captured(measured),
        frames_per_call=measured.frames_per_call or 1,
    )


def run_in_turns(cells: Sequence[DueCell]) -> None:
    """Prepare cells one after the other, time them in turns, and let each finish: those of a component, say.

    Where there is no memory for another one, those that are prepared take their turns first. Then the first one, with
    which the others are compared, stays if it leaves room, and the others follow beside it.
    """
    note, again, seconds = "", list[DueCell](), cells[0].records.config.seconds

    def time_and_finish(ending: Sequence[PreparedCell]) -> None:
        """Let the cells that wait take turns, for the share of the component's seconds of those that then end."""
        turns.time(turns.waiting, None if seconds is None else seconds * len(ending) / len(cells))
        turns.finish(ending, note)

    with CellsInTurns(again=again) as turns:
        for due in cells:
            while lacking := turns.lacking_memory():
                note = f"not all variants were prepared beside each other: {lacking}"
                time_and_finish(turns.waiting[1:] or turns.waiting)
            turns.prepare(due)
        time_and_finish(turns.waiting)
    for due in again:
        run_again(due.records, [due.job], due.executor)


def run_in_process(records: CellRecords, jobs: Sequence[Job], executor: InProcess) -> None:
    """Run each other cell of a component in the middle of the baseline's timing, in turns with the baseline.

    In one process a compiler's caches hold the graphs of one cell only: a baseline that compiles takes no turns.
    """
    start, left, again, errors = Start(one_process=True), list(jobs[1:]), list[Job](), list[BaseException]()
    baseline = records.begin(jobs[0], 1)
    note, seconds = "", records.config.seconds
    share = None if seconds is None else seconds / max(1, len(left))

    def run_others(ready: Ready, window: Callable[[Turn], WindowSamples]) -> StoppedBy | None:
        nonlocal note
        assert baseline is not None
        failures: list[BaseException] = []

        def guarded(turn: Turn) -> WindowSamples | None:  # the cell in whose middle it is called goes on
            try:
                return window(turn)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                failures.append(error)
                return None

        prepare = baseline.events.measured.prepare
        if prepare is not None and prepare.graphs:
            return None
        baseline.resident = _resident(baseline.job.variant, ready, guarded, baseline)
        try:
            while left and not failures:
                if lacking := lacking_memory([baseline.resident]):
                    note = f"not all variants were prepared beside each other: {lacking}"
                    break
                _run_beside(records, baseline.resident, left.pop(0), executor, start, again, share)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # of the run and not of the cell, which must not handle it
            errors.append(error)
        if failures:
            raise failures[0]
        return baseline.resident.stopped_by

    if baseline is not None:
        try:
            baseline.events.performed = executor.perform(
                Cell(job=baseline.job), baseline.job.name, baseline.events.receive, run_others
            )
            if baseline.resident is not None:
                baseline.resident.end()
            for error in errors:
                raise error
            records.show(baseline)
            records.end(baseline, start, note)
        except KeyboardInterrupt:
            records.keep_interrupted(baseline, start)
            raise
    for job in left:
        run_cell(records, job, executor, 1, note)
    run_again(records, again, executor)


def _run_beside(
    records: CellRecords,
    baseline: Resident,
    job: Job,
    executor: InProcess,
    start: Start,
    again: list[Job],
    seconds: float | None,
) -> None:
    """Run a cell for `seconds` in turns with the baseline, which waits in this process in the middle of its timing."""
    cell = records.begin(job, 1)
    if cell is None:
        return

    def take_turns_with_baseline(ready: Ready, window: Callable[[Turn], WindowSamples]) -> StoppedBy | None:
        cell.resident = _resident(job.variant, ready, window, cell)
        _time(records, [baseline, cell.resident], job.component.name, seconds)
        records.show(cell)
        return cell.resident.stopped_by

    collecting = gc.isenabled()
    gc.enable()  # the baseline's timing has disabled it
    try:
        cell.events.performed = executor.perform(Cell(job=job), job.name, cell.events.receive, take_turns_with_baseline)
        if cell.ran_out_of_memory:
            again.append(job)
        else:
            records.end(cell, start)
    except KeyboardInterrupt:
        records.keep_interrupted(cell, start)
        raise
    finally:
        if not collecting:
            gc.disable()


def _time(
    records: CellRecords,
    residents: Sequence[Resident],
    component: str,
    seconds: float | None,
    now: Callable[[], float] = time.monotonic,
    again: Again | None = None,
) -> None:
    """Let several cells take turns for `seconds`, with controls by `again`."""
    if len(residents) > 1:
        names = [resident.variant for resident in residents]
        which = " and ".join(names) if len(names) == 2 else f"{len(names)} variants"
        records.progress.begin(f"{component} · {which}", 0, 0)
        records.progress.phase("turns")
        settings = records.config.settings
        take_turns(residents, seconds, settings.seed, now, again, records.spreads, settings.late_share)


def run_again(records: CellRecords, jobs: Sequence[Job], executor: Executor) -> None:
    """Run cells alone that have run out of memory beside others."""
    records.total += len(jobs)  # each is begun once more
    for job in jobs:
        run_cell(records, job, executor, 1, "measured again, alone: beside other variants it ran out of memory")
