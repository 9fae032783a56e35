"""Devices and cores of this host, handed out to the jobs of sweeps so that no two timed runs share either.

Each GPU and each physical core has a lock file. A job holds the locks of its place while it runs, whichever sweep it
belongs to; the system releases them when the job's processes are gone. Without torch: a job's device must be set before
torch is imported.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pynvml

from profiling.machine.run_queue import physical_cores

#: Seconds between two looks for a free place, and of waiting after which that is said.
POLL_SECONDS, SAID_SECONDS = 0.2, 5.0


@dataclass(frozen=True)
class Place:
    """What a job holds alone: GPUs (as in CUDA_VISIBLE_DEVICES) and CPUs; no CPUs: it may use all of this process."""

    gpus: tuple[str, ...] = ()
    cpus: tuple[int, ...] = ()
    locks: tuple[int, ...] = ()  # descriptors, which the job's process inherits

    @property
    def label(self) -> str | None:
        """`cuda:0 NVIDIA H200`, or `CPU cores 0-3`; None where it holds nothing."""
        if self.gpus:
            return ", ".join(_gpu_label(gpu) for gpu in self.gpus)
        return f"CPU cores {_ranges(self.cpus)}" if self.cpus else None

    def variables(self) -> dict[str, str]:
        """Return the environment variables of a process in this place; a thread for each core, as torch has alone."""
        gpus = {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus)} if self.gpus else {}
        if not self.cpus or "OMP_NUM_THREADS" in os.environ:
            return gpus
        cores = sum(core[0] in self.cpus for core in physical_cores())
        return gpus | {"OMP_NUM_THREADS": str(max(1, cores))}

    @contextmanager
    def on_its_cpus(self) -> Iterator[None]:
        """Let processes that this thread starts in the block run on the CPUs of this place only."""
        if not self.cpus:
            yield
            return
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self.cpus)
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)


@contextmanager
def held_place(
    locks: Path, gpus: Sequence[tuple[str, ...]], cpus: int | None, say: Callable[[str], None] = lambda line: None
) -> Iterator[Place]:
    """Hold a place until the block ends; wait until one is free.

    Args:
        locks: folder of the lock files on this host.
        gpus: sets of GPUs of which the job gets one; `[()]` for a job without a GPU.
        cpus: how many CPUs it gets, whole physical cores; None: it shares those of this process, as jobs do for
            which no cores are left where a host has more GPUs than sets of cores.
        say: gets a line where no place is free for some seconds.

    Raises:
        OSError: the lock files cannot be written.

    """
    locks.mkdir(parents=True, exist_ok=True)
    began, is_said = time.monotonic(), False
    while True:
        for each in gpus:
            choices = _choices(each, cpus)
            for cores in choices if len(choices) >= len(gpus) else [*choices, []]:  # a GPU waits for no core
                with ExitStack() as stack:
                    names = [f"gpu-{gpu}" for gpu in each] + [f"core-{core[0]}" for core in cores]
                    descriptors = [_lock(stack, locks / f"{name}.lock") for name in names]
                    if None not in descriptors:
                        chosen = tuple(cpu for core in cores for cpu in core)
                        yield Place(each, chosen, tuple(each for each in descriptors if each is not None))
                        return
        time.sleep(POLL_SECONDS)
        if not is_said and time.monotonic() - began > SAID_SECONDS:
            kind, is_said = "GPUs" if any(gpus) else "CPU cores", True
            say(f"waits until {kind} are free: other jobs run on them (locks in {locks})")


def _lock(stack: ExitStack, path: Path) -> int | None:
    """Lock the file until the stack is closed; None where another process holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    stack.callback(os.close, descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    return descriptor


def _choices(gpus: tuple[str, ...], cpus: int | None) -> list[list[tuple[int, ...]]]:
    """Return the sets of cores, each with at least `cpus` CPUs, those next to the first GPU first."""
    if cpus is None:
        return [[]]
    cores = physical_cores()
    number = min(len(cores), max(1, cpus // max(len(core) for core in cores)))
    sets = [cores[start : start + number] for start in range(0, len(cores) - number + 1, number)]
    near = host_gpus()[gpus[0]][2] if gpus and gpus[0] in host_gpus() else frozenset[int]()
    return sorted(sets, key=lambda each: -sum(cpu in near for core in each for cpu in core))


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, by UUID, those of CUDA_VISIBLE_DEVICES where it is set."""
    uuids = list(host_gpus())
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        return uuids
    tokens = [token.strip() for token in given.split(",")] if given.strip() else []
    known: list[str] = []
    for token in tokens:
        if token.startswith(("GPU-", "MIG-")):
            known.append(token)
        elif token.isdecimal() and int(token) < len(uuids):
            known.append(uuids[int(token)])
        else:  # CUDA, too, ignores a wrong index and all after it
            break
    return known


@cache
def host_gpus() -> dict[str, tuple[int, str, frozenset[int]]]:
    """Return {UUID: (index, model, CPUs next to it)} of all GPUs of this host; empty without a driver."""
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return {
            str(pynvml.nvmlDeviceGetUUID(handle)): (index, str(pynvml.nvmlDeviceGetName(handle)), _near(handle))
            for index, handle in enumerate(handles)
        }
    except pynvml.NVMLError:
        return {}


def _near(handle: Any) -> frozenset[int]:
    with suppress(pynvml.NVMLError):
        words = pynvml.nvmlDeviceGetCpuAffinity(handle, ((os.cpu_count() or 1) + 63) // 64)
        return frozenset(64 * place + bit for place, word in enumerate(words) for bit in range(64) if word >> bit & 1)
    return frozenset()


def _gpu_label(gpu: str) -> str:
    index, model, _ = host_gpus().get(gpu, (None, "", ()))
    return gpu if index is None else f"cuda:{index} {model}"


def _ranges(numbers: Sequence[int]) -> str:
    """Return `0-3,8` for 0, 1, 2, 3, 8."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(each[0]) if len(each) == 1 else f"{each[0]}-{each[-1]}" for each in parts)
