"""Runs cells: alone, or those of a component beside each other, timed in turns, each in a process or all in one.

Cells of a component are prepared side by side, as the cores allow, and beside them what the cells of later components
will compile is compiled ahead. Nothing is timed meanwhile.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

from profiling.metrics.sampling import Ready, StoppedBy, Turn, WindowSamples
from profiling.results.verdicts import is_captured
from profiling.run.cell_records import CellInProgress, CellRecords
from profiling.run.child import Pending, Session, advance, wait
from profiling.run.compile_caches import compiled_code, compiles_ahead
from profiling.run.job import FORWARD, Job
from profiling.run.process import Executor, InProcess, Isolated
from profiling.run.task import Cell
from profiling.run.turns import Again, Resident, Start, WaitingProcess, lacking_memory, take_turns

#: The metric that takes turns, and what a control does not do.
LATENCY = "profiling.metrics.latency.Latency"
#: Most processes that prepare at the same time.
_MOST_BESIDE = 8
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
class _Preparing:
    """A cell that is being prepared, and what its process waits for."""

    due: DueCell
    cell: CellInProgress
    process: WaitingProcess
    pending: Pending | None = None
    beside: int = 0  # most others that were active meanwhile


@dataclass
class PreparedCell:
    """A prepared cell that waits in its process for its turns."""

    due: DueCell
    cell: CellInProgress
    resident: Resident
    process: WaitingProcess


class CellsInTurns:
    """Prepares cells, times them in turns, and ends them, in the order of the caller.

    A context manager: at the end of its block the remaining cells are killed; after an interruption by the user,
    what they measured is kept. `now` returns seconds. Cells that run out of memory beside others are appended to
    `again`, to be measured once more; without that list they fail.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic, again: list[DueCell] | None = None) -> None:
        self.start, self.again, self._now = Start(), again, now
        self.waiting: list[PreparedCell] = []
        self._controls: list[tuple[WaitingProcess, Resident]] = []
        self._preparing: list[_Preparing] = []
        self._ahead: list[Session] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        alive = (*self.waiting, *self._preparing)
        sessions = [*(each.process.session for each in alive), *(process.session for process, _ in self._controls)]
        for session in (*sessions, *self._ahead):
            session.close()
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            for each in alive:
                each.cell.records.keep_interrupted(each.cell, self.start)

    def lacking_memory(self) -> str:
        """Return why no further cell fits beside those that wait or are prepared, or an empty string."""
        waiting = [*(each.resident for each in self.waiting), *(control for _, control in self._controls)]
        return lacking_memory(waiting, self._active) if waiting else ""

    def prepare(self, due: DueCell) -> PreparedCell | None:
        """Prepare a cell beside those that wait; None if it ended before it was ready."""
        number = len(self.waiting)
        self.prepare_all([due])
        return self.waiting[-1] if len(self.waiting) > number else None

    def prepare_all(self, cells: Sequence[DueCell], ahead: Sequence[DueCell] = (), most: int = 1) -> list[DueCell]:
        """Prepare cells beside those that wait, `most` at a time, and return those that there is no memory for.

        The first one goes alone: what it needs is expected of the others. Cells that compile the same code follow each
        other, and a compiler that compares times goes alone. `ahead` are cells of later components, whose code is
        compiled where there is room.
        """
        left, later, first = list(cells), list(ahead), cells[0] if cells else None
        while left or self._preparing or self._ahead:
            while self._active < most and (due := self._next_due(left, first)) is not None:
                left.remove(due)
                self._begin(due)
            while later and self._active < most and self.waiting and not self.lacking_memory():
                due = later.pop(0)
                self._ahead.append(due.executor.compile_ahead(due.job))
            if left and not self._active and self.lacking_memory():
                break
            self._go_on()
        order = {id(due): place for place, due in enumerate(cells)}  # two runs may have cells of one name
        self.waiting.sort(key=lambda each: order.get(id(each.due), -1))
        return left

    @property
    def _active(self) -> int:
        return len(self._preparing) + len(self._ahead)

    def _next_due(self, left: Sequence[DueCell], first: DueCell | None) -> DueCell | None:
        """Return the next cell that can be prepared beside those that are being prepared; None if none can."""
        if not left or (self.waiting and self.lacking_memory()):
            return None
        if left[0] is first:
            return None if self._active else first
        codes = {compiled_code(each.due.job) for each in self._preparing if each.due.job.imports}
        if any(each.due is first or not _goes_beside(each.due.job) for each in self._preparing):
            return None
        fitting = (due for due in left if compiled_code(due.job) not in codes)
        return next((due for due in fitting if not self._active or _goes_beside(due.job)), None)

    def _begin(self, due: DueCell) -> None:
        """Start the process of a cell."""
        cell = due.records.begin(due.job, 1)
        if cell is None:
            return
        process = WaitingProcess(due.executor.session(Cell(job=due.job), due.job.name, cell.events.receive))
        self._preparing.append(_Preparing(due, cell, process))
        self._step(self._preparing[-1])

    def _go_on(self) -> None:
        """Wait until one of the processes has sent something, and handle it."""
        sessions = tuple(self._preparing)
        pending = [each.pending for each in sessions if each.pending is not None]
        for session in tuple(self._ahead):
            try:
                state = next(session)
            except StopIteration:
                self._ahead.remove(session)
                return
            assert isinstance(state, Pending), "it takes no turns"
            pending.append(state)
        if pending:
            wait(pending)
        for each in sessions:
            each.beside = max(each.beside, self._active - 1)
            each.due.records.show(each.cell, again=True)
            self._step(each)

    def _step(self, each: _Preparing) -> None:
        """Resume the session of a cell until there is nothing to read, the cell is ready, or it has ended."""
        try:
            state = next(each.process.session)
        except StopIteration as end:
            self._preparing.remove(each)
            each.cell.events.performed = end.value
            if each.cell.ran_out_of_memory and self.waiting and self.again is not None:
                self.again.append(each.due)
            else:
                each.due.records.end(each.cell)
            return
        if isinstance(state, Pending):
            each.pending = state
            return
        self._preparing.remove(each)
        each.cell.prepared_beside(each.beside)
        assert state.ready is not None
        each.cell.resident = _resident(each.due.name, state.ready, each.process.window, each.cell)
        self.waiting.append(PreparedCell(each.due, each.cell, each.cell.resident, each.process))

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
            ready = advance(process.session).ready
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


def run_in_turns(cells: Sequence[DueCell], ahead: Sequence[DueCell] = ()) -> None:
    """Prepare cells, time them in turns, and let each finish: those of a component, say.

    Where there is no memory for all of them, those that are prepared take their turns first. Then the first one, with
    which the others are compared, stays if it leaves room, and the others follow beside it. `ahead` are cells of later
    components, whose code is compiled meanwhile.
    """
    note, again, seconds = "", list[DueCell](), cells[0].records.config.seconds

    def time_and_finish(ending: Sequence[PreparedCell]) -> None:
        """Let the cells that wait take turns, for the share of the component's seconds of those that then end."""
        turns.time(turns.waiting, None if seconds is None else seconds * len(ending) / len(cells))
        turns.finish(ending, note)

    with CellsInTurns(again=again) as turns:
        most = most_beside(cells)
        left = turns.prepare_all(cells, ahead, most)
        while left:
            note = f"not all variants were prepared beside each other: {turns.lacking_memory()}"
            time_and_finish(turns.waiting[1:] or turns.waiting)
            left = turns.prepare_all(left, most=most)
        time_and_finish(turns.waiting)
    for due in again:
        run_again(due.records, [due.job], due.executor)


def most_beside(cells: Sequence[DueCell]) -> int:
    """Return how many of these cells may be prepared at the same time.

    Only one where starts are measured, or a compile log, or where a cell waits for no turn when it is prepared: a loop,
    say, which is measured then.
    """
    settings, metrics = cells[0].job.settings, [node["_target_"] for node in cells[0].job.metrics.values()]
    waits = cells[0].job.procedure["_target_"] == FORWARD["_target_"] and LATENCY in metrics
    alone = not waits or settings.starts or settings.trace or settings.check
    return 1 if alone else beside()


def beside() -> int:
    """Return how many processes may prepare at the same time: each compiles with several threads."""
    return max(1, min(_MOST_BESIDE, len(os.sched_getaffinity(0)) // 2))


def _goes_beside(job: Job) -> bool:
    """Return whether others may prepare beside a cell: it compiles nothing, or its compiler compares no times."""
    return not job.imports or compiles_ahead(job)


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
