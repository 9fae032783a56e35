"""What a child process of a run is asked to do: one of four tasks, written by the parent and decoded once."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from profiling.run.checkouts import Checkout
from profiling.run.job import Job


class _Task(msgspec.Struct, frozen=True, kw_only=True, tag_field="task"):
    checkout: Checkout | None = None  # from which the user's code is imported; None: from the working directory


class Probe(_Task, frozen=True, tag="probe"):
    """Resolve the settings and check every option of the jobs."""

    jobs: tuple[Job, ...]


class Cell(_Task, frozen=True, tag="cell"):
    """Measure a cell, which `loads` what another one compiles, or compiles itself."""

    job: Job
    loads: bool = False


class Start(_Task, frozen=True, tag="start"):
    """Start as an application does: import, build, prepare, one call; then save the compiler's artifacts."""

    job: Job
    began: float  # when the parent started the process, on the clock of time.perf_counter, which all processes share
    load: str | None = None  # file with artifacts of the compiler
    save: str | None = None  # where to write them


class Counters(_Task, frozen=True, tag="counters"):
    """Call each step of a cell once inside a range of the CUDA profiler, for ncu, which prints what it measures."""

    job: Job


Task = Probe | Cell | Start | Counters


def write_task(task: Task, file: Path) -> None:
    """Write a task for the process that performs it."""
    file.write_text(json.dumps(msgspec.to_builtins(task)))  # options may be infinite, which msgspec's own JSON is not


def read_task(file: Path) -> Task:
    """Read what `write_task` wrote."""
    return msgspec.convert(json.loads(file.read_text()), Task)
