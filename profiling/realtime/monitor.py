"""What happened while a frame was made: compiling, capturing, allocating, collecting, being held up from outside.

A look costs some tens of microseconds and stands between two frames. What costs more to ask for (the driver) is asked
every few frames, and at once after a frame that took long.
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

#: Frames between two looks at the driver, and at what else runs on the device.
DRIVER_EVERY, OTHERS_EVERY = 16, 64
#: A frame this many times as long as the ones before it is looked into at once.
LONG = 1.2
_STEAL = 8  # where the ticks stolen by other guests stand in the first line of /proc/stat, see proc(5)


class FrameWatch:
    """Looks between frames. `events` are compile ids by frame, `throttle_reasons` why clocks were held down."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device if device.type == "cuda" else None
        self.events: list[dict[str, Any]] = []
        self.throttle_reasons: set[str] = set()
        self._collecting = 0.0
        self._stat, self._statm = (_opened(path) for path in ("/proc/stat", "/proc/self/statm"))
        self._page, self._tick_ms = os.sysconf("SC_PAGE_SIZE"), 1e3 / os.sysconf("SC_CLK_TCK")
        gc.callbacks.append(self._on_collection)
        self.start()

    def close(self) -> None:
        """Stop looking."""
        gc.callbacks.remove(self._on_collection)
        for file in (self._stat, self._statm):
            if file is not None:
                os.close(file)

    def __call__(self, frame: int, frame_ms: float) -> dict[str, float]:
        """Return what happened since the last look, and what is held now, by the names of the series."""
        row = self._compiled(frame) | self._on_host() | self._allocator()
        long = self._typical is not None and frame_ms > LONG * self._typical
        if self._cuda is not None and (long or frame % DRIVER_EVERY == 0):
            row |= self._driver(self._cuda, others=long or frame % OTHERS_EVERY == 0)
        self._typical = frame_ms if self._typical is None else self._typical + 0.1 * (frame_ms - self._typical)
        return row

    def start(self) -> None:
        """Count from now on."""
        self._typical: float | None = None
        self._collections, self._collected = 0, 0.0
        self._before, self._ids, self._recorded = snapshot(), compile_ids(), total_captures()
        self._switches, self._stolen = _switches(), self._steal()
        if self._cuda is not None:
            self._retries, self._allocations = self._allocator_counts(self._stats())

    def _compiled(self, frame: int) -> dict[str, float]:
        now, recorded = snapshot(), total_captures()
        happened = now.since(self._before)
        if happened.compiles:
            ids = compile_ids()
            fresh = [name for name in ids if name not in self._ids]
            self.events += [{"frame": frame, "kind": "recompile", "id": name} for name in fresh]
            self._ids = ids
        row: dict[str, float] = {
            "compiles": happened.compiles,
            "captures": happened.cudagraph_captures,
            "graphs_recorded": recorded - self._recorded,
        }
        self._before, self._recorded = now, recorded
        return row

    def _on_host(self) -> dict[str, float]:
        switches, stolen = _switches(), self._steal()
        row: dict[str, float] = {
            "collections": self._collections,
            "collection_ms": self._collected,
            "switches": switches - self._switches,
        }
        if stolen is not None and self._stolen is not None:
            row["steal_ms"] = stolen - self._stolen
        if self._statm is not None:
            row["host_rss"] = int(os.pread(self._statm, 128, 0).split()[1]) * self._page
        self._collections, self._collected = 0, 0.0
        self._switches, self._stolen = switches, stolen
        return row

    def _allocator(self) -> dict[str, float]:
        if self._cuda is None:
            return {}
        stats = self._stats()
        retries, allocations = self._allocator_counts(stats)
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

    def _stats(self) -> dict[str, Any]:
        return torch.cuda.memory_stats_as_nested_dict(self._cuda)

    @staticmethod
    def _allocator_counts(stats: dict[str, Any]) -> tuple[int, int]:
        return stats["num_alloc_retries"], stats["num_device_alloc"]

    def _steal(self) -> float | None:
        """Return the milliseconds that other guests took from all processors so far."""
        if self._stat is None:
            return None
        fields = os.pread(self._stat, 256, 0).partition(b"\n")[0].split()
        return int(fields[_STEAL]) * self._tick_ms if len(fields) > _STEAL else None

    def _on_collection(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._collecting = time.perf_counter()
            return
        self._collections += 1
        self._collected += 1e3 * (time.perf_counter() - self._collecting)


def _switches() -> int:
    """Return how often the system took the processor from this thread so far."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


def _opened(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDONLY)
    except OSError:
        return None
