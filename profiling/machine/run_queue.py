"""Cores of this process, how long its threads wait for one, and the other processes of its run."""

from __future__ import annotations

import contextlib
import os
import resource
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

#: Folder with a file `schedstat` per thread: nanoseconds run, nanoseconds waited in the run queue, times scheduled.
THREADS = Path("/proc/self/task")
#: Nanoseconds that a thread ran, and that it waited in the run queue, by thread.
Times = dict[str, tuple[int, int]]
#: A thread that ran for this share of a frame, or of a window, is one of its workers.
_WORKER_SHARE = 0.1
#: Stolen time is counted in ticks of so many seconds; the first of a window may have begun before it.
_STEAL_TICK = 0.01
#: Folder with the topology of each core.
CORES = Path("/sys/devices/system/cpu")
#: The variable that tells the process of a cell the id of the process that runs all cells.
RUN_PROCESS = "PROFILING_RUN_PROCESS"


@contextlib.contextmanager
def pinned(threads: int) -> Iterator[tuple[int, ...]]:
    """Pin all threads of this process to `threads` cores inside the block, and yield these cores.

    It pins nothing, and yields no cores, if there are not more cores than that, or the system does not allow
    pinning.
    """
    allowed = os.sched_getaffinity(0)
    cores = _apart(threads) if 0 < threads < len(allowed) else ()
    if not cores:
        yield ()
        return
    before = _affinities()
    for thread in before:
        _restrict(thread, cores)
    try:
        yield cores if os.sched_getaffinity(0) == set(cores) else ()
    finally:
        for thread in _affinities():  # one that has begun since then has that of the thread that started it: the cores
            _restrict(thread, before.get(thread, allowed))


def _affinities() -> dict[int, set[int]]:
    """Return the cores on which each thread of this process may run."""
    found = {}
    for thread in map(int, (each.name for each in THREADS.iterdir())) if THREADS.is_dir() else (0,):
        with contextlib.suppress(OSError):  # it has ended
            found[thread] = os.sched_getaffinity(thread)
    return found


def _restrict(thread: int, cores: Iterable[int]) -> None:
    with contextlib.suppress(OSError):  # it has ended, or the system does not allow it
        os.sched_setaffinity(thread, cores)


def _apart(number: int) -> tuple[int, ...]:
    """Return `number` of the CPUs: those of different physical cores first, and of these the last ones.

    The last ones, because interrupts are mostly handled on the first.
    """
    cores = physical_cores()
    first, second = [core[-1] for core in cores], [cpu for core in cores for cpu in core[:-1]]
    return tuple(sorted((sorted(first, reverse=True) + sorted(second, reverse=True))[:number]))


def physical_cores() -> list[tuple[int, ...]]:
    """Return the cores that this process may use, as tuples of their CPUs (hyperthreads), ordered by socket."""
    allowed = os.sched_getaffinity(0)
    cores: dict[tuple[int, int], list[int]] = {}
    for cpu in sorted(allowed):
        topology = CORES / f"cpu{cpu}" / "topology"
        key = (0, cpu)
        with contextlib.suppress(OSError, ValueError):
            socket, core = (int((topology / name).read_text()) for name in ("physical_package_id", "core_id"))
            key = (socket, core)
        cores.setdefault(key, []).append(cpu)
    return [tuple(cores[key]) for key in sorted(cores)]


class RunQueueMonitor:
    """Measures for how long this process waited for a CPU since the monitor was constructed, on the calling thread."""

    def __init__(self) -> None:
        self._cores, self._allowed = psutil.cpu_count() or 1, len(os.sched_getaffinity(0))
        self._stolen, self._threads, self._started = _stolen_seconds(), self._read(), time.perf_counter()

    def lost_share(self) -> float | None:
        """Return the share of the time (0 to 1) that others kept this process from a CPU; None where unknown.

        That is the longest run-queue wait of a thread that works (the calling one, and each that ran for a tenth of the
        time), since the others wait for it, plus the CPU time that other guests of the machine took. Threads that are
        more than the cores wait for each other: what the cores did not give to this process is the most that others
        took.
        """
        elapsed, now = time.perf_counter() - self._started, self._read()
        if not now or not self._threads or elapsed <= 0:
            return None
        since = _since(now, dict.fromkeys(now, (0, 0)) | self._threads)
        waits = _waits_ns(since, elapsed)
        cores = min(self._allowed, max(1, len(waits)))
        left = cores * elapsed - sum(ran for ran, _ in since.values()) / 1e9
        queued = min(max(waits, default=0) / 1e9, max(0.0, left) / cores)
        stolen = max(0.0, _stolen_seconds() - self._stolen - _STEAL_TICK) / self._cores
        return min(1.0, (queued + stolen) / elapsed)

    def _read(self) -> Times:
        with contextlib.closing(_Schedstats()) as files:
            return files.read()


class ThreadWaits:
    """Measures, from call to call, for how long a frame was delayed because its threads waited for a CPU.

    That is the longest wait of the calling thread and, with `workers`, of each thread that ran for a tenth of the time
    or more: a frame waits for its workers, which wait for a CPU at the same time.
    """

    def __init__(self, *, workers: bool) -> None:
        self._workers, self._files = workers, _Schedstats()
        self._totals: Times = {}
        self._who = resource.RUSAGE_SELF if workers else resource.RUSAGE_THREAD
        self._switches: dict[int, tuple[int, int]] = {}  # of all kinds, of `_who`; involuntary; by calling thread
        self._began = time.perf_counter()
        self._unchanged = (None if self.wait_ms() is None else 0.0), 0

    def read(self) -> tuple[float | None, int]:
        """Return `wait_ms()` and the involuntary context switches of the calling thread, since its last call.

        A thread that kept its CPU waited for none: where no context was switched, which takes half a microsecond to
        find out, no file is read.
        """
        caller, usage = threading.get_ident(), resource.getrusage(self._who)
        before, switches = self._switches.get(caller), usage.ru_nvcsw + usage.ru_nivcsw
        if before is not None and 0 < switches == before[0]:
            if self._workers:
                self._began = time.perf_counter()
            return self._unchanged
        involuntary = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw if self._workers else usage.ru_nivcsw
        self._switches[caller] = switches, involuntary
        return self.wait_ms(), 0 if before is None else involuntary - before[1]

    def wait_ms(self) -> float | None:
        """Return the wait since the last call in ms; None where the kernel does not count it."""
        began, self._began = self._began, time.perf_counter()
        now = self._files.read(None if self._workers else (str(threading.get_native_id()),))
        since = _since(now, now | self._totals)  # a thread that is seen for the first time may be an old one
        self._totals |= now
        waits = _waits_ns(since, self._began - began)
        return max(waits) / 1e6 if waits else None

    def close(self) -> None:
        """Close the files."""
        self._files.close()


class _Schedstats:
    """Reads how long threads of this process ran and waited, from files that stay open."""

    def __init__(self) -> None:
        self._files: dict[str, int] = {}

    def read(self, threads: Iterable[str] | None = None) -> Times:
        """Return the times of these threads, or of all, without those that have ended.

        The result is empty where the kernel does not count them.
        """
        times: Times = {}
        try:
            threads = [each.name for each in THREADS.iterdir()] if threads is None else threads
        except OSError:  # a container without /proc
            return times
        for thread in threads:
            try:
                if thread not in self._files:
                    self._files[thread] = os.open(THREADS / thread / "schedstat", os.O_RDONLY)
                ran, waited, _ = os.pread(self._files[thread], 96, 0).split()
                times[thread] = int(ran), int(waited)
            except (OSError, ValueError):  # it has ended, or the kernel counts nothing
                if thread in self._files:
                    os.close(self._files.pop(thread))
        return times

    def close(self) -> None:
        """Close the files."""
        while self._files:
            os.close(self._files.popitem()[1])


def _since(now: Times, before: Times) -> Times:
    """Return the times between two readings; where they went back, another thread has got the number."""
    return {
        thread: (max(0, ran - before[thread][0]), max(0, waited - before[thread][1]))
        for thread, (ran, waited) in now.items()
    }


def _waits_ns(since: Times, seconds: float) -> list[int]:
    """Return how long the calling thread, and each that ran for a tenth of so many seconds, waited in them."""
    own, least = str(threading.get_native_id()), _WORKER_SHARE * 1e9 * seconds
    return [waited for thread, (ran, waited) in since.items() if thread == own or ran >= least]


def _stolen_seconds() -> float:
    """Return the CPU time in seconds that other guests of this machine took, over all cores; 0 where unknown."""
    try:
        return getattr(psutil.cpu_times(), "steal", 0.0)
    except OSError:  # a container without /proc
        return 0.0


def processes_of_run() -> frozenset[int]:
    """Return this process and, where it is the process of a cell, those of the other cells of its run.

    The process of a cell leads a session of its own, as its siblings do; fork servers may stand between it and the run.
    """
    own, run = os.getpid(), os.environ.get(RUN_PROCESS, "")
    if os.getsid(own) != own or not run.isdecimal():
        return frozenset({own})
    siblings = [own]
    with contextlib.suppress(psutil.Error):
        for each in psutil.Process(int(run)).children(recursive=True):
            with contextlib.suppress(OSError):  # it has ended
                siblings += [each.pid] if os.getsid(each.pid) == each.pid else []
    return frozenset(siblings)
