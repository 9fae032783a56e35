"""How a task is performed: in a process of its own, or in this one for a debugger. Both tell the same events."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol
from unittest import mock

OnEvent = Callable[[Mapping[str, Any]], None]

#: How long a process may take to end after it has told its result (CUDA teardown, worker pools).
EXIT_SECONDS = 30.0
LAST_LINES = 3


@dataclass(frozen=True)
class Ending:
    """How a process ended: `exit_code` is negative for a signal, as in `subprocess`."""

    kind: Literal["exited", "timeout"]
    exit_code: int

    def describe(self, log: Path) -> str:
        """Return one line: exit code or signal, and the last lines of the log."""
        if self.kind == "timeout":
            what = "hung: killed at the cell_timeout"
        elif self.exit_code < 0:
            what = f"killed by {_signal_name(-self.exit_code)}"
        else:
            what = f"exited with code {self.exit_code}"
        lines = last_lines(log)
        return f"{what}; last lines of {log.parent.name}/{log.name}: {' | '.join(lines)}" if lines else what


def run_isolated(
    task: Mapping[str, Any], *, files: Path, timeout: float, on_event: OnEvent, environment: Mapping[str, str]
) -> Ending:
    """Run `task` in a fresh Python process; its output goes to `<files>.log`.

    `timeout` is in seconds. The process leads a group of its own, which is killed whole when the time is over or the
    caller is interrupted.
    """
    task_file, log = files.with_name(f"{files.name}.json"), log_of(files)
    task_file.write_text(json.dumps(task))
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as events, log.open("wb") as output:
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "profiling.run.worker", str(task_file), str(writing)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(writing,),
                start_new_session=True,
                env={**os.environ, **environment},
            )
        finally:
            os.close(writing)
        try:
            deadline = time.monotonic() + timeout
            for event in _events(events, process, deadline):
                on_event(event)
            return Ending("exited", process.wait(timeout=EXIT_SECONDS))
        except subprocess.TimeoutExpired:
            return Ending("timeout", _kill(process))
        finally:
            _kill(process)
            task_file.unlink(missing_ok=True)


def log_of(files: Path) -> Path:
    """Return where the output of the process goes."""
    return files.with_name(f"{files.name}.log")


def last_lines(log: Path) -> list[str]:
    """Return the last lines of `log` that say something."""
    with contextlib.suppress(OSError):
        text = log.read_bytes()[-8192:].decode(errors="replace")
        return [" ".join(line.split())[:200] for line in text.splitlines() if line.strip()][-LAST_LINES:]
    return []


def _events(pipe: Any, process: subprocess.Popen[bytes], deadline: float) -> Iterator[Mapping[str, Any]]:
    """Yield events until the process has ended or closed the pipe.

    The process is watched as well as the pipe: a child that it forked may hold the pipe open after its death. A
    process that has told its end gets `EXIT_SECONDS` more.

    Raises:
        subprocess.TimeoutExpired: the deadline passed first.

    """
    os.set_blocking(pipe.fileno(), False)
    watched = os.pidfd_open(process.pid)
    buffer, ended = b"", False
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            selector.register(watched, selectors.EVENT_READ)
            while not ended:
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    raise subprocess.TimeoutExpired("cell", 0)
                ended = any(key.fileobj == watched for key, _ in ready)
                while chunk := _read(pipe.fileno()):
                    *lines, buffer = (buffer + chunk).split(b"\n")
                    for event in map(json.loads, lines):
                        if event.get("event") == "end":
                            deadline = min(deadline, time.monotonic() + EXIT_SECONDS)
                        yield event
                ended = ended or chunk == b""
    finally:
        os.close(watched)


def _read(descriptor: int) -> bytes | None:
    """Return what is in the pipe, b"" when it is closed, None when there is nothing at the moment."""
    try:
        return os.read(descriptor, 1 << 20)
    except BlockingIOError:
        return None


def _kill(process: subprocess.Popen[bytes]) -> int:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


TORCH_TRACE = "TORCH_TRACE"


#: Looking at the device takes a few seconds; a driver that hangs must not hang the run.
PROBE_SECONDS = 300.0


class Executor(Protocol):
    """Performs tasks (see `core.tasks`)."""

    def perform(self, task: Mapping[str, Any], name: str, on_event: OnEvent) -> str | None:
        """Perform `task`, telling its events; return what killed it, or None if it ended by itself."""


class InProcess:
    """No isolation: a crash takes the run along, and a debugger sees everything."""

    def __init__(self, run: Path, *, trace: bool, fresh_cache: bool) -> None:
        self._fresh_cache = fresh_cache
        if trace:  # before anything imports torch, or it counts for nothing
            os.environ.setdefault(TORCH_TRACE, str(run / "torch_trace"))

    def perform(self, task: Mapping[str, Any], name: str, on_event: OnEvent) -> None:
        """Perform the task here."""
        from profiling.run.worker import perform  # imports torch, which no other path of this process needs

        with compile_cache(fresh=self._fresh_cache) as variables, mock.patch.dict(os.environ, variables):
            perform(task, on_event)


class Isolated:
    """A fresh process a task, its output in `cells/<name>.log`."""

    def __init__(self, run: Path, *, trace: bool, fresh_cache: bool, timeout: float) -> None:
        self._run, self._trace, self._fresh_cache, self._timeout = run, trace, fresh_cache, timeout

    def perform(self, task: Mapping[str, Any], name: str, on_event: OnEvent) -> str | None:
        """Perform the task in a process that may die as it likes."""
        files = self._run / "cells" / name
        files.parent.mkdir(exist_ok=True)
        given = os.environ.get(TORCH_TRACE)
        timeout = self._timeout if "cell" in task else PROBE_SECONDS
        own = self._run / "torch_trace" / name
        environment = {TORCH_TRACE: str(own)} if self._trace and given is None else {}
        before = _logs(given)
        with compile_cache(fresh=self._fresh_cache) as variables:
            ending: Ending = run_isolated(
                task, files=files, timeout=timeout, on_event=on_event, environment={**environment, **variables}
            )
        if self._trace and given is not None:  # the user's folder has the logs; the run gets a copy
            own.mkdir(parents=True, exist_ok=True)
            for log in _logs(given) - before:
                shutil.copy(log, own)
        return None if ending == Ending("exited", 0) else ending.describe(log_of(files))


@contextmanager
def compile_cache(*, fresh: bool) -> Iterator[dict[str, str]]:
    """Yield the variables that give inductor and Triton an empty cache while this lasts; none unless `fresh`."""
    if not fresh:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="inductor-", ignore_cleanup_errors=True) as cache:
        yield {"TORCHINDUCTOR_CACHE_DIR": cache, "TRITON_CACHE_DIR": str(Path(cache) / "triton")}


def _logs(folder: str | None) -> set[Path]:
    return set() if folder is None else set(Path(folder).glob("*.log"))
