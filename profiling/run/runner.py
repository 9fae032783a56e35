"""A run: the cells in order, each with a record on the disk the moment it ends."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from profiling.components.spec import Settings
from profiling.errors import InputError
from profiling.results.frames import series_file
from profiling.results.records import BASELINE, Record, append_record
from profiling.results.rounds import rounds_done, with_round, with_speedup
from profiling.results.run_folder import ENVIRONMENT_FILE, prepare_folder, write_json
from profiling.run.job import Job, RunConfig, recovered_sections
from profiling.run.process import Executor, InProcess, Isolated
from profiling.run.progress import Progress
from profiling.run.revisions import git_facts
from profiling.trace.compile_log import CompileLogError, parse_compile_log
from profiling.trace.generated_code import list_kernels


@dataclass
class Outcome:
    """Sections and ending of a cell; `killed` says what ended the process, None if it ended by itself."""

    base: Record
    killed: str | None = None
    sections: dict[str, Any] = field(default_factory=dict)
    ending: Mapping[str, Any] | None = None

    @property
    def ended(self) -> bool:
        """Whether the cell has told its result."""
        return self.ending is not None

    def listener(self, progress: Progress) -> Callable[[Mapping[str, Any]], None]:
        """Return what takes the cell's events."""

        def on_event(event: Mapping[str, Any]) -> None:
            if event["event"] == "phase":
                progress.phase(event["phase"])
            elif event["event"] == "sections":
                for key, value in event["sections"].items():
                    self.sections[key] = tuple(value) if key == "notes" else value
            elif event["event"] == "end":
                self.ending = event

        return on_event

    def record(self) -> Record:
        """Return the record: what was measured before a crash is in it."""
        record = replace(self.base, **self.sections)
        if self.ending is None:
            return record.with_status("failed", f"the process {self.killed}")
        record = replace(record, **{key: self.ending[key] for key in ("status", "reason", "bad_input")})
        if self.killed is None:
            return record
        return replace(record, notes=(*record.notes, f"after its result the process {self.killed}"))


def with_files(record: Record, job: Job, folder: Path, on_parse: Callable[[], object] | None) -> Record:
    """Add what there is to the record, whose numbers stand without it: what cannot be read costs a note.

    `on_parse` is called before a compile log is parsed; None: the process has one for all its cells.
    """
    for read in (_with_recovered, _with_round_frames, _with_kernels):
        record = _noting(record, lambda record, read=read: read(record, job, folder))
    if not job.settings.trace or on_parse is None:
        return record
    on_parse()
    return _noting(record, lambda record: _with_compile_log(record, job, folder))


def _noting(record: Record, read: Callable[[Record], Record]) -> Record:
    try:
        return read(record)
    except (CompileLogError, OSError, ValueError) as error:
        return replace(record, notes=(*record.notes, " ".join(str(error).split())))


def _with_recovered(record: Record, job: Job, folder: Path) -> Record:
    """Add sections that the cell's process wrote to the run folder but did not send before it ended."""
    sections = recovered_sections(folder, job)
    return replace(record, **{name: each for name, each in sections.items() if getattr(record, name) is None})


def _with_round_frames(record: Record, job: Job, folder: Path) -> Record:
    """Put the frames of a round aside, since the next one writes its own in their place."""
    frames = folder / series_file(job.name)
    if record.rounds and frames.is_file():
        shutil.copyfile(frames, folder / series_file(f"{job.name}.round{len(record.rounds)}"))
    return record


def _with_kernels(record: Record, job: Job, folder: Path) -> Record:
    kernels = list_kernels(folder / "kernels" / job.name)
    listed = tuple({**asdict(k), "file": f"kernels/{job.name}/{k.file}"} for k in kernels)
    return replace(record, kernels=listed) if kernels else record


def _with_compile_log(record: Record, job: Job, folder: Path) -> Record:
    summary = parse_compile_log(folder / "torch_trace" / job.name, folder / "tl_out" / job.name)
    return record if summary is None else replace(record, compile=asdict(summary))


#: Facts of the environment that change by themselves.
IDLE_KEYS = ("device_reason", "ceilings", "ceilings_reason")


@dataclass
class Run:
    """A run in progress."""

    target: str
    config: RunConfig
    folder: Path
    progress: Progress
    records: dict[tuple[str, str], Record] = field(default_factory=dict)

    def execute(self) -> int:
        """Run every cell that has no record yet; return the exit code: 0, 1 (failed, invalid) or 2 (bad input).

        Raises:
            InputError: something is wrong that no cell could survive; no cell has run.
            KeyboardInterrupt: the user stopped it; what had ended is on the disk.

        """
        config, settings = self.config, self.config.settings
        done = prepare_folder(self.folder, config.source, config.resume)
        self.records = {record.cell: record for record in done}
        executor: Executor = (
            Isolated(
                self.folder,
                trace=settings.trace,
                fresh_cache=settings.compile_cache == "fresh",
                timeout=config.cell_timeout,
            )
            if config.isolation == "process"
            else InProcess(self.folder, trace=settings.trace, fresh_cache=settings.compile_cache == "fresh")
        )
        found = self._probe(executor)
        settings = Settings(**found["settings"])
        self._keep_environment(found["environment"], resumed=bool(done))
        jobs = baseline_first(config.jobs(self.target, settings, str(self.folder.absolute())))
        turns = [(number, job) for number in range(1, config.rounds + 1) for job in jobs]
        left = [turn for turn in turns if self._is_due(*turn)]
        if len(left) < len(turns):
            what = "cells" if config.rounds == 1 else "rounds of cells"
            self.progress.say(
                f"resuming {self.folder}: {len(turns) - len(left)} of {len(turns)} {what} done, {len(left)} left"
            )
        for place, (number, job) in enumerate(left, 1):
            if self._is_due(number, job):
                named = job.name.replace(".", " · ") + (f" · round {number}" if config.rounds > 1 else "")
                self.progress.begin(named, place, len(left))
                self._run_cell(job, executor, found["skip"].get(job.variant), number)
        self._complete()
        return exit_code(tuple(self.records.values()))

    def _is_due(self, number: int, job: Job) -> bool:
        """Say whether the cell has yet to play round `number`; one that is not ok plays no more."""
        record = self.records.get((job.component.name, job.variant))
        return record is None or (record.status == "ok" and rounds_done(record) < number)

    def _probe(self, executor: Executor) -> Mapping[str, Any]:
        self.progress.begin("run", 0, 0)
        self.progress.phase("probe")
        jobs = self.config.jobs(self.target, self.config.settings, str(self.folder.absolute()))
        answers: list[Mapping[str, Any]] = []
        killed = executor.perform({"probe": [job.to_json() for job in jobs]}, "probe", answers.append)
        if not answers:
            raise InputError(f"the device could not be looked at: {killed}. Run with isolation=none to see why.")
        if answers[-1]["event"] == "bad_input":
            raise InputError(answers[-1]["message"])
        return answers[-1]

    def _keep_environment(self, found: Mapping[str, Any], *, resumed: bool) -> None:
        path = self.folder / ENVIRONMENT_FILE
        if resumed:  # half of the cells from one machine and half from another would compare nothing
            before = json.loads(path.read_text(encoding="utf-8"))
            differing = [key for key in found if key not in IDLE_KEYS and before.get(key) != found[key]]
            if differing:
                raise InputError(
                    f"resume={self.folder} began on another machine or setup ({', '.join(differing)} differ). "
                    "Go on there, or start a new run."
                )
            return
        command = shlex.join(["python", "-m", f"profiling.{self.target}", *sys.argv[1:]])
        captured = datetime.now(UTC).isoformat(timespec="seconds")
        write_json(path, {"captured_at": captured, "command": command, "git": git_facts(), **found})

    def _run_cell(self, job: Job, executor: Executor, skip: str | None, number: int) -> None:
        """Run one cell, in round `number`; its record is on the disk before anything else is done with it."""
        settings = job.settings
        base = Record(
            target=self.target,
            component=job.component.name,
            variant=job.variant,
            status="skipped",
            reason=skip or "not run",
            device=settings.device,
            dtype=settings.dtype,
            scale=settings.scale,
            point=job.component.point,
        )
        spoilt = self._spoilt(job)
        if skip is not None or spoilt is not None:
            known = base
            if skip is None and spoilt is not None:
                known = replace(base.with_status("failed", spoilt), bad_input=True)
            self._keep(known)
            self.progress.end(known)
            return
        for left_over in ("kernels", "torch_trace"):  # of an earlier attempt at this cell, which was not kept
            shutil.rmtree(self.folder / left_over / job.name, ignore_errors=True)
        for frames in (self.folder / "cells").glob(f"{job.name}.frames.*"):
            frames.unlink()
        for frames in (self.folder / "cells").glob(f"{job.name}.round*.frames.npz") if number == 1 else ():
            frames.unlink()
        outcome = Outcome(base)
        try:
            outcome.killed = executor.perform({"cell": job.to_json()}, job.name, outcome.listener(self.progress))
        except KeyboardInterrupt:
            recovered_sections(self.folder, job)  # leaves readable files, although the cell has no record
            if outcome.ended:
                self._keep(self._with_speedup(self._in_round(outcome.record(), number)))
            raise
        record = self._with_speedup(self._in_round(outcome.record(), number))
        self._keep(record)
        enriched = self._with_files(record, job)
        if enriched != record:
            self._keep(enriched)
        self.progress.end(enriched)

    def _in_round(self, record: Record, number: int) -> Record:
        """Join a round's record with those of the rounds before it."""
        if self.config.rounds == 1:
            return record
        before = self.records.get(record.cell) if number > 1 else None
        return with_round(before, record, number, self.config.rounds, seed=self.config.settings.seed)

    def _spoilt(self, job: Job) -> str | None:
        """Return why the component itself is wrong, which each of its variants would only say again.

        A record without a parameter count never got past loading or the reference; later, bad input may be that of the
        variant, and says nothing about the others.
        """
        found = (r for r in self.records.values() if r.component == job.component.name and r.parameters is None)
        return next((record.reason for record in found if record.bad_input), None)

    def _with_speedup(self, record: Record) -> Record:
        baseline = self.records.get((record.component, BASELINE))
        return with_speedup(record, baseline, seed=self.config.settings.seed)

    def _with_files(self, record: Record, job: Job) -> Record:
        parse = None if self.config.isolation == "none" else lambda: self.progress.phase("parse")
        return with_files(record, job, self.folder, parse)

    def _keep(self, record: Record) -> None:
        append_record(self.folder, record)
        self.records[record.cell] = record

    def _complete(self) -> None:
        """Add what can only be said at the end: speedups whose baseline came late, the compile log of one process."""
        for launches in (record.launches for record in self.records.values() if record.launches):
            path = self.folder / ENVIRONMENT_FILE
            environment = json.loads(path.read_text(encoding="utf-8"))
            write_json(path, {**environment, "launch_calibration": launches["launch_calibration"]})
        for record in tuple(self.records.values()):
            compared = self._with_speedup(record)
            if record.speedup is None and compared != record:
                self._keep(compared)
        if self.config.isolation == "none" and self.config.settings.trace:
            try:
                found = parse_compile_log(self.folder / "torch_trace", self.folder / "tl_out" / "run")
                self.progress.say("nothing was compiled" if found is None else f"compile report: {found.index}")
            except CompileLogError as error:
                self.progress.say(str(error))


def baseline_first(jobs: tuple[Job, ...]) -> tuple[Job, ...]:
    """Return the jobs with each component's baseline before its other variants, which are compared with it."""
    order = {name: place for place, name in enumerate(dict.fromkeys(job.component.name for job in jobs))}
    return tuple(sorted(jobs, key=lambda job: (order[job.component.name], job.variant != BASELINE)))


def exit_code(records: tuple[Record, ...]) -> int:
    """Return 2 where the user's input broke a cell, 1 where a cell failed or is invalid, else 0."""
    if any(record.bad_input for record in records):
        return InputError.exit_code
    return int(any(record.status in ("failed", "invalid") for record in records))
