"""Performs tasks (probe the device, run a cell), each in a process of its own or in this one, and relays their events.

`Isolated` starts a fresh process for each task, so that a crash or a hang costs one cell. `InProcess` is for debuggers.
"""

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

OnEvent = Callable[[Mapping[str, Any]], None]

#: The variable that makes torch write its compile log into a folder.
TORCH_TRACE = "TORCH_TRACE"
#: Timeout in seconds for probing the device, which takes a few: a driver that hangs must not hang the run.
PROBE_SECONDS = 300.0
#: Seconds that a process may take to exit after it has sent its result (CUDA teardown, worker pools).
EXIT_SECONDS = 30.0
LAST_LINES = 3


class Executor(Protocol):
    """Performs the tasks that `profiling.run.worker.perform` lists."""

    def perform(self, task: Mapping[str, Any], name: str, on_event: OnEvent) -> str | None:
        """Perform `task` and pass its events to `on_event`; return how its process died, None if it ended normally."""


class InProcess:
    """Performs tasks in this process: a crash ends the whole run, and a debugger can follow each task."""

    def __init__(self, run: Path, *, trace: bool, fresh_cache: bool) -> None:
        self._fresh_cache = fresh_cache
        if trace:  # torch reads it when it is imported
            os.environ.setdefault(TORCH_TRACE, str(run / "torch_trace"))

    def perform(self, task: Mapping[str, Any], name: str, on_event: OnEvent) -> None:
        """Perform the task in this process."""
        from profiling.run.worker import perform  # imports torch, which the other executor does not need

        with compile_cache(fresh=self._fresh_cache) as variables, environment_variables(variables):
            perform(task, on_event)


class Isolated:
    """Performs each task in a fresh process, with its output in `cells/<name>.log`."""

    def __init__(self, run: Path, *, trace: bool, fresh_cache: bool, timeout: float) -> None:
        self._run, self._trace, self._fresh_cache, self._timeout = run, trace, fresh_cache, timeout

    def perform(self, task: Mapping[str, Any], name: str, on_event: OnEvent) -> str | None:
        """Perform the task in a fresh process, with a separate compile log if the run is traced."""
        files = self._run / "cells" / name
        files.parent.mkdir(exist_ok=True)
        timeout = self._timeout if "cell" in task else PROBE_SECONDS
        users_folder, cells_folder = os.environ.get(TORCH_TRACE), self._run / "torch_trace" / name
        trace = {TORCH_TRACE: str(cells_folder)} if self._trace and users_folder is None else {}
        logs_before = _compile_logs(users_folder)
        with compile_cache(fresh=self._fresh_cache) as variables:
            ending = run_isolated(
                task, files=files, timeout=timeout, on_event=on_event, environment={**trace, **variables}
            )
        if self._trace and users_folder is not None:  # torch wrote there; the run gets a copy
            cells_folder.mkdir(parents=True, exist_ok=True)
            for log in _compile_logs(users_folder) - logs_before:
                shutil.copy(log, cells_folder)
        return None if ending == Ending("exited", 0) else ending.describe(log_of(files))


@contextmanager
def compile_cache(*, fresh: bool) -> Iterator[dict[str, str]]:
    """Yield variables that give inductor and Triton an empty cache inside the block; none unless `fresh`."""
    if not fresh:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="inductor-", ignore_cleanup_errors=True) as cache:
        yield {"TORCHINDUCTOR_CACHE_DIR": cache, "TRITON_CACHE_DIR": str(Path(cache) / "triton")}


@contextmanager
def environment_variables(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables of this process, and restore the previous values on exit."""
    previous = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in previous.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _compile_logs(folder: str | None) -> set[Path]:
    return set() if folder is None else set(Path(folder).glob("*.log"))


@dataclass(frozen=True)
class Ending:
    """How a process ended: `exit_code` is negative for a signal, as in `subprocess`."""

    kind: Literal["exited", "timeout"]
    exit_code: int

    def describe(self, log: Path) -> str:
        """Return one line with the timeout, exit code or signal, and the last lines of the log."""
        if self.kind == "timeout":
            ending = "hung: killed at the cell_timeout"
        elif self.exit_code < 0:
            ending = f"killed by {_signal_name(-self.exit_code)}"
        else:
            ending = f"exited with code {self.exit_code}"
        lines = last_lines(log)
        return f"{ending}; last lines of {log.parent.name}/{log.name}: {' | '.join(lines)}" if lines else ending


def run_isolated(
    task: Mapping[str, Any], *, files: Path, timeout: float, on_event: OnEvent, environment: Mapping[str, str]
) -> Ending:
    """Run `task` in a fresh Python process, with `environment` added to the variables; its output is in `<files>.log`.

    `timeout` is in seconds. The process leads a process group, which is killed as a whole at the timeout or when the
    caller is interrupted.
    """
    task_file = files.with_name(f"{files.name}.json")
    task_file.write_text(json.dumps(task))
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as events, log_of(files).open("wb") as output:
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "profiling.run.worker", str(task_file), str(write_end)],
                stdin=subprocess.PIPE,  # never written: the worker ends when it closes
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(write_end,),
                start_new_session=True,
                env={**os.environ, **environment},
            )
        finally:
            os.close(write_end)
        try:
            for event in _events(events, process, time.monotonic() + timeout):
                on_event(event)
            return Ending("exited", process.wait(timeout=EXIT_SECONDS))
        except subprocess.TimeoutExpired:
            return Ending("timeout", _kill_group(process))
        finally:
            _kill_group(process)
            task_file.unlink(missing_ok=True)


def log_of(files: Path) -> Path:
    """Return the file with the output of the process."""
    return files.with_name(f"{files.name}.log")


def last_lines(log: Path) -> list[str]:
    """Return the last three lines of `log` that are not blank, at most 200 characters each; none if unreadable."""
    with contextlib.suppress(OSError):
        text = log.read_bytes()[-8192:].decode(errors="replace")
        return [" ".join(line.split())[:200] for line in text.splitlines() if line.strip()][-LAST_LINES:]
    return []


def _events(pipe: Any, process: subprocess.Popen[bytes], deadline: float) -> Iterator[Mapping[str, Any]]:
    """Yield events until the process has ended or closed the pipe.

    Both the process and the pipe are polled, because a forked child may hold the pipe open after the process has died.
    After its "end" event a process has `EXIT_SECONDS` to exit.

    Raises:
        subprocess.TimeoutExpired: the deadline (of `time.monotonic`) passed first.

    """
    os.set_blocking(pipe.fileno(), False)
    process_descriptor = os.pidfd_open(process.pid)
    buffer, ended = b"", False
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            selector.register(process_descriptor, selectors.EVENT_READ)
            while not ended:
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    raise subprocess.TimeoutExpired("cell", 0)
                ended = any(key.fileobj == process_descriptor for key, _ in ready)
                while chunk := _read(pipe.fileno()):
                    *lines, buffer = (buffer + chunk).split(b"\n")
                    for event in map(json.loads, lines):
                        if event.get("event") == "end":
                            deadline = min(deadline, time.monotonic() + EXIT_SECONDS)
                        yield event
                ended = ended or chunk == b""
    finally:
        os.close(process_descriptor)


def _read(descriptor: int) -> bytes | None:
    """Return the bytes waiting in the pipe, b"" if it is closed, None if there are none at the moment."""
    try:
        return os.read(descriptor, 1 << 20)
    except BlockingIOError:
        return None


def _kill_group(process: subprocess.Popen[bytes]) -> int:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
