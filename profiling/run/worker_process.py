"""The process of a task, as its parent sees it: started or forked, its events, its timeouts, and how it ended.

A cell that is timed in turns has a `Session`, a generator that yields whenever the cell waits for its turn. Several
cells can so be alive while one is active.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Literal

from profiling.metrics.sampling import Turn
from profiling.run.events import Emit, Event, EventReader, Phase, Waiting, write_turn
from profiling.run.fork_server import ForkedProcess, ForkServer
from profiling.run.process_groups import AnyProcess, guarded_group, kill_group

#: The phase of a cell to which `prepare_timeout` applies.
PREPARE = "prepare"
#: Seconds that a process may take to exit after it has sent its result (CUDA teardown, worker pools).
EXIT_SECONDS = 30.0
#: Longest wait of a selector, whose API takes no more than some weeks, in seconds.
LONGEST_WAIT = 3600.0
#: Most bytes that are read once the process has ended: the largest capacity of a pipe.
LAST_BYTES = 2**20
LAST_LINES = 3


@dataclass(frozen=True)
class Performed:
    """How the process of a task ended.

    `death` says in words how it died; None: it ended normally, after its result. `notes` are remarks for the record.
    """

    death: str | None = None
    lost_events: int = 0
    notes: tuple[str, ...] = ()
    killed: bool = False  # by SIGKILL from outside, as the kernel does where the host runs out of memory


#: A task in progress: it yields when it waits for its turn, is sent that turn, and returns how its process ended.
#: Closing it kills the process.
Session = Generator[Waiting, Turn, Performed]


@dataclass(frozen=True)
class Ending:
    """How a process ended: `exit_code` is negative for a signal, as in `subprocess`.

    It was killed at the `timeout` or the `prepare_timeout`, or because it `lingered` after its result, or `exited`
    by itself.
    """

    kind: Literal["exited", "timeout", "prepare_timeout", "lingered"]
    exit_code: int

    def describe(self, log: Path) -> str:
        """Return one line with the timeout, exit code or signal, and the last lines of the log."""
        if self.kind == "timeout":
            ending = "hung: killed at the cell_timeout"
        elif self.kind == "prepare_timeout":
            ending = "preparing the variant took longer than the prepare_timeout: killed"
        elif self.kind == "lingered":
            ending = f"did not exit within {EXIT_SECONDS:g} s and was killed"
        elif self.exit_code < 0:
            ending = f"killed by {_signal_name(-self.exit_code)}"
        elif self.exit_code == 0:
            ending = "exited with code 0 before its result arrived"
        else:
            ending = f"exited with code {self.exit_code}"
        lines = last_lines(log)
        return f"{ending}; last lines of {log.parent.name}/{log.name}: {' | '.join(lines)}" if lines else ending


def run_isolated(
    task: Mapping[str, Any],
    files: Path,
    timeout: float,
    on_event: Emit,
    environment: Mapping[str, str],
    own: set[int],
    *,
    turns: bool,
    server: ForkServer | None = None,
    modules: Collection[str] = (),
    prepare_timeout: float | None = None,
) -> Session:
    """Run `task` in a process with the environment `environment`, with its output in `<files>.log`.

    Without a `server` that forks it, after importing `modules`, the process is fresh. `timeout` and `prepare_timeout`
    (for the phase in which the variant is prepared) are in seconds.
    The process leads a process group, which is killed as a whole when the process
    has ended, at a timeout, when the session is closed, and when this process is interrupted or dies, whatever kills
    it. While it lives, `own` holds the ids of the processes that were started here.

    Raises:
        OSError: a file of the cell, or the process, cannot be made.

    """
    task_file = files.with_name(f"{files.name}.json")
    reader = EventReader()
    try:
        task_file.write_text(json.dumps(task))
        with log_of(files).open("wb") as output:
            ending = yield from _run_worker(
                task_file,
                output,
                (timeout, prepare_timeout),
                reader,
                on_event,
                environment,
                own,
                turns,
                server,
                modules,
            )
    finally:
        task_file.unlink(missing_ok=True)
    done = ending == Ending("exited", 0) and reader.has_result
    killed = ending == Ending("exited", -signal.SIGKILL)
    return Performed(None if done else ending.describe(log_of(files)), reader.lost, reader.notes, killed)


def _run_worker(
    task_file: Path,
    output: Any,
    timeouts: tuple[float, float | None],
    reader: EventReader,
    on_event: Emit,
    environment: Mapping[str, str],
    own: set[int],
    turns: bool,
    server: ForkServer | None,
    modules: Collection[str],
) -> Generator[Waiting, Turn, Ending]:
    (read_end, write_end), (turn_read, turn_write) = os.pipe(), os.pipe()
    with os.fdopen(read_end, "rb") as pipe, os.fdopen(turn_write, "wb"):
        descriptors = (write_end, turn_read) if turns else (write_end,)
        try:
            process = None
            if server is not None:
                process = server.start(task_file, output.fileno(), descriptors, environment, modules)
            if process is None:
                process = _started(task_file, output, descriptors, environment)
        finally:
            os.close(write_end)
            os.close(turn_read)
        with guarded_group(process.pid, own):
            try:
                for event in _events(pipe, process, timeouts, reader):
                    if isinstance(event, Waiting):
                        turn = yield event
                        with contextlib.suppress(OSError):  # it has died while it waited, which the next event tells
                            write_turn(turn_write, turn)
                    else:
                        on_event(event)
                return Ending("exited", process.wait())
            except subprocess.TimeoutExpired as error:
                kind = "prepare_timeout" if error.cmd == PREPARE else "timeout"
                return Ending("lingered" if reader.has_result else kind, kill_group(process))
            finally:
                kill_group(process)


def _started(
    task_file: Path, output: Any, descriptors: Sequence[int], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a fresh process for the task."""
    events, *turns = map(str, descriptors)
    return subprocess.Popen(
        [sys.executable, "-m", "profiling.run.worker", str(task_file), events, str(os.getpid()), *turns],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        pass_fds=descriptors,
        start_new_session=True,
        env=environment,
    )


def log_of(files: Path) -> Path:
    """Return the file with the output of the process."""
    return files.with_name(f"{files.name}.log")


def last_lines(log: Path) -> list[str]:
    """Return the last three lines of `log` that are not blank, at most 200 characters each; none if unreadable."""
    with contextlib.suppress(OSError):
        text = log.read_bytes()[-8192:].decode(errors="replace")
        return [" ".join(line.split())[:200] for line in text.splitlines() if line.strip()][-LAST_LINES:]
    return []


def _events(
    pipe: Any, process: AnyProcess, timeouts: tuple[float, float | None], reader: EventReader
) -> Iterator[Event]:
    """Yield events until the process has ended, whoever else holds the pipe open.

    After its result a process has `EXIT_SECONDS` to exit.

    Raises:
        subprocess.TimeoutExpired: the process has not ended after the first of `timeouts` in seconds, not counting
            waits for its turn; or its phase `PREPARE` has not ended after the second.

    """
    os.set_blocking(pipe.fileno(), False)
    timeout, prepare_timeout = timeouts
    deadline, has_result = time.monotonic() + timeout, False
    prepared_by = inf  # the end of the time for the phase that is under way

    def yielded(chunk: bytes) -> Iterator[Event]:
        nonlocal deadline, prepared_by
        for event in reader.feed(chunk):
            since = time.monotonic()
            if isinstance(event, Phase):
                prepared_by = inf if prepare_timeout is None or event.phase != PREPARE else since + prepare_timeout
            yield event
            if isinstance(event, Waiting):
                deadline += time.monotonic() - since

    process_descriptor = os.dup(process.fileno()) if isinstance(process, ForkedProcess) else os.pidfd_open(process.pid)
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            selector.register(process_descriptor, selectors.EVENT_READ)
            while True:
                left = min(deadline, prepared_by) - time.monotonic()
                if left <= 0:
                    late = PREPARE if prepared_by < deadline else "cell"
                    raise subprocess.TimeoutExpired(late, timeout)
                ready = [key.fileobj for key, _ in selector.select(min(left, LONGEST_WAIT))]
                if process_descriptor in ready:
                    break
                if ready:
                    chunk = _read(pipe.fileno())
                    yield from yielded(chunk or b"")
                    if chunk == b"":  # the cell's code has closed its end
                        selector.unregister(pipe)
                if reader.has_result and not has_result:
                    has_result, deadline = True, min(deadline, time.monotonic() + EXIT_SECONDS)
        rest = LAST_BYTES
        while rest > 0 and (chunk := _read(pipe.fileno())):
            yield from reader.feed(chunk)
            rest -= len(chunk)
        reader.close()
    finally:
        os.close(process_descriptor)


def _read(descriptor: int) -> bytes | None:
    """Return the bytes that wait in the pipe, b"" if it is closed, None if there are none at the moment."""
    try:
        return os.read(descriptor, 1 << 20)
    except BlockingIOError:
        return None


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
