"""How much of the processor's time others took while something was measured on it.

A wait in the system's queue is another program's doing, a stolen tick another guest's on the same machine. Neither
shows in a clock, and both make a device look slower than it is.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil

#: One line for each thread: nanoseconds run, nanoseconds waited in the queue, times scheduled; see proc(5).
_QUEUES = Path("/proc/self/task")


class ProcessorWatch:
    """Looks at the processor from now on, on behalf of `threads` threads that want to run all the time.

    Where those are more than the cores that the process may use, they wait for each other, which tells nothing of
    others: only stolen time counts then.
    """

    def __init__(self, threads: int) -> None:
        self._threads, self._cores = threads, psutil.cpu_count() or 1
        self._crowded = threads > len(os.sched_getaffinity(0))
        self._started, self._waited, self._stolen = time.perf_counter(), _waited_seconds(), _stolen_seconds()

    def lost_share(self) -> float | None:
        """Return which share of the threads' time others had so far; None where the system does not tell."""
        now, waited, stolen = time.perf_counter(), _waited_seconds(), _stolen_seconds()
        if waited is None or self._waited is None or now <= self._started:
            return None
        queued = 0.0 if self._crowded else (waited - self._waited) / self._threads
        return min(1.0, max(0.0, queued + (stolen - self._stolen) / self._cores) / (now - self._started))


def _waited_seconds() -> float | None:
    """Return how long this process's threads have waited for a processor; None where the system does not count it."""
    waits = []
    try:
        for thread in _QUEUES.iterdir():
            try:
                waits.append(int((thread / "schedstat").read_text().split()[1]))
            except (FileNotFoundError, ProcessLookupError):  # it ended since it was listed
                continue
    except (OSError, ValueError, IndexError):
        return None
    return sum(waits) / 1e9 if waits else None


def _stolen_seconds() -> float:
    """Return how long other guests have held the processors of this machine, all of them together."""
    return getattr(psutil.cpu_times(), "steal", 0.0)
