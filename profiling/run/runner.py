"""A run: executes its cells, those of a component in turns, and writes the record of each as soon as it ends."""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from profiling.components.spec import Settings
from profiling.errors import InputError, printable, reason_of
from profiling.metrics.sampling import Ready, StoppedBy, Turn, WindowSamples, summaries
from profiling.results.environment import ENVIRONMENT_FILE, Environment, decode_environment, encode_environment
from profiling.results.jsonl import RESULTS_FILE, append_record, encode_record
from profiling.results.record import BASELINE, Record, decode_section, encode_sections, record_with
from profiling.results.run_folder import EarlierRun, prepare_folder, write_json
from profiling.run.events import BadInput, End, Event, Phase, Probed, Sections
from profiling.run.job import Job, RunConfig
from profiling.run.process import Executor, InProcess, Isolated, Performed
from profiling.run.progress import Progress
from profiling.run.revisions import TOOL, code_changes, git_state, tool_version
from profiling.run.rounds import rounds_done, with_round, with_speedup
from profiling.run.turns import Resident, Start, WaitingProcess, lacking_memory, take_turns
from profiling.trace.compile_log import CompileLogError, parse_compile_log
from profiling.trace.generated_code import list_kernels

#: Keys of the environment that may differ between a run and its resumption; the code is compared apart from them.
MAY_DIFFER = ("device_reason", "dtype_reason", "scale_reason", "ceilings", "ceilings_reason", "module_git")


Reader = Callable[[Record, Job], Record]


@dataclass
class CellEvents:
    """The events that a cell's process has sent, from which a record is made even if the process died."""

    measured: Record  # with the sections that have arrived
    progress: Progress
    performed: Performed = field(default_factory=Performed)  # how the process ended
    damage: list[str] = field(default_factory=list)  # what is missing in the record, and why
    end: End | None = None

    def receive(self, event: Event) -> None:
        """Handle an event: the phase that the cell has reached, sections of its record, or its end."""
        if isinstance(event, Phase):
            self.progress.phase(printable(event.phase))
        elif isinstance(event, Sections):
            for name, content in event.sections.items():
                try:
                    self.measured = record_with(self.measured, {name: content})
                except ValueError as error:
                    self.damage.append(str(error))
        elif isinstance(event, End):
            self.end = event

    def record(self) -> Record:
        """Return the record, with everything that was measured, even if the process died or events are missing."""
        performed, end = self.performed, self.end
        damage = list(self.damage)
        if performed.lost_events:
            damage.append(f"{performed.lost_events} events of its process were lost")
        notes = [*performed.notes, *damage]
        if end is None:
            status, reason = "failed", f"the process {performed.death}"
        elif damage and end.status != "failed":
            status, reason = "failed", f"the record is incomplete: {'; '.join(damage)}"
        else:
            status, reason = end.status, end.reason
        if end is not None and performed.death is not None:
            notes.append(f"after the cell's end, its process {performed.death}")
        return replace(
            self.measured,
            status=status,
            reason=reason,
            bad_input=end is not None and end.bad_input,
            notes=(*self.measured.notes, *notes),
        )


@dataclass
class CellInProgress:
    """A cell whose process runs, or waits for its turn."""

    job: Job
    round_: int
    events: CellEvents
    notes: list[str]
    number: int  # in the progress display
    resident: Resident | None = None  # once it has waited for its turn

    @property
    def ran_out_of_memory(self) -> bool:
        """Whether its process has ended for want of memory, as far as can be told."""
        end = self.events.end
        return end.out_of_memory if end is not None else self.events.performed.killed


#: Why a cell failed whose record was never replaced.
NOT_ENDED = "has not ended: the run was killed in this cell, or is still in it"


@dataclass
class Run:
    """A run in progress, in a folder that this process holds."""

    target: str
    config: RunConfig
    folder: Path
    progress: Progress
    command: str  # the command line, for environment.json
    records: dict[tuple[str, str], Record] = field(default_factory=dict)
    changed_code: str = ""  # what changed in the code since a resumed run began
    _number: int = 0  # cells that have begun
    _total: int = 0

    def execute(self) -> int:
        """Run every cell that has no record yet; return the exit code: 0 (ok), 1 (failed, invalid) or 2 (bad input).

        Raises:
            InputError: an error that concerns every cell; no cell has run.
            KeyboardInterrupt: the user stopped the run; finished cells are on disk.

        """
        config = self.config
        earlier = prepare_folder(self.folder, config.source, resumed=config.resume is not None)
        self.records = {record.cell: record for record in earlier.records}
        executor = self._executor()
        probed = self._probe(executor)
        self._write_environment(probed.environment, earlier)
        settings = Settings(**probed.settings)
        jobs = baseline_first(config.jobs(self.target, settings, str(self.folder.absolute())))
        turns = [(round_, job) for round_ in range(1, config.rounds + 1) for job in jobs]
        due = [turn for turn in turns if self._is_due(*turn)]
        if len(due) < len(turns):
            cells = "cells" if config.rounds == 1 else "rounds of cells"
            self.progress.say(
                f"resuming {self.folder}: {len(turns) - len(due)} of {len(turns)} {cells} done, {len(due)} left"
            )
        if earlier.skipped_lines:
            self.progress.say(f"note: {RESULTS_FILE}: {earlier.skipped_lines} damaged or cut-off lines were skipped")
        skip = probed.not_run
        self._say_not_run({job.variant: skip[job.variant] for _, job in due if job.variant in skip})
        for round_ in range(1, config.rounds + 1):
            left = [turn for turn in due if turn[0] >= round_ and turn[1].variant not in skip and self._is_due(*turn)]
            self._total = self._number + len(left)
            for _, component in groupby((job for number, job in due if number == round_), lambda job: job.component):
                self._run_component(tuple(component), executor, round_, skip)
        self._complete()
        return exit_code(tuple(self.records.values()))

    def _run_component(self, jobs: Sequence[Job], executor: Executor, round_: int, skip: Mapping[str, End]) -> None:
        """Run the cells of a component; those that are timed in turns run in the first round only."""
        cells = [job for job in jobs if job.variant not in skip and self._is_due(round_, job)]
        if round_ == 1 and len(cells) > 1 and isinstance(executor, Isolated):
            self._run_in_turns(cells, executor)
        elif round_ == 1 and len(cells) > 1 and isinstance(executor, InProcess):
            self._run_in_process(cells, executor)
        else:
            for job in cells:
                self._run_cell(job, executor, round_)
        for job in jobs:
            if job.variant in skip and round_ == 1:
                end = skip[job.variant]
                self._keep(self._base_record(job).with_status(end.status, end.reason or "not run"))

    def _say_not_run(self, ends: Mapping[str, End]) -> None:
        """Print a line for each reason why variants do not run, instead of one for each of their cells."""
        for end in dict.fromkeys(ends.values()):
            names = ", ".join(name for name, each in ends.items() if each == end)
            self.progress.say(f"{end.status}: {names} ({printable(end.reason)})")

    def _executor(self) -> Executor:
        settings = self.config.settings
        fresh_cache = settings.compile_cache == "fresh"
        if self.config.isolation == "none":
            return InProcess(self.folder, trace=settings.trace, fresh_cache=fresh_cache)
        timeout = self.config.cell_timeout
        return Isolated(self.folder, trace=settings.trace, fresh_cache=fresh_cache, timeout=timeout)

    def _is_due(self, round_: int, job: Job) -> bool:
        """Return whether the cell must still run in this round; after a round that is not ok it does not run again."""
        record = self.records.get(job.cell)
        if record is None:
            return True
        return record.status == "ok" and record.turns is None and rounds_done(record) < round_

    def _probe(self, executor: Executor) -> Probed:
        """Call `probe` in another process: it resolves the settings and checks every option. Return its result."""
        self.progress.begin("run", 0, 0)
        self.progress.phase("probe")
        jobs = self.config.jobs(self.target, self.config.settings, str(self.folder.absolute()))
        answers: list[Event] = []

        def receive(event: Event) -> None:
            if isinstance(event, Phase):
                self.progress.phase(event.phase)
            else:
                answers.append(event)

        performed = executor.perform({"probe": [job.to_json() for job in jobs]}, "probe", receive)
        answer = answers[-1] if answers else None
        if isinstance(answer, Probed):
            return answer
        if isinstance(answer, BadInput):
            raise InputError(answer.message)
        raise InputError(f"probing the device failed: the process {performed.death}. To debug it, add isolation=none.")

    def _write_environment(self, facts: Mapping[str, Any], earlier: EarlierRun) -> None:
        """Write `environment.json`; in a resumed run, compare it with the present machine and code instead.

        Raises:
            InputError: the run began on another machine or setup, so old and new cells could not be compared, or with
                other code and without resume_changed=true.

        """
        of_this_process = Environment(
            captured_at=datetime.now(UTC).isoformat(timespec="seconds"),
            command=self.command,
            tool_version=tool_version(),
            user_git=git_state(Path.cwd()),
            tool_git=git_state(TOOL),
        )
        content = {**encode_environment(of_this_process), **facts}
        if earlier.environment is None:
            write_json(self.folder / ENVIRONMENT_FILE, content)
            return
        before = encode_environment(earlier.environment)
        differing = [key for key in facts if key not in MAY_DIFFER and before.get(key) != facts[key]]
        if differing:
            raise InputError(
                f"resume={self.folder} began on another machine or setup ({', '.join(differing)} differ). "
                "Resume it there, or start a new run."
            )
        self.changed_code = code_changes(earlier.environment, decode_environment(json.dumps(content).encode()))
        if self.changed_code and not self.config.resume_changed:
            raise InputError(
                f"resume={self.folder}: the code has changed since the run began: {self.changed_code}. Start a new "
                "run, or add resume_changed=true to measure the cells that are left with the present code."
            )

    def _run_cell(self, job: Job, executor: Executor, round_: int, note: str = "") -> None:
        """Run one cell from its start to its end."""
        cell = self._begin(job, round_, note)
        if cell is None:
            return
        try:
            cell.events.performed = executor.perform({"cell": job.to_json()}, job.name, cell.events.receive)
        except KeyboardInterrupt:
            self._keep_interrupted(cell)
            raise
        self._end(cell)

    def _run_in_turns(self, jobs: Sequence[Job], executor: Isolated) -> None:
        """Prepare the cells of a component one after the other, time them in turns, and let each finish.

        Where there is no memory for another one, those that are prepared take their turns first. Then the baseline
        stays, if it leaves room, and the others follow beside it.
        """
        start, note = Start(), ""
        waiting: list[tuple[CellInProgress, Resident, WaitingProcess]] = []
        beginning: CellInProgress | None = None
        again: list[Job] = []

        def finish(cells: Sequence[tuple[CellInProgress, Resident, WaitingProcess]]) -> None:
            for cell, resident, process in cells:
                self._show(cell)
                cell.events.performed = process.finish(resident.stopped_by)
                waiting.remove((cell, resident, process))
                if cell.ran_out_of_memory and resident.beside:
                    again.append(cell.job)
                else:
                    self._end(cell, start, note)

        try:
            for job in jobs:
                while waiting and (lacking := lacking_memory([resident for _, resident, _ in waiting])):
                    note = f"not all variants were prepared beside each other: {lacking}"
                    self._time([resident for _, resident, _ in waiting], job.component.name)
                    finish(waiting[1:] or waiting[:])
                beginning = self._begin(job, 1)
                if beginning is None:
                    continue
                process = WaitingProcess(executor.session({"cell": job.to_json()}, job.name, beginning.events.receive))
                try:
                    ready = next(process.session).ready
                except StopIteration as end:
                    beginning.events.performed = end.value
                    if beginning.ran_out_of_memory and waiting:
                        again.append(job)
                    else:
                        self._end(beginning)
                else:
                    assert ready is not None
                    beginning.resident = Resident(job.variant, ready, process.window)
                    waiting.append((beginning, beginning.resident, process))
                beginning = None
            self._time([resident for _, resident, _ in waiting], jobs[0].component.name)
            finish(waiting[:])
        except KeyboardInterrupt:
            for _, _, process in waiting:
                process.session.close()
            for cell in (*(cell for cell, _, _ in waiting), *([] if beginning is None else [beginning])):
                self._keep_interrupted(cell, start)
            raise
        finally:
            for _, _, process in waiting:
                process.session.close()
        self._run_again(again, executor)

    def _run_in_process(self, jobs: Sequence[Job], executor: InProcess) -> None:
        """Run each other cell of a component in the middle of the baseline's timing, in turns with the baseline.

        In one process a compiler's caches hold the graphs of one cell only: a baseline that compiles takes no turns.
        """
        start, left, again, errors = Start(), list(jobs[1:]), list[Job](), list[BaseException]()
        baseline = self._begin(jobs[0], 1)
        note = ""

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
            baseline.resident = Resident(baseline.job.variant, ready, guarded)
            try:
                while left and not failures:
                    if lacking := lacking_memory([baseline.resident]):
                        note = f"not all variants were prepared beside each other: {lacking}"
                        break
                    self._run_beside(baseline.resident, left.pop(0), executor, start, again)
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
                    {"cell": baseline.job.to_json()}, baseline.job.name, baseline.events.receive, run_others
                )
            except KeyboardInterrupt:
                self._keep_interrupted(baseline, start)
                raise
            if baseline.resident is not None:
                baseline.resident.end()
            for error in errors:
                raise error
            self._show(baseline)
            self._end(baseline, start, note)
        for job in left:
            self._run_cell(job, executor, 1, note)
        self._run_again(again, executor)

    def _run_beside(self, baseline: Resident, job: Job, executor: InProcess, start: Start, again: list[Job]) -> None:
        """Run a cell in turns with the baseline, which waits in this process in the middle of its timing."""
        cell = self._begin(job, 1)
        if cell is None:
            return

        def take_turns_with_baseline(ready: Ready, window: Callable[[Turn], WindowSamples]) -> StoppedBy | None:
            cell.resident = Resident(job.variant, ready, window)
            self._time([baseline, cell.resident], job.component.name)
            self._show(cell)
            return cell.resident.stopped_by

        collecting = gc.isenabled()
        gc.enable()  # the baseline's timing has disabled it
        try:
            cell.events.performed = executor.perform(
                {"cell": job.to_json()}, job.name, cell.events.receive, take_turns_with_baseline
            )
        except KeyboardInterrupt:
            self._keep_interrupted(cell, start)
            raise
        finally:
            if not collecting:
                gc.disable()
        if cell.ran_out_of_memory:
            again.append(job)
        else:
            self._end(cell, start)

    def _time(self, residents: Sequence[Resident], component: str) -> None:
        """Let the cells take turns, if there are several."""
        if len(residents) > 1:
            self.progress.begin(f"{component} · {len(residents)} variants", 0, 0)
            self.progress.phase("turns")
            take_turns(residents, self.config.seconds, self.config.settings.seed)

    def _run_again(self, jobs: Sequence[Job], executor: Executor) -> None:
        for job in jobs:
            self._run_cell(job, executor, 1, "measured again, alone: beside other variants it ran out of memory")

    def _show(self, cell: CellInProgress) -> None:
        suffix = f" · round {cell.round_}" if self.config.rounds > 1 else ""
        self.progress.begin(f"{cell.job.component.name} · {cell.job.variant}{suffix}", cell.number, self._total)

    def _begin(self, job: Job, round_: int, note: str = "") -> CellInProgress | None:
        """Prepare the files and the row of a cell that is about to run; None where its component has an error."""
        self._number += 1
        cell = CellInProgress(job, round_, CellEvents(self._base_record(job), self.progress), [], self._number)
        self._show(cell)
        error = self._component_error(job)
        if error is not None:
            record = replace(self._base_record(job).with_status("failed", error), bad_input=True)
            self._keep(record)
            self.progress.end(record)
            return None
        cell.notes = [*([note] if note else []), *self._remove_files(job, first_round=round_ == 1)]
        if self.changed_code:
            cell.notes.append(f"measured with other code than the run began with: {self.changed_code}")
        if job.cell not in self.records:  # a row for this cell, whatever ends the run; an earlier round has one
            planned = self._base_record(job).with_status("failed", NOT_ENDED)
            append_record(self.folder, record_with(planned, encode_sections(**self.config.files.planned(job))))
        return cell

    def _end(self, cell: CellInProgress, start: Start | None = None, note: str = "") -> None:
        """Keep the record of a cell whose process has ended; it is on disk before the cell's files are read."""
        job = cell.job
        cell.notes += [note] if note else []
        record = self._merged(self._measured(cell, start), cell.round_)
        self._keep(record)
        complete = self._with_files(record, job, self._readers(job))
        if complete.rounds:
            self.config.files.keep_round(self.folder, job.name, len(complete.rounds))
        if complete != record:
            self._keep(complete)
        self.progress.end(complete)

    def _keep_interrupted(self, cell: CellInProgress, start: Start | None = None) -> None:
        """Keep what a cell has measured that the user has interrupted; the rounds before it are not lost."""
        cell.events.performed = Performed(death="was interrupted")
        record = self._with_files(self._measured(cell, start), cell.job, [self._with_recovered])
        if cell.events.end is not None or cell.job.cell not in self.records:
            self._keep(self._merged(record, cell.round_))

    def _measured(self, cell: CellInProgress, start: Start | None) -> Record:
        """Return the record of a cell from its events, and from its windows where it died before it could send it."""
        record = cell.events.record()
        record = replace(record, notes=(*cell.notes, *record.notes))
        if cell.resident is None or not cell.resident.windows or start is None:
            return record
        if record.metrics.wall_ms is None:
            windows = [window for _, window in cell.resident.windows]
            clocks = summaries(windows, None, self.config.settings.seed)
            record = replace(record, metrics=replace(record.metrics, **clocks))
        return replace(record, turns=cell.resident.section(start))

    def _base_record(self, job: Job) -> Record:
        settings = job.settings
        return Record(
            target=self.target,
            component=job.component.name,
            variant=job.variant,
            status="skipped",
            reason="not run",
            device=settings.device,
            dtype=settings.dtype,
            scale=job.component.scale,
            point=None if job.component.point is None else decode_section("point", job.component.point),
        )

    def _component_error(self, job: Job) -> str | None:
        """Return the component's input error, which would recur in each of its variants; None if it has none.

        A record without a parameter count failed while loading or computing the reference, so the error is the
        component's. A later input error may be that of the variant.
        """
        records = (r for r in self.records.values() if r.component == job.component.name and r.parameters is None)
        return next((record.reason for record in records if record.bad_input), None)

    def _remove_files(self, job: Job, *, first_round: bool) -> list[str]:
        """Remove the files of an earlier attempt at this cell; return a note for those that are kept aside."""
        for folder in ("kernels", "torch_trace"):
            shutil.rmtree(self.folder / folder / job.name, ignore_errors=True)
        return self.config.files.clear(self.folder, job.name, first_round=first_round)

    def _merged(self, record: Record, round_: int) -> Record:
        """Merge the record of a round with those before it, and add the speedup.

        A metric of the user may report numbers that cannot be computed with: then the record is failed.
        """
        try:
            merged = self._in_round(record, round_)
            encode_record(merged)
        except Exception as error:
            return record.with_status("failed", f"its rounds cannot be merged: {reason_of(error)}")
        return self._with_speedup(merged)

    def _in_round(self, record: Record, round_: int) -> Record:
        """Merge the record of a round with those of the rounds before it; turns have no rounds."""
        if self.config.rounds == 1 or record.turns is not None:
            return record
        before = self.records.get(record.cell) if round_ > 1 else None
        return with_round(before, record, round_, self.config.rounds, seed=self.config.settings.seed)

    def _with_speedup(self, record: Record) -> Record:
        baseline = self.records.get((record.component, BASELINE))
        try:
            compared = with_speedup(record, baseline, seed=self.config.settings.seed)
            encode_record(compared)
        except Exception as error:
            return _with_note(record, f"no speedup: {reason_of(error)}")
        return compared

    def _readers(self, job: Job) -> list[Reader]:
        readers = [self._with_recovered, self._with_kernel_files]
        if job.settings.trace and self.config.isolation == "process":  # otherwise all cells share one compile log
            readers.append(self._with_compile_log)
        return readers

    def _with_files(self, record: Record, job: Job, readers: Sequence[Reader]) -> Record:
        """Add the sections that `readers` read from the cell's files, or a note for each file that cannot be read."""
        for reader in readers:
            try:
                record = reader(record, job)
            except Exception as error:  # the files are those of the cell's code
                record = _with_note(record, str(error) if isinstance(error, CompileLogError) else reason_of(error))
        return record

    def _with_recovered(self, record: Record, job: Job) -> Record:
        sections = encode_sections(**self.config.files.recover(self.folder, job))
        return record_with(record, {name: each for name, each in sections.items() if getattr(record, name) is None})

    def _with_kernel_files(self, record: Record, job: Job) -> Record:
        files = list_kernels(self.folder / "kernels" / job.name)
        kernels = tuple(replace(each, file=f"kernels/{job.name}/{each.file}") for each in files)
        return replace(record, kernels=kernels) if kernels else record

    def _with_compile_log(self, record: Record, job: Job) -> Record:
        self.progress.phase("parse")
        summary = parse_compile_log(self.folder / "torch_trace" / job.name, self.folder / "tl_out" / job.name)
        return record if summary is None else replace(record, compile=summary)

    def _keep(self, record: Record) -> None:
        append_record(self.folder, record)
        self.records[record.cell] = record

    def _complete(self) -> None:
        """At the end of the run, add facts of the environment, speedups, and the compile log that all cells shared."""
        facts = self.config.files.environment(self.records.values())
        if facts:
            path = self.folder / ENVIRONMENT_FILE
            write_json(path, encode_environment(replace(decode_environment(path.read_bytes()), **facts)))
        for record in tuple(self.records.values()):
            compared = self._with_speedup(record)
            if record.speedup is None and compared != record:
                self._keep(compared)
        if self.config.isolation == "none" and self.config.settings.trace:
            try:
                summary = parse_compile_log(self.folder / "torch_trace", self.folder / "tl_out" / "run")
                self.progress.say("nothing was compiled" if summary is None else f"compile report: {summary.index}")
            except CompileLogError as error:
                self.progress.say(str(error))


def baseline_first(jobs: tuple[Job, ...]) -> tuple[Job, ...]:
    """Return the jobs with each component's baseline first, because its other variants are compared with it."""
    order = {name: place for place, name in enumerate(dict.fromkeys(job.component.name for job in jobs))}
    return tuple(sorted(jobs, key=lambda job: (order[job.component.name], job.variant != BASELINE)))


def _with_note(record: Record, note: str) -> Record:
    return replace(record, notes=tuple(dict.fromkeys((*record.notes, note))))


def exit_code(records: tuple[Record, ...]) -> int:
    """Return 2 if a cell ended with an error in the user's input, 1 if a cell failed or is invalid, else 0."""
    if any(record.bad_input for record in records):
        return InputError.exit_code
    return int(any(record.status in ("failed", "invalid") for record in records))
