"""Time that threads of this process spend waiting for a CPU, and CPU time that other guests of the machine take."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil

#: Folder with a file `schedstat` per thread: nanoseconds run, nanoseconds waited in the run queue, times scheduled.
_THREADS = Path("/proc/self/task")


class RunQueueMonitor:
    """Measures the run-queue wait of this process since the monitor was constructed.

    `threads` is the number of threads that compute all the time. If the process has fewer cores than that, the threads
    wait for each other, so only the CPU time taken by other guests of the machine counts as lost.
    """

    def __init__(self, threads: int = 1) -> None:
        self._threads, self._cores = threads, psutil.cpu_count() or 1
        self._oversubscribed = threads > len(os.sched_getaffinity(0))
        self._started, self._waited, self._stolen = time.perf_counter(), _waited_seconds(), _stolen_seconds()

    def wait_ms(self) -> float | None:
        """Return the milliseconds that all threads together waited for a CPU; None if the kernel does not count it."""
        waited = _waited_seconds()
        return None if waited is None or self._waited is None else max(0.0, 1e3 * (waited - self._waited))

    def lost_share(self) -> float | None:
        """Return the share of the threads' time (0 to 1) that other processes and guests took; None where unknown."""
        elapsed, wait_ms = time.perf_counter() - self._started, self.wait_ms()
        if wait_ms is None or elapsed <= 0:
            return None
        queued = 0.0 if self._oversubscribed else wait_ms / 1e3 / self._threads
        return min(1.0, max(0.0, queued + (_stolen_seconds() - self._stolen) / self._cores) / elapsed)


def _waited_seconds() -> float | None:
    """Return the run-queue wait of all threads in seconds; None where the kernel does not count it."""
    waits = []
    try:
        for thread in _THREADS.iterdir():
            try:
                waits.append(int((thread / "schedstat").read_text().split()[1]))
            except (FileNotFoundError, ProcessLookupError):  # the thread has ended since it was listed
                continue
    except (OSError, ValueError, IndexError):
        return None
    return sum(waits) / 1e9 if waits else None


def _stolen_seconds() -> float:
    """Return the CPU time in seconds that other guests of this machine took, over all cores; 0 where unknown."""
    try:
        return getattr(psutil.cpu_times(), "steal", 0.0)
    except OSError:  # a container without /proc
        return 0.0
