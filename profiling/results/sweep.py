"""`sweep.json` and `job.json`: the jobs of a sweep, each a run in a folder of its own, and what became of them.

`sweep.json` is the plan, and once the process that launches the jobs has ended, also what became of each. Each job
writes its own state to `job.json` in its folder, since jobs on several hosts cannot write one file; that is what
counts. While a job runs it touches that file (`keep_alive`): one that was not touched for `SILENT_SECONDS`, or whose
process is gone from this host, has died.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Literal, get_args

import msgspec

from profiling.errors import InputError
from profiling.results.field import Section, about
from profiling.results.jsonl import decoded
from profiling.results.run_folder import JOB_FILE, SWEEP_FILE, write_json

SCHEMA = 1
#: Seconds between two signs of life of a job, and of silence after which it counts as dead. Network file systems show
#: another host's changes up to a minute late.
BEAT_SECONDS, SILENT_SECONDS = 2.0, 90.0

Launcher = Literal["basic", "local", "slurm", "ray"]
State = Literal["waiting", "running", "done", "failed", "died", "timed out"]
LAUNCHERS: tuple[str, ...] = get_args(Launcher)
#: States that a job does not leave unless the sweep is resumed.
ENDED: tuple[State, ...] = ("done", "failed", "died", "timed out")


class SweepJob(Section, frozen=True, kw_only=True):
    """A job of a sweep: one run, started as a process of its own with these overrides."""

    number: Annotated[int, about("place in the sweep, from 0")]
    folder: Annotated[str, about("folder of its run, relative to the folder of the sweep")]
    overrides: Annotated[tuple[str, ...], about("KEY=VALUE of this job, those that are the same for all jobs included")]
    state: Annotated[State, about("failed: it ended by itself with an error; died: killed, or its host is gone")] = (
        "waiting"
    )
    exit_code: Annotated[int | None, about("of its process; -9: killed by signal 9")] = None
    host: Annotated[str | None, about("name of the host on which it runs")] = None
    pid: Annotated[int | None, about("id of the process that watches it, on that host")] = None
    device: Annotated[str | None, about("device that it holds alone, 'cuda:0 NVIDIA H200' for example")] = None
    began: Annotated[str | None, about("start of its last try (ISO 8601)")] = None
    ended: Annotated[str | None, about("end of its last try (ISO 8601)")] = None
    tries: Annotated[
        int, about("how often it was started; a try that ended with the worker of another job does not count")
    ] = 0
    reason: Annotated[str | None, about("why it did not end well, in one line")] = None


class Sweep(Section, frozen=True, kw_only=True):
    """A sweep: one target, several jobs."""

    schema: Annotated[int, about("number of the schema")] = SCHEMA
    target: Annotated[str, about("`generic_forward`, for example: the jobs are runs of `python -m profiling.TARGET`")]
    launcher: Annotated[Launcher, about("what starts the jobs")]
    began: Annotated[str, about("start of the sweep (ISO 8601)")]
    argv: Annotated[tuple[str, ...], about("words of its command line, after `python -m profiling.TARGET`")]
    jobs: Annotated[tuple[SweepJob, ...], about("in the order of their numbers")]


def is_sweep(folder: Path) -> bool:
    """Return whether `folder` is that of a sweep."""
    return (folder / SWEEP_FILE).is_file()


def write_sweep(folder: Path, sweep: Sweep) -> None:
    """Write `sweep.json`, atomically."""
    write_json(folder / SWEEP_FILE, msgspec.to_builtins(sweep))


def write_job(folder: Path, job: SweepJob) -> None:
    """Write `job.json` into the job's folder below the sweep's `folder`, atomically."""
    write_json(folder / job.folder / JOB_FILE, msgspec.to_builtins(job))


def read_sweep(folder: Path) -> Sweep:
    """Read a sweep as `read_plan` does, and the present state of its jobs; also while it runs, or was killed."""
    sweep = read_plan(folder)
    return msgspec.structs.replace(sweep, jobs=tuple(read_job(folder, job) for job in sweep.jobs))


def read_plan(folder: Path) -> Sweep:
    """Read the planned jobs in `sweep.json`, without their states. Raises InputError if it is missing or damaged."""
    if not is_sweep(folder):
        raise InputError(f"{folder} is no sweep: it has no {SWEEP_FILE}. Name a folder that --multirun printed.")
    sweep = decoded(folder / SWEEP_FILE, Sweep)
    if sweep is None or sweep.schema != SCHEMA:
        raise InputError(f"{folder / SWEEP_FILE} is damaged, or of another version. Its runs can be read one by one.")
    planned = (SweepJob(number=job.number, folder=job.folder, overrides=job.overrides) for job in sweep.jobs)
    return msgspec.structs.replace(sweep, jobs=tuple(planned))


def read_job(folder: Path, planned: SweepJob) -> SweepJob:
    """Return the present state of a job of the sweep in `folder`; with a damaged `job.json` it waits to be resumed."""
    path = folder / planned.folder / JOB_FILE
    job = decoded(path, SweepJob)
    if job is None or job.number != planned.number:
        reason = f"its {JOB_FILE} is damaged: resume= runs what it lacks" if path.exists() else None
        return msgspec.structs.replace(planned, reason=reason)
    if job.state != "running" or _is_alive(job, path):
        return job
    reason = f"its process on {job.host} ended without a word: it was killed, or the host is gone"
    return msgspec.structs.replace(job, state="died", reason=reason)


@contextmanager
def keep_alive(folder: Path, job: SweepJob) -> Iterator[None]:
    """Touch the job's `job.json` while the block runs, so that readers see that it is alive."""
    path = folder / job.folder / JOB_FILE

    def touch() -> None:
        with suppress(OSError):
            os.utime(path)

    with repeated(touch, BEAT_SECONDS, "sweep-job-beat"):
        yield


@contextmanager
def repeated(action: Callable[[], None], seconds: float, name: str) -> Iterator[None]:
    """Call `action` every `seconds` in a thread of this name while the block runs."""
    stop = threading.Event()

    def repeat() -> None:
        while not stop.wait(seconds):
            action()

    thread = threading.Thread(target=repeat, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _is_alive(job: SweepJob, path: Path) -> bool:
    if job.host == socket.gethostname() and job.pid is not None:
        import psutil  # imported here, because a report also uses this module and must not require psutil

        if not psutil.pid_exists(job.pid):
            return False
    with suppress(OSError):
        return time.time() - path.stat().st_mtime < SILENT_SECONDS
    return False
