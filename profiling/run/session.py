"""A task in progress in a child process: its process is started, its events are read, and it is given its turns.

Such a task is a `Session`, a generator that yields whenever there is nothing to read, so that several can be active,
and whenever a cell waits for its turn, so that several can be alive while one is active.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import psutil

from profiling.metrics.sampling import Turn
from profiling.run.child import Child, guarded, kill, signal_name, started
from profiling.run.events import Emit, EventReader, Phase, Waiting
from profiling.run.task import Task, write_task

if TYPE_CHECKING:
    from profiling.run.fork_server import ForkServer

#: Most processes that prepare at the same time.
_MOST_CONCURRENT = 8
#: The phase of a cell to which `prepare_timeout` applies.
PREPARE = "prepare"
#: Seconds that a process may take to exit after it has sent its result (CUDA teardown, worker pools).
EXIT_SECONDS = 30.0
#: Longest wait for a descriptor, in seconds: a limit may be infinite, which select does not take.
LONGEST_WAIT = 3600.0
#: Most bytes that are read at a time: the largest capacity of a pipe, which is read once when its process has ended.
_PIPE_BYTES = 2**20
LAST_LINES = 3
#: Bytes at the end of a log in which they are looked for, and lines of the stacks of other threads.
_TAIL, _OF_STACK = 65536, re.compile(r"Thread 0x|\s+File \"")
#: The signal that makes a worker write the stacks of its threads into its log, and the seconds that it has for that.
STACKS, _STACK_SECONDS = signal.SIGUSR1, 0.5
#: Share of the machine's memory (0 to 1) from which a killed process is likely to have been killed for it.
_MOST_MEMORY = 0.5


@dataclass(frozen=True)
class ProcessEnd:
    """How the process of a task ended.

    `death` says in words how it died; None: it ended normally, after its result. `notes` are remarks for the record.
    """

    death: str | None = None
    lost_events: int = 0
    notes: tuple[str, ...] = ()
    killed: bool = False  # by SIGKILL from outside, as the kernel does where the host runs out of memory


class NotMeasuredError(Exception):
    """A process that measures starts or counters has measured nothing; the message says why, in one line."""


@dataclass(frozen=True)
class Pending:
    """What a session waits for: one of the `descriptors` becomes readable, for `seconds` at most."""

    descriptors: tuple[int, ...]
    seconds: float


#: A task in progress. It yields `Pending` (resume it when a descriptor is readable) or `Waiting` (send it the cell's
#: next turn), and returns how its process ended. Closing it kills the process.
Session = Generator[Pending | Waiting, Turn | None, ProcessEnd]


def to_its_end(session: Session) -> ProcessEnd:
    """Run a session that takes no turns to its end, and return how its process ended."""
    with contextlib.closing(session):
        try:
            while isinstance(state := next(session), Pending):
                wait([state])
        except StopIteration as end:
            return end.value
    return ProcessEnd("asked for a turn, although it takes none")


def wait(pending: Sequence[Pending]) -> None:
    """Wait until one of several sessions can be resumed."""
    soonest = _any_of(pending)
    select.select(soonest.descriptors, [], [], soonest.seconds)


def most_processes() -> int:
    """Return how many processes may prepare at the same time: each compiles with several threads."""
    return max(1, min(_MOST_CONCURRENT, len(os.sched_getaffinity(0)) // 2))


def _any_of(pending: Sequence[Pending]) -> Pending:
    descriptors = {each for one in pending for each in one.descriptors}
    return Pending(tuple(descriptors), min((one.seconds for one in pending), default=0.0))


def side_by_side(sessions: Iterable[Generator[Pending | Waiting, Any, Any]]) -> Generator[Pending, Any, None]:
    """Resume sessions that take no turns until all have ended; it is one itself."""
    while states := {each: state for each in sessions if isinstance(state := next(each, None), Pending)}:
        yield _any_of(tuple(states.values()))
        sessions = tuple(states)


@dataclass(frozen=True)
class Limits:
    """How long a task may be active, and its phase `PREPARE` of that, in seconds."""

    seconds: float
    prepare_seconds: float | None = None


def open_session(
    task: Task,
    files: Path,
    limits: Limits,
    on_event: Emit,
    environment: Mapping[str, str],
    *,
    turns: bool = False,
    server: ForkServer | None = None,
    modules: Sequence[str] = (),
    ahead: Sequence[str] = (),
) -> Session:
    """Perform a task in a process with the variables `environment`, with its output in `<files>.log`.

    With a `server` the process is a fork, made after the server has imported `modules`; the server imports those
    `ahead` after that, for later tasks. Without one it is fresh. It is not active while it waits for a turn.

    Raises:
        OSError: a file of the cell, or the process, cannot be made.

    """
    task_file, log = files.with_name(f"{files.name}.json"), files.with_name(f"{files.name}.log")
    reader = EventReader()
    try:
        write_task(task, task_file)
        (read_end, write_end), (turn_read, turn_write) = os.pipe(), os.pipe()
        with contextlib.ExitStack() as stack:
            pipe = stack.enter_context(os.fdopen(read_end, "rb"))
            stack.enter_context(os.fdopen(turn_write, "wb"))
            descriptors = (write_end, turn_read) if turns else (write_end,)
            with os.fdopen(write_end, "wb"), os.fdopen(turn_read, "rb"), log.open("wb") as output:
                arguments = task_file, output.fileno(), descriptors, environment, modules
                child = None if server is None else server.start(*arguments, ahead)
                if child is not None:
                    stack.enter_context(guarded(child))
                else:
                    command = worker_command(task_file, descriptors)
                    child = stack.enter_context(started(command, output, pass_fds=descriptors, env=environment))
            overdue = yield from _attended(child, pipe, turn_write, limits, reader, on_event)
    finally:
        task_file.unlink(missing_ok=True)
    code = child.wait() if overdue is None else None
    death = None if code == 0 and reader.has_result else _death(child, overdue, log)
    return ProcessEnd(death, reader.lost, reader.notes, killed=code == -signal.SIGKILL)


def worker_command(task_file: Path, descriptors: Sequence[int] = ()) -> list[str]:
    """Return the command of a fresh process that performs the task, with the descriptors of its events and turns."""
    return [sys.executable, "-m", "profiling.run.worker", str(task_file), *map(str, descriptors)]


def _attended(
    child: Child, pipe: Any, turn_write: int, limits: Limits, reader: EventReader, on_event: Emit
) -> Generator[Pending | Waiting, Turn | None, str | None]:
    """Read a child process's events and give it its turns, until it ends or exceeds a limit.

    A process that the child started and that keeps the pipe open does not delay the end. After its result the child has
    `EXIT_SECONDS` to exit. Return in words at which limit it was killed; None: it ended by itself.
    """
    os.set_blocking(pipe.fileno(), False)
    deadline, phase = time.monotonic() + limits.seconds, None
    prepared_by = inf  # the end of the time for the phase that is under way
    descriptors = [child.fileno(), pipe.fileno()]

    def relayed(chunk: bytes) -> Generator[Waiting, Turn | None, None]:
        nonlocal deadline, prepared_by, phase
        for event in reader.feed(chunk):
            since = time.monotonic()
            if isinstance(event, Waiting):
                turn = yield event
                assert turn is not None
                with contextlib.suppress(OSError):  # it has died while it waited; how it ended says so
                    os.write(turn_write, msgspec.json.encode(turn) + b"\n")
                deadline += time.monotonic() - since
                continue
            if isinstance(event, Phase):
                phase, most = event.phase, limits.prepare_seconds
                prepared_by = since + most if most is not None and phase == PREPARE else inf
            on_event(event)

    while (left := min(deadline, prepared_by) - time.monotonic()) > 0:
        ready = select.select(descriptors, [], [], 0)[0]
        if not ready:
            yield Pending(tuple(descriptors), min(left, LONGEST_WAIT))
        elif child.fileno() in ready:
            yield from relayed(_read(pipe.fileno()) or b"")
            reader.close()
            return None
        else:
            chunk = _read(pipe.fileno())
            yield from relayed(chunk or b"")
            if chunk == b"":  # the cell's code has closed its end
                descriptors.remove(pipe.fileno())
            if reader.has_result:
                deadline = min(deadline, time.monotonic() + EXIT_SECONDS)
    with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.kill(child.pid, STACKS)
        child.wait(_STACK_SECONDS)
    kill(child)
    if reader.has_result:
        return f"did not exit within {EXIT_SECONDS:g} s and was killed"
    if prepared_by < deadline:
        return f"preparing the variant took longer than prepare_timeout={limits.prepare_seconds:g} s: killed"
    in_phase = f", in the phase {phase}" if phase else ""
    return f"took longer than cell_timeout={limits.seconds:g} s and was killed{in_phase}"


def _read(descriptor: int) -> bytes | None:
    """Return the bytes that wait in the pipe, b"" if it is closed, None if there are none at the moment."""
    try:
        return os.read(descriptor, _PIPE_BYTES)
    except BlockingIOError:
        return None


def _death(child: Child, overdue: str | None, log: Path) -> str:
    """Return one line: the limit, exit code or signal that ended a process, and the last lines of its log.

    `overdue` is the limit at which it was killed; None: it ended by itself.
    """
    code, (at, lines) = child.wait(), last_words(log)
    if overdue is not None:
        death = f"{overdue} at {at}" if at else overdue
    elif code < 0:
        death = f"was killed by {signal_name(-code)}{_held(child) if code == -signal.SIGKILL else ''}"
    elif code == 0:
        death = "exited with code 0 before its result arrived"
    else:
        death = f"exited with code {code}"
    return f"{death}; last lines of {log.parent.name}/{log.name}: {' | '.join(lines)}" if lines else death


def _held(child: Child) -> str:
    """Say how much memory a killed process held: the kernel may have killed it for lack of memory."""
    with contextlib.suppress(OSError):  # a container without /proc
        if child.peak_bytes is not None:
            total = psutil.virtual_memory().total
            held = f"its memory peaked at {child.peak_bytes / 1e9:.1f} GB, on a machine of {total / 1e9:.1f} GB"
            likely = child.peak_bytes >= _MOST_MEMORY * total
            return f", as the kernel does where memory runs out: {held}" if likely else f"; {held}"
    return ""


def last_words(log: Path) -> tuple[str, list[str]]:
    """Return where the process of a log was when it was asked for its stacks, and the last three lines before them.

    Empty where there are none; a line has at most 200 characters.
    """
    try:
        text = log.read_bytes()[-_TAIL:].decode(errors="replace")
    except OSError:
        return "", []
    before, asked, stack = text.rpartition("Current thread ")
    frames = [line.strip() for line in stack.splitlines()[1:] if line.lstrip().startswith("File ")] if asked else []
    lines = (before if asked else text).splitlines()
    kept = [" ".join(line.split())[:200] for line in lines if line.strip() and not _OF_STACK.match(line)]
    return frames[0][:200] if frames else "", kept[-LAST_LINES:]
