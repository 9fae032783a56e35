"""A run: probes the device, writes the environment, and runs its cells, those of a component in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from profiling.errors import InputError, printable
from profiling.machine.spreads import Spreads
from profiling.results.environment import ENVIRONMENT_FILE, Environment, encode_environment
from profiling.results.jsonl import RESULTS_FILE
from profiling.results.record import Record
from profiling.results.run_folder import JOB_FILE, EarlierRun, prepare_folder, write_json
from profiling.run.cell_records import CellRecords, LiveCell
from profiling.run.checkouts import Checkout
from profiling.run.child import Orphans
from profiling.run.compile_caches import CompileCaches, shared_folder
from profiling.run.events import End, Event, Phase, Probed
from profiling.run.fork_server import ForkServer, server_for_run
from profiling.run.in_turns import CellsInTurns, run_again, run_in_turns, waits
from profiling.run.job import Job, RunConfig
from profiling.run.process import Executor, InProcess, Isolated
from profiling.run.progress import Progress
from profiling.run.revisions import code_and_command, code_changes
from profiling.run.session import Limits, to_its_end
from profiling.run.task import Probe

#: Keys of the environment that may differ between a run and its resumption; the code is compared apart from them.
MAY_DIFFER = ("ceilings", "ceilings_reason", "module_git")
#: Which GPUs a process may use: a job of a sweep gets one that is free. The kind of GPU is compared apart from it.
GPUS_VARIABLE = "CUDA_VISIBLE_DEVICES"
#: What every cell imports later: torch at the first dispatch mode, or when the profiler begins, and statistics.
IMPORTED_LATER = ("torch._inductor.config", "scipy.optimize", "scipy.special")


@dataclass
class Run:
    """A run in progress, in a folder that this process holds."""

    target: str
    config: RunConfig
    folder: Path
    progress: Progress
    command: str  # the command line, for environment.json
    checkout: Checkout | None = None  # whose code the cells use; None: that of the working directory
    performs: Executor | None = None  # its tasks; None: what the config says
    cells: CellRecords = field(init=False)
    caches: CompileCaches = field(init=False)
    executor: Executor = field(init=False)  # this and the following are set by `begin`
    jobs: tuple[Job, ...] = field(init=False)
    not_run: Mapping[str, End] = field(init=False)  # how the cells of variants end that cannot run here
    free: Mapping[str, int] = field(init=False)  # memory in bytes, by kind, before the first cell

    def __post_init__(self) -> None:
        label = self.checkout.name if self.checkout is not None else ""
        self.cells = CellRecords(self.target, self.config, self.folder, self.progress, label)
        shared = shared_folder() if self.config.isolation == "process" else None
        self.caches = CompileCaches(self.config.settings.compile_cache, shared)

    @property
    def records(self) -> dict[tuple[str, str], Record]:
        """The records by (component, variant)."""
        return self.cells.by_cell

    def execute(self) -> int:
        """Run every cell that has no record yet; return the exit code: 0 (ok), 1 (failed, invalid) or 2 (bad input).

        Raises:
            InputError: an error that concerns every cell; no cell has run.
            KeyboardInterrupt: the user stopped the run; finished cells are on disk.

        """
        execute((self,))
        return exit_code(tuple(self.records.values()))

    def begin(self, orphans: Orphans, server: ForkServer) -> None:
        """Prepare the folder, probe the device, and write the environment.

        Raises:
            InputError: an error that concerns every cell.

        """
        config = self.config
        earlier = prepare_folder(self.folder, config.source, resumed=config.resume is not None)
        for record, rounds in zip(earlier.records, earlier.rounds, strict=True):
            # Older versions wrote one record for all rounds of a cell: if rounds are missing, all are measured again.
            if rounds[0].round is not None or record.rounds is None or len(record.rounds) >= config.rounds:
                self.cells.by_cell[record.cell], self.cells.rounds[record.cell] = record, rounds
        self.executor = self.performs or self._executor(orphans, server)
        probed = self._probe(self.executor)
        self._write_environment(probed.environment, earlier)
        device = probed.environment.device_kind
        self.cells.spreads = Spreads() if device is None else Spreads.of(device)
        self.jobs = config.jobs(self.target, probed.settings, str(self.folder.absolute()))
        self.not_run, self.free = probed.not_run, probed.free
        self.caches.setup = repr((probed.environment.versions, device, probed.environment.module_git))
        if earlier.skipped_lines:
            self.progress.say(f"note: {RESULTS_FILE}: {earlier.skipped_lines} damaged or cut-off lines were skipped")
        absent = [job.variant for job in self.jobs if job.variant in self.not_run and self.is_due(1, job)]
        self.say_not_run({name: self.not_run[name] for name in absent})

    def is_due(self, round_: int, job: Job) -> bool:
        """Return whether the cell must still run in this round; after a round that is not ok it does not run again."""
        record = self.records.get(job.cell)
        if record is None:
            return True
        done = {each.round for each in self.cells.rounds[job.cell]}
        return record.status == "ok" and done.isdisjoint((None, round_))

    def say_resumed(self) -> None:
        """Print how many cells of a resumed run are done."""
        left, total = len(self._left(1)), self.config.rounds * len(self.jobs)
        if left < total:
            cells = "cells" if self.config.rounds == 1 else "rounds of cells"
            self.progress.say(f"resuming {self.folder}: {total - left} of {total} {cells} done, {left} left")

    def count(self, round_: int) -> None:
        """Count the cells that are left, for the progress display."""
        self.cells.total = self.cells.begun + len(self._left(round_))

    def _left(self, round_: int) -> list[Job]:
        """Return the jobs that must still run in this round and later ones, once for each round."""
        return [job for each in range(round_, self.config.rounds + 1) for job in self.jobs if self.is_due(each, job)]

    def say_not_run(self, ends: Mapping[str, End]) -> None:
        """Print a line for each reason why variants do not run, instead of one for each of their cells."""
        for end in dict.fromkeys(ends.values()):
            names = ", ".join(name for name, each in ends.items() if each == end)
            self.progress.say(f"{end.status}: {names} ({printable(end.reason)})")

    def _executor(self, orphans: Orphans, server: ForkServer) -> Executor:
        config = self.config
        if config.isolation == "none":
            return InProcess(self.folder, trace=config.settings.trace, caches=self.caches)
        limits = Limits(config.cell_timeout, config.prepare_timeout)
        return Isolated(self.folder, limits, self.caches, orphans, self.checkout, server)

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

        process_end = to_its_end(executor.session(Probe(jobs=jobs), "probe", receive, turns=False))
        answer = answers[-1] if answers else None
        if isinstance(answer, Probed):
            return answer
        if isinstance(answer, End):
            of_checkout = f"{self.checkout.name}: " if self.checkout else ""
            raise InputError(f"{of_checkout}{answer.reason}")
        raise InputError(
            f"probing the device failed: the process {process_end.death}. To debug it, add isolation=none."
        )

    def _write_environment(self, probed: Environment, earlier: EarlierRun) -> None:
        """Write `environment.json`; where a resumed run keeps cells, compare it with the present one instead.

        Raises:
            InputError: the run began on another machine or setup, so old and new cells could not be compared, or with
                other code and without resume_changed=true.

        """
        checkout = self.checkout
        of_this_process = code_and_command(
            self.command, Path(checkout.folder) if checkout else Path.cwd(), checkout.name if checkout else None
        )
        facts = encode_environment(probed)
        content = {**encode_environment(of_this_process), **facts}
        if not earlier.records:
            write_json(self.folder / ENVIRONMENT_FILE, content)
            return
        before, now = (_comparable(each) for each in (encode_environment(earlier.environment), facts))
        differing = [key for key in now if key not in MAY_DIFFER and before.get(key) != now[key]]
        if differing:
            is_job = (self.folder / JOB_FILE).exists()
            raise InputError(
                f"resume={self.folder} began on another machine or setup (other {', '.join(differing)}). Resume it "
                f"there, or {'delete that folder: the job then begins anew' if is_job else 'start a new run'}."
            )
        self.cells.changed_code = code_changes(earlier.environment, msgspec.convert(content, Environment))
        if self.cells.changed_code and not self.config.resume_changed:
            raise InputError(
                f"resume={self.folder}: the code has changed since the run began: {self.cells.changed_code}. Start a "
                "new run, or add resume_changed=true to measure the cells that are left with the present code."
            )


def _comparable(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return an environment without the number of its GPU: another one of the same kind may go on with a run."""
    variables = environment.get("variables", {})
    return {**environment, "variables": {name: variables[name] for name in variables if name != GPUS_VARIABLE}}


def execute(runs: Sequence[Run], schedule: Callable[[Sequence[Run]], None] | None = None) -> None:
    """Run the cells of a run, in turns for each component; of several runs, cells of one name take turns, too.

    A `schedule` runs the cells of runs that have begun in its own order instead.

    The runs have the same components, variants and rounds, and each a checkout of its own.

    Raises:
        InputError: an error that concerns every cell of a run; no cell has run.
        KeyboardInterrupt: the user stopped the run; finished cells are on disk.

    """
    orphans = Orphans()
    adopted = orphans.adopted() if runs[0].config.isolation == "process" else nullcontext()
    procedures = (run.config.procedure["_target_"].rpartition(".")[0] for run in runs)
    with adopted, closing(server_for_run((*procedures, *IMPORTED_LATER))) as server:
        for run in runs:
            run.begin(orphans, server)
        try:
            (schedule or _run_cells)(runs)
        finally:
            for run in runs:
                run.caches.clear()
            if names := orphans.left():
                runs[0].progress.say(f"note: cells left processes behind, which still run: {names}")


def _run_cells(runs: Sequence[Run]) -> None:
    for run in runs:
        run.say_resumed()
        for job in run.jobs:
            if job.variant in run.not_run and run.is_due(1, job):
                run.cells.not_run(job, run.not_run[job.variant])
    if len(runs) == 1:
        components = groupby(runs[0].jobs, lambda job: job.row)
        groups = [[(runs[0], job) for job in jobs] for _, jobs in components]
    else:
        of_a_name = zip(*(run.jobs for run in runs), strict=True)
        groups = [list(zip(runs, jobs, strict=True)) for jobs in of_a_name]
    for round_ in range(1, runs[0].config.rounds + 1):
        for run in runs:
            run.count(round_)
        _run_round(round_, groups, runs[0].free)
    for run in runs:
        run.cells.complete([job.cell for job in run.jobs])


def _run_round(round_: int, groups: Sequence[Sequence[tuple[Run, Job]]], free: Mapping[str, int]) -> None:
    """Run the cells that are due; those of a group are timed in turns, one alone where no rounds repeat it."""

    def take_turns(group: Sequence[LiveCell]) -> bool:
        return round_ == 1 and bool(group) and waits(group) and (len(group) > 1 or group[0].records.config.rounds == 1)

    cells = [
        [LiveCell(run.cells, run.executor, job, round_) for run, job in group if run.is_due(round_, job)]
        for group in groups
    ]
    again = list[LiveCell]()
    with CellsInTurns(again=again, free=free) as turns:
        for place, group in enumerate(cells):
            if take_turns(group):
                run_in_turns(turns, group, [cell for each in cells[place + 1 :] if take_turns(each) for cell in each])
            else:
                for cell in group:
                    turns.run_alone(cell)
    run_again(again)


def exit_code(records: tuple[Record, ...]) -> int:
    """Return 2 if a cell ended with an error in the user's input, 1 if a cell failed or is invalid, else 0."""
    if any(record.bad_input for record in records):
        return InputError.exit_code
    return int(any(record.status in ("failed", "invalid") for record in records))
