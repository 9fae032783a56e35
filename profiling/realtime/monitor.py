"""Observes each frame of a loop: compiles, captures, allocations, garbage collections, and interference from outside.

Between two frames this takes tens of microseconds. The driver is slower to answer: it is asked every few frames, and
right after a long one.
"""

from __future__ import annotations

import gc
import os
import resource
import time
from typing import Any

import torch

from profiling.graphs import total_captures
from profiling.machine import nvml
from profiling.trace.counters import compile_ids, snapshot

#: Frames between two queries of the driver, and of the other processes on the device.
DRIVER_EVERY, OTHERS_EVERY = 16, 64
#: A frame this many times as long as the running mean of those before it is long.
LONG = 1.2
_STEAL = 8  # index of the ticks stolen by other guests in the first line of /proc/stat, see proc(5)


class FrameMonitor:
    """Returns, after each frame, what happened since the call before.

    `events` are recompiles: {"frame", "kind": "recompile", "id"}. `throttle_reasons` are the limits on the clocks that
    the driver reported in any frame.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device if device.type == "cuda" else None
        self.events: list[dict[str, Any]] = []
        self.throttle_reasons: set[str] = set()
        self._collecting = 0.0
        self._stat, self._statm = (_open(path) for path in ("/proc/stat", "/proc/self/statm"))
        self._page, self._tick_ms = os.sysconf("SC_PAGE_SIZE"), 1e3 / os.sysconf("SC_CLK_TCK")
        gc.callbacks.append(self._on_collection)
        self.start()

    def close(self) -> None:
        """Close the files and remove the callback of the garbage collector."""
        gc.callbacks.remove(self._on_collection)
        for file in (self._stat, self._statm):
            if file is not None:
                os.close(file)

    def start(self) -> None:
        """Reset all counts."""
        self._typical: float | None = None
        self._collections, self._collected_ms = 0, 0.0
        self._compiles, self._ids, self._recorded = snapshot(), compile_ids(), total_captures()
        self._switches, self._stolen_ms = _switches(), self._steal_ms()
        if self._cuda is not None:
            self._retries, self._allocations = _allocator_counts(self._allocator_stats())

    def __call__(self, frame: int, frame_ms: float) -> dict[str, float]:
        """Return the series of a frame: counts and ms since the call before, and bytes held now."""
        row = self._compilation(frame) | self._host() | self._allocator()
        long = self._typical is not None and frame_ms > LONG * self._typical
        if self._cuda is not None and (long or frame % DRIVER_EVERY == 0):
            row |= self._driver(self._cuda, others=long or frame % OTHERS_EVERY == 0)
        self._typical = frame_ms if self._typical is None else self._typical + 0.1 * (frame_ms - self._typical)
        return row

    def _compilation(self, frame: int) -> dict[str, float]:
        compiles, recorded = snapshot(), total_captures()
        since = compiles.since(self._compiles)
        if since.compiles:
            ids = compile_ids()
            new = [name for name in ids if name not in self._ids]
            self.events += [{"frame": frame, "kind": "recompile", "id": name} for name in new]
            self._ids = ids
        row: dict[str, float] = {
            "compiles": since.compiles,
            "captures": since.cudagraph_captures,
            "graphs_recorded": recorded - self._recorded,
        }
        self._compiles, self._recorded = compiles, recorded
        return row

    def _host(self) -> dict[str, float]:
        switches, stolen_ms = _switches(), self._steal_ms()
        row: dict[str, float] = {
            "collections": self._collections,
            "collection_ms": self._collected_ms,
            "switches": switches - self._switches,
        }
        if stolen_ms is not None and self._stolen_ms is not None:
            row["steal_ms"] = stolen_ms - self._stolen_ms
        if self._statm is not None:
            row["host_rss"] = int(os.pread(self._statm, 128, 0).split()[1]) * self._page
        self._collections, self._collected_ms = 0, 0.0
        self._switches, self._stolen_ms = switches, stolen_ms
        return row

    def _allocator(self) -> dict[str, float]:
        if self._cuda is None:
            return {}
        stats = self._allocator_stats()
        retries, allocations = _allocator_counts(stats)
        row = {
            "allocated": stats["allocated_bytes"]["all"]["current"],
            "reserved": stats["reserved_bytes"]["all"]["current"],
            "alloc_retries": retries - self._retries,
            "device_allocs": allocations - self._allocations,
        }
        self._retries, self._allocations = retries, allocations
        return row

    def _driver(self, device: torch.device, *, others: bool) -> dict[str, float]:
        reasons = nvml.throttle_reasons(device)
        self.throttle_reasons |= reasons
        row: dict[str, float] = {"throttled": bool(reasons)}
        free, total = torch.cuda.mem_get_info(device)
        row["device_used"] = total - free
        if others and (count := nvml.other_processes(device)) is not None:
            row["others"] = count
        return row

    def _allocator_stats(self) -> dict[str, Any]:
        return torch.cuda.memory_stats_as_nested_dict(self._cuda)

    def _steal_ms(self) -> float | None:
        """Return the CPU time that other guests of the machine took so far, over all CPUs, in ms."""
        if self._stat is None:
            return None
        fields = os.pread(self._stat, 256, 0).partition(b"\n")[0].split()
        return int(fields[_STEAL]) * self._tick_ms if len(fields) > _STEAL else None

    def _on_collection(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._collecting = time.perf_counter()
            return
        self._collections += 1
        self._collected_ms += 1e3 * (time.perf_counter() - self._collecting)


def _allocator_counts(stats: dict[str, Any]) -> tuple[int, int]:
    return stats["num_alloc_retries"], stats["num_device_alloc"]


def _switches() -> int:
    """Return the number of involuntary context switches of this thread so far."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


def _open(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDONLY)
    except OSError:
        return None
