"""Child processes: the one place where they are started, guarded and ended, and what they leave behind is found.

Each leads a process group of its own, which is killed as a whole when the child has ended, at a timeout, and when this
process is interrupted or dies, whatever kills it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psutil

#: Seconds for a cell's processes to end by themselves, as the compiler's workers do.
ORPHAN_SECONDS = 5.0
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)
#: Ids of the live processes that were started here; other children of this process were left behind by a cell.
_STARTED: set[int] = set()


class Child:
    """A process that leads a group: started here, or forked by `profiling.run.fork_server`.

    The descriptor `ended` becomes readable when it has ended; `reap` then returns its exit code, negative for a signal,
    and the most bytes of memory that it held, if they are known.
    """

    def __init__(self, pid: int, ended: int, reap: Callable[[], tuple[int, int | None]]) -> None:
        self.pid, self.peak_bytes = pid, None
        self._ended, self._reap, self._exit_code = ended, reap, None

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when it has ended."""
        return self._ended

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code, negative for a signal.

        Raises:
            subprocess.TimeoutExpired: it has not ended after `timeout` seconds.

        """
        if self._exit_code is None:
            if not select.select([self._ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            self._exit_code, self.peak_bytes = self._reap()
            os.close(self._ended)
        return self._exit_code


@contextmanager
def started(command: Sequence[str], output: Any, **options: Any) -> Iterator[Child]:
    """Start a command that leads a process group, with its output in the file `output`; kill the group at the end.

    `options` are those of `subprocess.Popen`.
    """
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, **options
    )

    def reap() -> tuple[int, int]:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        return process.returncode, 1024 * usage.ru_maxrss

    child = Child(process.pid, os.pidfd_open(process.pid), reap)
    with guarded(child):
        yield child


@contextmanager
def guarded(child: Child) -> Iterator[None]:
    """Kill the group of a child at the end of the block, even if this process is killed inside of it (SIGKILL).

    A shell does that when its standard input closes, whose other end only this process holds.
    """
    _STARTED.add(child.pid)
    command = ["/bin/sh", "-c", f"read -r line; kill -s KILL -- -{child.pid}"]
    guard = None
    with contextlib.suppress(OSError):  # no shell: the child then fails at its next event
        guard = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        _STARTED.add(guard.pid)
    try:
        yield
    finally:
        kill(child)
        _STARTED.discard(child.pid)
        if guard is not None:
            guard.kill()
            guard.communicate()
            _STARTED.discard(guard.pid)


def kill(child: Child) -> int:
    """Kill the group of a child; return the exit code of the child."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    return child.wait()


def end(children: Sequence[Child], seconds: float) -> None:
    """End runs as Ctrl-C does, so that they write their records; kill what still runs after so many seconds."""
    for child in children:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(0.0)
            continue
        os.kill(child.pid, signal.SIGTERM)
    for child in children:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(seconds)
        kill(child)


def signal_name(number: int) -> str:
    """Return `signal 9 (SIGKILL)`."""
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


class Orphans:
    """Finds processes of a cell that still run after its process group was killed.

    Without Linux's prctl or /proc it finds none.
    """

    def __init__(self) -> None:
        self._before = {child.pid for child in _children()}  # which are none of a cell's
        self._named: set[int] = set()

    @contextmanager
    def adopted(self) -> Iterator[None]:
        """Inside the block, be the parent of processes whose own parent dies."""
        _set_subreaper(True)
        try:
            yield
        finally:
            _set_subreaper(False)

    def notes(self) -> tuple[str, ...]:
        """Return one line that names the processes still running after `ORPHAN_SECONDS`, each only once."""
        deadline = time.monotonic() + ORPHAN_SECONDS
        while running := [child for child in _children() if not self._has_ended(child)]:
            if time.monotonic() >= deadline:
                self._named |= {child.pid for child in running}
                return (f"the cell left processes running, which may disturb later cells: {_names(running)}",)
            time.sleep(0.05)
        return ()

    def left(self) -> str:
        """Return the names of processes that cells left behind, and that still run."""
        named = (child for child in _children() if child.pid in self._named)
        return _names(child for child in named if child.status() != psutil.STATUS_ZOMBIE)

    def _has_ended(self, child: psutil.Process) -> bool:
        """Return whether an adopted process has ended, and reap it; True if it does not belong to this cell.

        One in the group of another cell that is still alive will be killed with that.
        """
        if child.pid in self._before | _STARTED:
            return True
        with contextlib.suppress(psutil.Error, OSError):
            if os.getpgid(child.pid) in _STARTED:
                return True
            if child.status() != psutil.STATUS_ZOMBIE:
                return child.pid in self._named
            os.waitpid(child.pid, os.WNOHANG)
        return True


def _set_subreaper(on: bool) -> None:
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_SUBREAPER, int(on), 0, 0, 0)


def _children() -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error, OSError):
        return psutil.Process().children()
    return []


def _names(processes: Iterable[psutil.Process]) -> str:
    names: list[str] = []
    for each in processes:
        name = "unknown"
        with contextlib.suppress(psutil.Error):
            name = each.name()
        names.append(f"{name} (process {each.pid})")
    return ", ".join(names)
