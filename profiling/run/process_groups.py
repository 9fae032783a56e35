"""The processes of a cell: its process group is killed with it; processes that left the group are found and named."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import psutil

#: Seconds for a cell's processes to end by themselves, as the compiler's workers do.
ORPHAN_SECONDS = 5.0
_PARENT_DEATH_SIGNAL, _SUBREAPER = 1, 36  # PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER of prctl(2)


def end_with(parent: int) -> None:
    """Let the kernel kill this process when the process `parent` dies, even while it holds the GIL."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before that
        os._exit(1)


class AnyProcess(Protocol):
    """A process started here: by `subprocess`, or as a fork of `profiling.run.fork_server`."""

    @property
    def pid(self) -> int:
        """Its id, which is also that of its group."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code, negative for a signal."""
        ...


def run_guarded(
    command: Sequence[str], log: Path, timeout: float, environment: Mapping[str, str], own: set[int]
) -> int | None:
    """Run a command in a process group of its own; return its exit code, or None if it was killed at the timeout.

    Its output goes to the file `log`. The group outlives neither this call nor this process.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
        )
    with guarded_group(process.pid, own):
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        finally:
            kill_group(process)


@contextmanager
def guarded_group(group: int, own: set[int]) -> Iterator[None]:
    """Kill the process group even if this process is killed inside the block (SIGKILL).

    A shell does that when its standard input closes, whose other end only this process holds. Inside the block `own`
    has both process ids.
    """
    own.add(group)
    command = ["/bin/sh", "-c", f"read -r line; kill -s KILL -- -{group}"]
    try:
        guard = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
    except OSError:  # no shell: only the worker itself then dies with this process
        try:
            yield
        finally:
            own.discard(group)
        return
    own.add(guard.pid)
    try:
        yield
    finally:
        guard.kill()
        guard.communicate()
        own -= {group, guard.pid}


class Orphans:
    """Finds processes of a cell that still run after its process group was killed.

    Without Linux's prctl or /proc it finds none.
    """

    def __init__(self) -> None:
        self.own = {child.pid for child in _children()}  # processes that are none of a cell's
        self._named: set[int] = set()
        self._blocks = 0

    @contextmanager
    def adopted(self) -> Iterator[None]:
        """Inside the block, adopt processes whose parent dies; blocks may overlap."""
        _set_subreaper(True)
        self._blocks += 1
        try:
            yield
        finally:
            self._blocks -= 1
            if not self._blocks:
                _set_subreaper(False)

    def notes(self) -> tuple[str, ...]:
        """Return one line that names the processes still running after `ORPHAN_SECONDS`, each only once."""
        deadline = time.monotonic() + ORPHAN_SECONDS
        while running := [child for child in _children() if not self._has_ended(child)]:
            if time.monotonic() >= deadline:
                self._named |= {child.pid for child in running}
                names = ", ".join(f"{_name(child)} (process {child.pid})" for child in running)
                return (f"the cell left processes running, which may disturb later cells: {names}",)
            time.sleep(0.05)
        return ()

    def _has_ended(self, child: psutil.Process) -> bool:
        """Return whether an adopted process has ended, and reap it; True if it does not belong to this cell."""
        if child.pid in self.own:
            return True
        with contextlib.suppress(psutil.Error, OSError):
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


def _name(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return process.name()
    return "unknown"


def kill_group(process: AnyProcess) -> int:
    """Kill the group of a process that leads one; return the exit code of the process."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()
