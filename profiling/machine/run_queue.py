"""Time that threads of this process spend waiting for a CPU, and CPU time that other guests of the machine take."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import psutil

#: Folder with a file `schedstat` per thread: nanoseconds run, nanoseconds waited in the run queue, times scheduled.
_THREADS = Path("/proc/self/task")
#: A thread that ran for this share of a frame is one of its workers.
_WORKER_SHARE = 0.1


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


class ThreadWaits:
    """Measures, from call to call, for how long a frame was delayed because its threads waited for a CPU.

    That is the longest wait of the calling thread and, with `workers`, of each thread that ran for a tenth of the time
    or more: a frame waits for its workers, which wait for a CPU at the same time.
    """

    def __init__(self, *, workers: bool) -> None:
        self._workers = workers
        self._files: dict[str, int] = {}
        self._totals: dict[str, tuple[int, int]] = {}  # ns run and ns waited so far, by thread
        self.wait_ms()

    def wait_ms(self) -> float | None:
        """Return the wait since the last call in ms; None where the kernel does not count it."""
        started = getattr(self, "_read", time.perf_counter())
        self._read = time.perf_counter()
        own = str(threading.get_native_id())
        try:
            threads = [thread.name for thread in _THREADS.iterdir()] if self._workers else [own]
        except OSError:
            return None
        waits = []
        for thread in threads:
            totals = self._schedstat(thread)
            if totals is None:
                continue
            ran, waited = (now - before for now, before in zip(totals, self._totals.get(thread, totals), strict=True))
            self._totals[thread] = totals
            if thread == own or ran >= _WORKER_SHARE * 1e9 * (self._read - started):
                waits.append(waited / 1e6)
        return max(waits, default=None)

    def close(self) -> None:
        """Close the files."""
        while self._files:
            os.close(self._files.popitem()[1])

    def _schedstat(self, thread: str) -> tuple[int, int] | None:
        """Return (ns run, ns waited in the run queue) of a thread; None where that is unknown, or it has ended."""
        try:
            if thread not in self._files:
                self._files[thread] = os.open(_THREADS / thread / "schedstat", os.O_RDONLY)
            ran, waited, _ = os.pread(self._files[thread], 96, 0).split()
        except (OSError, ValueError):
            if thread in self._files:
                os.close(self._files.pop(thread))
            return None
        return int(ran), int(waited)


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
