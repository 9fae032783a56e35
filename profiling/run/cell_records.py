"""The records of a run's cells: made from the events of each cell's process, and kept as soon as the cell ends."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from profiling.errors import printable, reason_of
from profiling.machine.spreads import Spreads
from profiling.metrics.sampling import Turn, WindowSamples, summaries
from profiling.results.jsonl import append_record, encode_record
from profiling.results.record import BASELINE, NOT_ENDED, Record, decode_section, encode_sections, record_with
from profiling.results.rounds import merged
from profiling.results.run_folder import keep_newest_lines
from profiling.results.verdicts import interval_of, is_captured, with_speedup
from profiling.run.events import End, Event, Phase, Sections, Waiting
from profiling.run.job import Job, RunConfig
from profiling.run.process import Executor
from profiling.run.progress import Progress
from profiling.run.session import Pending, ProcessEnd, Session, wait
from profiling.run.task import Cell
from profiling.run.turns import Placement
from profiling.trace.compile_log import CompileLogError, parse_compile_log


@dataclass(eq=False)
class LiveCell:
    """A cell from when it is due until its record is kept; its process is alive meanwhile, if it has one of its own.

    A record is made of what its process has sent, even if that died.
    """

    records: CellRecords
    executor: Executor
    job: Job
    round_: int = 1
    is_control: bool = False  # a second process of a cell: it is timed, and has no record
    takes_turns: bool = True  # else it is measured at once
    measured: Record = field(init=False)  # with the sections that have arrived
    damage: list[str] = field(default_factory=list, init=False)  # what is missing in the record, and why
    end: End | None = field(default=None, init=False)
    process_end: ProcessEnd = field(default_factory=ProcessEnd, init=False)  # how its process ended
    notes: list[str] = field(default_factory=list, init=False)
    number: int = field(default=0, init=False)  # in the progress display, once it has begun
    session: Session | None = field(default=None, init=False)  # its process
    pending: Pending | None = field(default=None, init=False)  # what that waits for
    concurrent: int = field(default=0, init=False)  # most others that were prepared meanwhile
    is_held: bool = field(default=False, init=False)  # whether it waits until no other cell compiles its code
    may_prepare: bool = field(default=False, init=False)  # whether it waits no longer for that
    placement: Placement | None = field(default=None, init=False)  # once it has waited for its turn
    is_kept: bool = field(default=False, init=False)  # whether its record is on disk

    def __post_init__(self) -> None:
        self.measured = self.records.base_record(self.job)

    def anew(self) -> None:
        """Forget what happened, so that the cell can begin once more."""
        self.__dict__ = vars(dataclasses.replace(self))  # it stays the same object, a key of dicts

    @property
    def label(self) -> str:
        """Its variant, and which of the runs it is of where there are several."""
        return f"{self.job.variant} of {self.records.label}" if self.records.label else self.job.variant

    def start(self, *, loads: bool = False) -> None:
        """Start its session, in which it is prepared; `loads`: from what other cells compile."""
        name, task = f"{self.job.name}.control" if self.is_control else self.job.name, Cell(job=self.job, loads=loads)
        self.session = self.executor.session(task, name, self.receive, turns=self.takes_turns)

    def resume(self, turn: Turn | None = None) -> bool:
        """Let its process go on until there is nothing to read; return whether it has ended, or waits for its turn.

        A cell that is held needs a turn to go on: it may prepare then.
        """
        if turn is not None:
            self.is_held, self.may_prepare = False, True
        state = self._go_on(turn)
        if not isinstance(state, Waiting):
            return state is None
        assert state.ready is not None
        if not state.ready.prepared:
            self.is_held = True
            return False
        measured = self.measured
        self.placement = Placement(
            *(self.label, state.ready, self.window, self.job.settings.device, is_captured(measured)),
            frames_per_call=1 if measured.frames_per_call is None else measured.frames_per_call,
        )
        if not self.is_control and self.concurrent and measured.prepare is not None and self.has_compiled:
            prepare = replace(measured.prepare, beside=self.concurrent)  # other processes, which lengthened that
            self.measured = replace(measured, prepare=prepare)
        return True

    def window(self, turn: Turn) -> WindowSamples | None:
        """Let it time one window; None where its process has ended."""
        state = None if self.session is None else self._go_on(turn)
        while isinstance(state, Pending):
            wait([state])
            state = self._go_on()
        return None if state is None else state.window

    def finish(self) -> None:
        """Let it do what follows its timing until it has ended or waits once more; without windows it times itself."""
        self.window(Turn(stopped_by=None if self.placement is None else self.placement.stopped_by))

    def _go_on(self, turn: Turn | None = None) -> Pending | Waiting | None:
        """Resume its process, with a turn if it waits for one; None: it has ended."""
        assert self.session is not None
        try:
            state = next(self.session) if turn is None else self.session.send(turn)
        except StopIteration as end:
            self.session, self.process_end = None, end.value
            return None
        if isinstance(state, Pending):
            self.pending = state
        return state

    def close(self) -> None:
        """Kill its process."""
        if self.session is not None:
            self.session.close()
            self.session = None

    @property
    def waiting_in(self) -> Placement:
        """Its placement, of a cell that has been prepared."""
        assert self.placement is not None
        return self.placement

    @property
    def has_compiled(self) -> bool:
        """Whether torch's compiler has made code for it."""
        prepare = self.measured.prepare
        return prepare is not None and bool(prepare.graphs)

    @property
    def ran_out_of_memory(self) -> bool:
        """Whether its process has ended for want of memory, as far as can be told."""
        return self.end.out_of_memory if self.end is not None else self.process_end.killed

    def receive(self, event: Event) -> None:
        """Handle an event: the phase that the cell has reached, sections of its record, or its end."""
        if isinstance(event, Phase):
            if not self.is_control:
                self.records.progress.phase(printable(event.phase))
        elif isinstance(event, Sections):
            for name, content in event.sections.items():
                try:
                    self.measured = record_with(self.measured, {name: content})
                except ValueError as error:
                    self.damage.append(str(error))
        elif isinstance(event, End):
            self.end = event

    def ending(self) -> Generator[Pending, Any, None]:
        """Let it go on until it has ended, without further windows; yield what it waits for."""
        self.records.show(self, again=True)
        state = self._go_on(Turn())
        while state is not None:
            if isinstance(state, Pending):
                yield state
                self.records.show(self, again=True)
            state = self._go_on(None if isinstance(state, Pending) else Turn())

    def record(self) -> Record:
        """Return the record, with everything that was measured, even if the process died or events are missing.

        Where it died before it could send its times, these are those of its windows.
        """
        process_end, end = self.process_end, self.end
        damage = list(self.damage)
        if process_end.lost_events:
            damage.append(f"{process_end.lost_events} events of its process were lost")
        notes = [*self.notes, *self.measured.notes, *process_end.notes, *damage]
        if end is None:
            status, reason = "failed", f"the process {process_end.death}"
        elif damage and end.status != "failed":
            status, reason = "failed", f"the record is incomplete: {'; '.join(damage)}"
        else:
            status, reason = end.status, end.reason
        if end is not None and process_end.death is not None:
            notes.append(f"after the cell's end, its process {process_end.death}")
        bad_input = end is not None and end.bad_input
        record = replace(self.measured, status=status, reason=reason, bad_input=bad_input, notes=tuple(notes))
        turns = None if self.placement is None else self.placement.section()
        if self.placement is None or turns is None:
            return record
        if record.metrics.wall_ms is None:
            clocks = summaries([window for _, window in self.placement.windows], None)
            record = replace(record, metrics=replace(record.metrics, **clocks))
        record = replace(record, turns=turns)
        wall = record.metrics.wall_ms
        assert wall is not None
        metrics = replace(record.metrics, wall_ms=replace(wall, ci95=interval_of(record)))
        return replace(record, metrics=metrics)

    def record_so_far(self) -> Record:
        """Return the record that the cell would have if it ended successfully now."""
        return replace(self.record(), status="ok", reason=None)


@dataclass
class CellRecords:
    """The records of a run, whose folder this process holds, and its cells in progress."""

    target: str
    config: RunConfig
    folder: Path
    progress: Progress
    label: str = ""  # which of the runs it is, where several are in progress
    by_cell: dict[tuple[str, str], Record] = field(default_factory=dict)
    rounds: dict[tuple[str, str], tuple[Record, ...]] = field(default_factory=dict)  # of which each is merged
    changed_code: str = ""  # what changed in the code since a resumed run began
    spreads: Spreads = field(default_factory=Spreads)  # of the device
    begun: int = 0  # number of cells
    total: int = 0

    def show(self, cell: LiveCell, *, again: bool = False) -> None:
        """Show in the progress display that this cell is active; `again`: it was before, and so were others since."""
        suffix = f" · round {cell.round_}" if self.config.rounds > 1 else ""
        label = f"{self.label} · " if self.label else ""
        self.progress.begin(f"{label}{cell.job.row} · {cell.job.variant}{suffix}", cell.number, self.total, again=again)

    def begin(self, cell: LiveCell) -> bool:
        """Prepare the files and the row of a cell that is about to run; False where its component has an error."""
        self.begun += 1
        job, cell.number = cell.job, self.begun
        self.show(cell)
        error = self._component_error(job)
        if error is not None:
            record = replace(self.base_record(job).with_status("failed", error), bad_input=True)
            self.keep(record)
            self.progress.end(record)
            return False
        for folder in ("kernels", "torch_trace"):  # of an earlier attempt
            shutil.rmtree(self.folder / folder / job.name, ignore_errors=True)
        files = self.config.files
        cell.notes += [] if files is None else files.clear(self.folder, job.name, cell.round_)
        if self.changed_code:
            cell.notes.append(f"measured with other code than the run began with: {self.changed_code}")
        if job.cell not in self.by_cell:  # a row for this cell, whatever ends the run; an earlier round has one
            planned = self.base_record(job).with_status("failed", NOT_ENDED)
            sections = {} if files is None else encode_sections(**files.planned(job))
            append_record(self.folder, record_with(planned, sections))
        return True

    def end(self, cell: LiveCell, note: str = "") -> None:
        """Keep the record of a cell whose process has ended; it is on disk before the cell's files are read."""
        job = cell.job
        self.show(cell, again=True)
        cell.notes += [note] if note else []
        record = self._of_round(cell)
        self.keep(record)
        cell.is_kept = True
        complete = self._with_files(record, job, self._with_recovered, self._with_compile_log)
        if complete != record:
            self.keep(complete)
        self.progress.end(self.by_cell[job.cell])

    def keep_interrupted(self, cell: LiveCell) -> None:
        """Keep what a cell has measured that the user has interrupted; the rounds before it are not lost."""
        if cell.is_kept:
            return
        if cell.end is None:
            cell.process_end = ProcessEnd(death="was interrupted")
        record = self._with_files(self._of_round(cell), cell.job, self._with_recovered)
        if cell.end is not None or cell.job.cell not in self.by_cell:
            self.keep(record)

    def base_record(self, job: Job) -> Record:
        """Return the record of a cell that was not run."""
        settings = job.settings
        return Record(
            target=self.target,
            component=job.row,
            variant=job.variant,
            status="skipped",
            reason="not run",
            device=settings.device,
            dtype=settings.dtype,
            scale=job.component.scale,
            late=settings.late_share,
            point=None if job.component.point is None else decode_section("point", job.component.point),
        )

    def _component_error(self, job: Job) -> str | None:
        """Return the component's input error, which would recur in each of its variants; None if it has none.

        A record without a parameter count failed while loading or computing the reference, so the error is the
        component's. A later input error may be that of the variant.
        """
        records = (r for r in self.by_cell.values() if r.component == job.row and r.parameters is None)
        return next((record.reason for record in records if record.bad_input), None)

    def _of_round(self, cell: LiveCell) -> Record:
        """Return the record of a cell, with its round where it runs several times; turns have no rounds."""
        record, rounds = cell.record(), self.config.rounds
        if rounds == 1 or record.turns is not None:
            return record
        if record.reason is not None:
            record = record.with_status(record.status, f"round {cell.round_} of {rounds}: {record.reason}")
        return replace(record, round=cell.round_)

    def _with_speedup(self, record: Record) -> Record:
        try:
            compared = with_speedup(record, self.by_cell.get((record.component, BASELINE)))
            encode_record(compared)
        except Exception as error:
            return _with_note(record, f"no speedup: {reason_of(error)}")
        return compared

    def _with_files(self, record: Record, job: Job, *readers: Callable[[Record, Job], Record]) -> Record:
        """Add the sections that `readers` read from the cell's files, or a note for each file that cannot be read."""
        for reader in readers:
            try:
                record = reader(record, job)
            except Exception as error:  # the files are those of the cell's code
                record = _with_note(record, str(error) if isinstance(error, CompileLogError) else reason_of(error))
        return record

    def _with_recovered(self, record: Record, job: Job) -> Record:
        files = self.config.files
        sections = {} if files is None else encode_sections(**files.recover(self.folder, job))
        return record_with(record, {name: each for name, each in sections.items() if getattr(record, name) is None})

    def _with_compile_log(self, record: Record, job: Job) -> Record:
        if not job.settings.trace or self.config.isolation == "none":  # all cells then share one compile log
            return record
        self.progress.phase("parse")
        summary = parse_compile_log(self.folder / "torch_trace" / job.name, self.folder / "tl_out" / job.name)
        return record if summary is None else replace(record, compile=summary)

    def keep(self, record: Record) -> None:
        """Write a record, in the place of an earlier one of its cell or round, and merge it with the rounds before."""
        others = self.rounds.get(record.cell, ()) if record.round is not None else ()
        rounds = [each for each in others if each.round not in (None, record.round)]
        cell = self._with_speedup(merged((*rounds, record)))
        if cell.status != record.status:  # it could not be merged
            record = cell
        append_record(self.folder, cell if record.round is None else replace(record, speedup=cell.speedup))
        self.by_cell[record.cell], self.rounds[record.cell] = cell, (*rounds, record)

    def complete(self, order: Sequence[tuple[str, str]] = ()) -> None:
        """End the run: add speedups, and the compile log that all cells shared.

        The file of records then has one line for each cell, in this order.
        """
        for record in tuple(self.by_cell.values()):
            compared = self._with_speedup(record)
            if record.speedup is None and compared != record:
                self.keep(compared)
        if self.by_cell:
            keep_newest_lines(self.folder, order)
        if self.config.isolation == "none" and self.config.settings.trace:
            try:
                summary = parse_compile_log(self.folder / "torch_trace", self.folder / "tl_out" / "run")
                self.progress.say("nothing was compiled" if summary is None else f"compile report: {summary.index}")
            except CompileLogError as error:
                self.progress.say(str(error))

    def not_run(self, job: Job, end: End) -> None:
        """Keep the record of a cell that does not run."""
        self.keep(self.base_record(job).with_status(end.status, end.reason or "not run"))


def _with_note(record: Record, note: str) -> Record:
    return replace(record, notes=tuple(dict.fromkeys((*record.notes, note))))
