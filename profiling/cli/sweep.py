"""`--multirun`: a run for each combination of the swept values, started by joblib, submitit or Ray.

The command line is expanded here and written to `sweep.json` before the first job begins. The launcher then gets
nothing but the numbers of the jobs, and starts `profiling.run.sweep_job.JobTask` with each. Retries and
resume go by the state that the jobs write into their folders, so they are the same for all launchers.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.types import Override, ValueType
from msgspec.structs import replace

from profiling.cli.app import (
    SWEEP_OPTIONS,
    command_line,
    compose_config,
    explaining_interrupts,
    held,
    raising_interrupts,
    text_of,
)
from profiling.cli.config import read_config
from profiling.cli.launchers import ENGINE, OWN, SweepOptions, launch, places_for
from profiling.errors import (
    INTERRUPTED,
    InputError,
    check_choice,
    check_number,
    check_whole,
    command,
    override,
    print_text,
    reason_of,
)
from profiling.results.jsonl import RESULTS_FILE
from profiling.results.run_folder import new_folder, resume_command
from profiling.results.sweep import (
    ENDED,
    LAUNCHERS,
    Launcher,
    Sweep,
    SweepJob,
    read_job,
    read_plan,
    read_sweep,
    repeated,
    write_job,
    write_sweep,
)
from profiling.run.revisions import TOOL
from profiling.run.sweep_job import JobTask, now

#: Most jobs: a sweep of more is a mistake in a list of values.
MOST_JOBS = 10_000
_POLL_SECONDS = 0.5
#: Seconds in which jobs on this host end after an interrupt, at most.
_END_SECONDS = 25.0
#: Seconds between two looks at the files of the jobs: a look must not disturb them.
_LOOK_SECONDS = 2.0
_FOLDER, _CHANGED = "hydra.sweep.dir", "resume_changed"


def sweep(target: str, given: Mapping[str, Override], folders: Sequence[Path], started: float) -> int:
    """Run the sweep of a command line with --multirun; return the highest exit code of its runs.

    `given` are its overrides by their keys. YAML files lie below `folders`: conf, and that of --config-dir. `started`
    is when this process began (`time.time`).

    Raises:
        InputError: a wrong option, a swept key or value that does not exist, a launcher that is not installed or does
            not answer, or a folder that is in use, or belongs to something else.

    """
    options, jobs = _plan(given)
    checked: set[str] = set()
    for job in jobs:
        if not checked.issuperset(job):  # one job for each value suffices
            checked.update(job)
            read_config(compose_config(target, job, folders))  # which refuses wrong overrides
    places = places_for(options, jobs)
    resume = text_of(given.get("resume"))
    folder = Path(text_of(given.get(_FOLDER)) or resume or new_folder(target))
    paths = [TOOL, *(Path(each).absolute() for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each)]
    task = JobTask(
        folder=str(folder.absolute()),
        command=(
            *(sys.executable, "-m", f"profiling.{target}", *(f"--config-dir={own}" for own in folders[1:])),
            *(each.input_line or "" for key, each in given.items() if key == _CHANGED),
        ),
        working_dir=str(Path.cwd()),
        python_path=os.pathsep.join(map(str, dict.fromkeys(paths))),
        locks=str(Path(tempfile.gettempdir()) / f"rt-profiling-{os.getuid()}"),
        gpus=places.gpus,
        cpus=places.cpus,
        retries=options.retries,
        timeout=options.job_timeout,
    )
    with raising_interrupts(signal.SIGINT), held(folder, resume, started, _FOLDER):
        if resume is None:
            planned = tuple(SweepJob(number=n, folder=str(n), overrides=tuple(job)) for n, job in enumerate(jobs))
            argv = tuple(sys.argv[1:])
            write_sweep(folder, Sweep(target=target, launcher=options.launcher, began=now(), argv=argv, jobs=planned))
        else:
            _resume(folder, target, jobs, options.launcher)
        resumption = resume_command(folder, command_line(target))
        return perform(folder, options, partial(launch, options, places, task), resumption)


def perform(folder: Path, options: SweepOptions, launched: Callable[[Sequence[int]], None], resumption: str) -> int:
    """Launch the jobs that are left until none is, print a line for each that ends, return the highest exit code.

    `launched` starts the jobs of some numbers, and returns when they have ended. `resumption` is the command that
    resumes the sweep.
    """
    with _progress(folder, options):
        try:
            failure = _launched_until_none_is_left(folder, options.retries, launched)
        except KeyboardInterrupt:
            _wait_for_own_processes(folder)
            for job in _silent(folder):
                write_job(folder, replace(job, state="waiting", tries=job.tries - 1, reason="interrupted"))
            failure = "interrupted; finished cells are kept"
            if options.cluster == "slurm":
                failure += ", and jobs that Slurm has go on (scancel ends them)"
    ended = read_sweep(folder)
    write_sweep(folder, ended)
    jobs = ended.jobs
    is_written = True
    if any((folder / job.folder / RESULTS_FILE).exists() for job in jobs):
        from profiling.report.sweep import load_sweep, sweep_report  # what a refused command line does not need

        with explaining_interrupts(partial(print, file=sys.stderr), folder):
            printed = sweep_report(load_sweep(folder)).written(folder)
        print_text(printed.text)
        is_written = printed.is_written
    counts = Counter(job.state for job in jobs)
    summary = ", ".join(f"{number} {state}" for state, number in counts.items())
    print(f"sweep: {summary} -> {folder}", file=sys.stderr)
    if failure is not None:
        print(f"{failure}.", file=sys.stderr)
    if counts["done"] < len(jobs):
        print(f"To run what is missing:\n  {resumption}", file=sys.stderr)
    if failure is not None and failure.startswith("interrupted"):
        return INTERRUPTED
    codes = (job.exit_code or 0 if job.state in ("failed", "done") else 1 for job in jobs)
    return max([int(failure is not None or not is_written), *codes])


# The plan.


def _plan(given: Mapping[str, Override]) -> tuple[SweepOptions, list[list[str]]]:
    """Return the options of the sweep, and the overrides of each job."""
    own = {key: each.value() for key, each in given.items() if key.startswith((OWN, ENGINE))}
    of_sweep = {*SWEEP_OPTIONS, *own, _FOLDER, _CHANGED, "resume"}
    for key, each in given.items():
        if each.is_sweep_override() and key in of_sweep:
            raise InputError(f"{each.input_line}: {key} applies to the whole sweep. Give one value.")
        is_list_or_range = each.is_discrete_sweep() and each.value_type != ValueType.GLOB_CHOICE_SWEEP
        if each.is_sweep_override() and not is_list_or_range:
            example = f"Write {key}=A,B or '{key}=range(1,5)'."
            raise InputError(f"{each.input_line}: a sweep takes values or a range. {example}")
        if key.startswith(("hydra.sweep", "hydra/sweep")) and key not in of_sweep:
            raise InputError(f"{each.input_line} has no effect: the folders of a sweep are numbered. Leave it out.")
    of_jobs = [each for key, each in given.items() if key not in of_sweep and not key.startswith("hydra.run.")]
    values: dict[str, Any] = {key: given[key].value() for key in SWEEP_OPTIONS if key in given}
    options = SweepOptions(own=own, **values)
    check_choice("launcher", options.launcher, LAUNCHERS)
    if options.devices is not None:
        check_whole("devices", options.devices, most=10_000)
    check_whole("retries", options.retries, least=0, most=100)
    if options.job_timeout is not None:
        check_number("job_timeout", options.job_timeout, above=0)
    number = math.prod(len(list(each.sweep_string_iterator())) for each in of_jobs if each.is_discrete_sweep())
    if number > MOST_JOBS:
        raise InputError(f"the swept values make {number:,} jobs. Sweep fewer values: at most {MOST_JOBS:,} jobs.")
    (jobs,) = BasicSweeper.split_arguments(of_jobs, None)
    return options, jobs


def _resume(folder: Path, target: str, jobs: Sequence[Sequence[str]], launcher: Launcher) -> None:
    """Let the jobs that did not end well begin anew.

    Raises:
        InputError: the folder holds no sweep, or another one.

    """
    before = read_plan(folder)
    if before.target != target or [job.overrides for job in before.jobs] != [tuple(job) for job in jobs]:
        repeat = command("-m", f"profiling.{before.target}", *before.argv, override("resume", folder))
        raise InputError(f"resume={folder} was begun with other arguments. Repeat its command: {repeat}")
    write_sweep(folder, replace(before, launcher=launcher))
    for job in read_sweep(folder).jobs:
        if job.state not in ("done", "running") and (folder / job.folder).is_dir():
            write_job(folder, before.jobs[job.number])


def _launched_until_none_is_left(folder: Path, retries: int, launched: Callable[[Sequence[int]], None]) -> str | None:
    """Launch jobs until none is left that may be tried; return what keeps the launcher from going on, in one line.

    A launcher may fail because a worker is gone; joblib then kills the workers of all other jobs, too. If several jobs
    have lost theirs, one of them may be the cause: each is tried once more alone, and this try is not counted.
    """
    while True:
        jobs = read_sweep(folder).jobs
        waiting = [job.number for job in jobs if job.state == "waiting"]
        silent = _silent(folder)
        for job in silent:
            if len(silent) > 1:
                write_job(folder, replace(job, state="waiting", tries=job.tries - 1))
            elif job.tries > retries:
                write_job(folder, replace(job, ended=now()))
        alone = [job.number for job in silent if len(silent) > 1 or job.tries <= retries]
        if not alone and not waiting:
            if not any(job.state == "running" for job in jobs):
                return None
            time.sleep(_POLL_SECONDS)  # a launcher that failed may have left jobs on other hosts
            continue
        before = [(job.state, job.tries) for job in jobs]
        try:
            launched(alone[:1] or waiting)
        except Exception as error:
            if [(job.state, job.tries) for job in read_sweep(folder).jobs] == before:
                return f"the launcher failed: {reason_of(error).rstrip('.')}"
            _wait_for_own_processes(folder)  # all that have lost their workers are seen together


def _wait_for_own_processes(folder: Path) -> None:
    """Wait until the jobs of this host have ended, which an interrupt reaches, too, or their launcher's end."""
    deadline = time.monotonic() + _END_SECONDS
    while time.monotonic() < deadline:
        if not any(job.state == "running" and job.host == socket.gethostname() for job in read_sweep(folder).jobs):
            return
        time.sleep(_POLL_SECONDS)


def _silent(folder: Path) -> list[SweepJob]:
    """Return the jobs that died before their process could record it (see `keep_alive`)."""
    return [job for job in read_sweep(folder).jobs if job.state == "died" and job.ended is None]


@contextmanager
def _progress(folder: Path, options: SweepOptions) -> Iterator[None]:
    """Print a line for each job that ends while the block runs."""
    jobs = read_plan(folder).jobs
    told = {job.number for job in read_sweep(folder).jobs if job.state in ENDED}
    common = set.intersection(*(set(job.overrides) for job in jobs))
    kept = f", {len(told)} of them done" if told else ""
    print(
        f"sweep: {len(jobs)} job{'s' * (len(jobs) != 1)}{kept}, launcher={options.launcher} -> {folder}",
        file=sys.stderr,
    )

    def tell() -> None:
        for planned in (each for each in jobs if each.number not in told):
            job = read_job(folder, planned)
            if job.state not in ENDED or job.ended is None:
                continue
            told.add(job.number)
            words = " ".join(word for word in job.overrides if word not in common)
            device = f" on {job.device}" if job.device else ""
            line = ": ".join(filter(None, (f"job {job.number} {job.state}{device}", words, job.reason)))
            print(f"[{len(told)}/{len(jobs)}] {line}", file=sys.stderr)

    try:
        with repeated(tell, _LOOK_SECONDS, "sweep-progress"):
            yield
    finally:
        tell()
