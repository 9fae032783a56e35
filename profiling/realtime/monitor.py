"""Observes each frame of a loop: compiles, captures, allocations, garbage collections, and interference from outside.

Each observation takes tens of microseconds. A driver query takes longer, so it is made every few frames only, and right
after a long frame.
"""

from __future__ import annotations

import gc
import os
import resource
import time
from pathlib import Path
from typing import Any

import torch

from profiling.graphs import total_captures
from profiling.machine import nvml
from profiling.trace.counters import compile_ids, snapshot

#: Frames between two queries of the driver, and of the other processes on the device.
DRIVER_EVERY, OTHERS_EVERY = 16, 64
#: A frame this many times as long as the running mean of those before it is long.
LONG = 1.2
PROC = Path("/proc")
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
        self._collecting, self._collections, self._collection_ms = 0.0, 0, 0.0
        self._statm, self._stat = (
            os.open(file, os.O_RDONLY) if os.access(file, os.R_OK) else None  # a container may have no /proc
            for file in (PROC / "self" / "statm", PROC / "stat")
        )
        self._page, self._tick_ms = os.sysconf("SC_PAGE_SIZE"), 1e3 / os.sysconf("SC_CLK_TCK")
        gc.callbacks.append(self._on_collection)
        self.start()

    def close(self) -> None:
        """Close the files and remove the callback of the garbage collector."""
        gc.callbacks.remove(self._on_collection)
        for descriptor in (self._statm, self._stat):
            if descriptor is not None:
                os.close(descriptor)

    def start(self) -> None:
        """Start counting: earlier events are not reported."""
        self._typical: float | None = None
        self._compiles, self._ids = snapshot(), compile_ids()
        self._totals, _ = self._read()

    def __call__(self, frame: int, frame_ms: float) -> dict[str, float]:
        """Return the series of a frame: counts and ms since the call before, and bytes held now."""
        totals, held = self._read()
        row = {name: total - self._totals[name] for name, total in totals.items()} | held | self._compilation(frame)
        self._totals = totals
        long = self._typical is not None and frame_ms > LONG * self._typical
        if self._cuda is not None and (long or frame % DRIVER_EVERY == 0):
            row |= self._driver(self._cuda, others=long or frame % OTHERS_EVERY == 0)
        self._typical = frame_ms if self._typical is None else self._typical + 0.1 * (frame_ms - self._typical)
        return row

    def _read(self) -> tuple[dict[str, float], dict[str, float]]:
        """Return totals so far, in counts or ms, and bytes held now."""
        totals: dict[str, float] = {
            "graphs_recorded": total_captures(),
            "collections": self._collections,
            "collection_ms": self._collection_ms,
            "switches": resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw,  # involuntary, of this thread
        }
        held: dict[str, float] = {}
        if self._statm is not None:
            held["host_rss"] = int(os.pread(self._statm, 128, 0).split()[1]) * self._page
        if self._stat is not None:  # the CPU time that other guests of the machine took, over all CPUs
            totals["steal_ms"] = int(os.pread(self._stat, 256, 0).split()[_STEAL]) * self._tick_ms
        if self._cuda is not None:
            stats = torch.cuda.memory_stats_as_nested_dict(self._cuda)
            totals |= {"alloc_retries": stats["num_alloc_retries"], "device_allocs": stats["num_device_alloc"]}
            held |= {name: stats[f"{name}_bytes"]["all"]["current"] for name in ("allocated", "reserved")}
        return totals, held

    def _compilation(self, frame: int) -> dict[str, float]:
        compiles = snapshot()
        since, self._compiles = compiles.since(self._compiles), compiles
        if since.compiles:
            ids = compile_ids()
            self.events += [{"frame": frame, "kind": "recompile", "id": name} for name in ids if name not in self._ids]
            self._ids = ids
        return {"compiles": since.compiles, "captures": since.cudagraph_captures}

    def _driver(self, device: torch.device, *, others: bool) -> dict[str, float]:
        reasons = nvml.throttle_reasons(device)
        self.throttle_reasons |= reasons
        row: dict[str, float] = {"throttled": bool(reasons)}
        free, total = torch.cuda.mem_get_info(device)
        row["device_used"] = total - free
        if others and (count := nvml.other_processes(device)) is not None:
            row["others"] = count
        return row

    def _on_collection(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._collecting = time.perf_counter()
            return
        self._collections += 1
        self._collection_ms += 1e3 * (time.perf_counter() - self._collecting)
