"""Sweeps that are started in this process or one of their own, with planted jobs in place of runs."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from profiling import generic_forward
from profiling.cli import app, sweep
from profiling.results.sweep import Sweep, is_sweep, read_sweep
from profiling.run.sweep_job import JobTask

ROOT = Path(__file__).resolve().parents[3]
PLANTED_JOB = Path(__file__).with_name("planted_job.py")
#: A config that is valid wherever the tests run.
CELLS = ("component=[image_decoder]", "variant=[baseline]")


@dataclass(frozen=True)
class Swept:
    """How a sweep ended."""

    code: int
    err: str
    folder: Path

    @property
    def sweep(self) -> Sweep:
        return read_sweep(self.folder)

    @property
    def states(self) -> list[str]:
        return [job.state for job in self.sweep.jobs]

    def tries(self, number: int) -> list[dict[str, Any]]:
        """What the tries of a job say of where and when they ran."""
        path = self.folder / str(number) / "times.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def refused_with(self, *words: str) -> None:
        """Check that the sweep ended with one line that says all these words, before the first job."""
        assert self.code == 2, self.err
        (line,) = self.err.splitlines()
        assert line.startswith("error: ")
        for word in words:
            assert word in line


@pytest.fixture
def start_sweep(tmp_path, monkeypatch, capfd):
    """Start a sweep over seeds; `plan` says what the job of a seed does (`planted_job.py`)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweep.tempfile, "gettempdir", lambda: str(tmp_path))  # locks: other tests run beside this one
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def start(*words: str, plan: dict[int, str] | None = None, folder: str = "sweep") -> Swept:
        monkeypatch.setattr(sweep, "JobTask", lambda **task: planted_task(plan, **task))
        resume = [word for word in words if word.startswith("resume=")]
        place = tmp_path / folder if not resume else Path(resume[0].partition("=")[2])
        monkeypatch.setattr(sys, "argv", arguments(place, *words))
        code = app.launch("generic_forward", generic_forward.run)
        return Swept(code, capfd.readouterr().err, place)

    return start


def planted_task(plan: dict[int, str] | None, *, command: tuple[str, ...], **task: Any) -> JobTask:
    """The task of a sweep, with a planted job in the place of `python -m profiling.TARGET`."""
    return JobTask(command=(sys.executable, str(PLANTED_JOB), json.dumps(plan or {}), *command[3:]), **task)


def arguments(folder: Path, *words: str) -> list[str]:
    """The command line of a sweep into `folder`."""
    flags = [word for word in words if word.startswith("-")]
    keys = [word for word in words if not word.startswith("-")]
    is_placed = any(word.startswith(("resume=", "hydra.sweep.dir=")) for word in keys)
    where = [] if is_placed else [f"hydra.sweep.dir={folder}"]
    device = [] if any(word.startswith("device=") for word in keys) else ["device=cpu"]
    return ["profiling", "--multirun", *flags, *where, *CELLS, *device, *keys]


_BEGIN = """
import sys
plan, arguments = eval(sys.argv[1])
sys.argv = ["-m", *arguments[1:]]  # as `python -m profiling.TARGET` begins
from profiling import generic_forward
from profiling.cli import app, sweep
from swept import planted_task
sweep.JobTask = lambda **task: planted_task(plan, **task)
sys.exit(app.launch("generic_forward", generic_forward.run))
"""


@pytest.fixture
def begin_sweep(tmp_path):
    """Start a sweep in a process of its own."""
    processes = []

    def begin(*words: str, plan: dict[int, str]) -> tuple[subprocess.Popen[str], Path]:
        folder = tmp_path / "sweep"
        given = repr((plan, arguments(folder, *words)))
        environment = os.environ | {"TMPDIR": str(tmp_path), "RAY_TMPDIR": "/tmp"}  # sockets need a short path
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *sys.path])
        process = subprocess.Popen(
            [sys.executable, "-c", _BEGIN, given],
            text=True,
            stderr=subprocess.PIPE,
            env=environment,
            cwd=tmp_path,
            start_new_session=True,  # a group, as a terminal makes one
        )
        processes.append(process)
        while not is_sweep(folder):
            assert process.poll() is None
            time.sleep(0.05)
        return process, folder

    yield begin
    for process in processes:
        process.kill()
        process.communicate()
