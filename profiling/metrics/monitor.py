"""Observes each frame of a loop: compiles, captures, allocations, garbage collections, and interference from outside.

An observation of the host takes some microseconds; those of the allocator and of /proc take tens, and a driver query
more. They are made every few frames only, and right after a long frame. Without a CUDA device, torch is not imported.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profiling.machine.run_queue import ThreadWaits
from profiling.results.measured import ClockConditions
from profiling.trace.counters import compile_ids, compile_ms, snapshot

if TYPE_CHECKING:
    import torch

    from profiling.machine import nvml

#: Frames between two queries of the driver, and of the other processes on the device.
DRIVER_EVERY, OTHERS_EVERY = 16, 64
#: A frame this many times as long as the running mean of those before it is long.
LONG = 1.2
#: Where not every frame is looked at, so many frames pass between two long ones that are.
LONG_EVERY = 8
PROC = Path("/proc")
_STEAL = 8  # index of the ticks stolen by other guests in the first line of /proc/stat, see proc(5)


class FrameMonitor:
    """Returns, after each frame, what happened since the call before.

    `events` are recompiles: {"frame", "kind": "recompile", "id"}. `throttle_reasons` are the limits on the clocks that
    the driver reported in any frame; `clocks()` are the SM clocks since the start. The allocator and /proc are read
    every `every` frames, and after a long one. With `calibrate`, a cudaMalloc is timed first, which waits for the
    device; without it the time of those inside frames is not known.
    """

    def __init__(self, device: torch.device | None = None, *, every: int = 1, calibrate: bool = False) -> None:
        self._cuda = None if device is None or device.type != "cuda" else device
        self._every = every
        self._malloc_cost: tuple[float, float] | None = None
        if calibrate and self._cuda is not None:
            from profiling.machine.memory import malloc_cost

            self._malloc_cost = malloc_cost(self._cuda)
        self.events: list[dict[str, Any]] = []
        self.throttle_reasons: set[str] = set()
        self._clocks: nvml.ClockMonitor | None = None
        self._collecting, self._collections, self._collection_ms = 0.0, 0, 0.0
        self._statm, self._stat = (
            os.open(file, os.O_RDONLY) if os.access(file, os.R_OK) else None  # a container may have no /proc
            for file in (PROC / "self" / "statm", PROC / "stat")
        )
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._tick_ms = 1e3 / os.sysconf("SC_CLK_TCK") / (os.cpu_count() or 1)
        self._waits = ThreadWaits(workers=self._cuda is None)
        self._others: nvml.OthersMonitor | None = None
        gc.callbacks.append(self._on_collection)
        self.start()

    def close(self) -> None:
        """Close the files and remove the callback of the garbage collector."""
        gc.callbacks.remove(self._on_collection)
        self._waits.close()
        if self._others is not None:
            self._others.close()
        for descriptor in (self._statm, self._stat):
            if descriptor is not None:
                os.close(descriptor)

    def start(self) -> None:
        """Start counting: earlier events are not reported."""
        self._typical: float | None = None
        self._compiles, self._ids = snapshot(), compile_ids()
        self._totals, self._switches = self._counts() | self._memory()[0], {}
        self._thread_switches()
        self._waits.wait_ms()
        self._memory_frame, self._next_long = -1, 0
        self._reserved = self._memory()[1].get("reserved", 0.0)
        self._start_clocks()

    def use(self, device: torch.device) -> None:
        """Observe this CUDA device too, from now on."""
        self._cuda = device
        self._totals |= self._memory()[0]
        self._start_clocks()

    def clocks(self) -> ClockConditions:
        """Return the clocks since the start, and for how long they were limited."""
        return ClockConditions() if self._clocks is None else self._clocks.conditions()

    def _start_clocks(self) -> None:
        if self._cuda is not None:
            from profiling.machine.nvml import ClockMonitor, OthersMonitor

            self._clocks = ClockMonitor(self._cuda)
            self._others = self._others or OthersMonitor(self._cuda)

    def __call__(self, frame: int, frame_ms: float) -> dict[str, float]:
        """Return the series of a frame: counts and ms since the call before, and bytes held now."""
        long = self._typical is not None and frame_ms > LONG * self._typical and frame >= self._next_long
        if long and self._every > 1:
            self._next_long = frame + LONG_EVERY
        totals, held, follows = self._counts(), {}, frame == self._memory_frame + 1
        if long or frame % self._every == 0:
            memory_totals, held = self._memory()
            totals |= memory_totals
            self._memory_frame = frame
        row = {name: total - self._totals[name] for name, total in totals.items()} | held | self._compilation(frame)
        row["switches"] = self._thread_switches()
        if (wait_ms := self._waits.wait_ms()) is not None:
            row["run_queue_ms"] = wait_ms
        if "reserved" in held:
            row |= self._malloc_time(row["device_allocs"], held["reserved"])
        if not follows:  # these are of several frames, and which of them was delayed is not known
            row = {name: value for name, value in row.items() if name not in ("steal_ms", "malloc_ms")}
        self._totals |= totals
        if self._cuda is not None and (long or frame % max(DRIVER_EVERY, self._every) == 0):
            row |= self._driver(self._cuda, frame_ms, others=long or frame % max(OTHERS_EVERY, 16 * self._every) == 0)
        self._typical = frame_ms if self._typical is None else self._typical + 0.1 * (frame_ms - self._typical)
        return row

    def _counts(self) -> dict[str, float]:
        """Return the totals that are cheap to read, in counts or ms."""
        engine = sys.modules.get("profiling.graphs.engine")
        return {
            "graphs_recorded": 0 if engine is None else engine.total_captures(),
            "capture_ms": 0.0 if engine is None else 1e3 * engine.capture_seconds(),
            "compile_ms": compile_ms(),
            "collections": self._collections,
            "collection_ms": self._collection_ms,
        }

    def _thread_switches(self) -> int:
        """Return the involuntary context switches of this thread since its last call."""
        thread, total = threading.get_ident(), resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
        before, self._switches[thread] = self._switches.get(thread, total), total
        return total - before

    def _memory(self) -> tuple[dict[str, float], dict[str, float]]:
        """Return further totals so far, in counts or ms, and bytes held now."""
        totals: dict[str, float] = {}
        held: dict[str, float] = {}
        if self._statm is not None:
            held["host_rss"] = int(os.pread(self._statm, 128, 0).split()[1]) * self._page
        if self._stat is not None:  # the CPU time that other guests of the machine took, the mean of all CPUs
            totals["steal_ms"] = int(os.pread(self._stat, 256, 0).split()[_STEAL]) * self._tick_ms
        if self._cuda is not None:
            import torch

            stats = torch.cuda.memory_stats_as_nested_dict(self._cuda)
            totals |= {"alloc_retries": stats["num_alloc_retries"], "device_allocs": stats["num_device_alloc"]}
            held |= {name: stats[f"{name}_bytes"]["all"]["current"] for name in ("allocated", "reserved")}
        return totals, held

    def _compilation(self, frame: int) -> dict[str, float]:
        compiles = snapshot()
        if compiles == self._compiles:  # the difference takes several times as long
            return {"compiles": 0, "captures": 0}
        since, self._compiles = compiles.since(self._compiles), compiles
        if since.compiles:
            ids = compile_ids()
            self.events += [{"frame": frame, "kind": "recompile", "id": name} for name in ids if name not in self._ids]
            self._ids = ids
        return {"compiles": since.compiles, "captures": since.cudagraph_captures}

    def _malloc_time(self, allocations: float, reserved: float) -> dict[str, float]:
        grown, self._reserved = max(0.0, reserved - self._reserved), reserved
        if self._malloc_cost is None:
            return {}
        per_call, per_byte = self._malloc_cost
        return {"malloc_ms": allocations * per_call + grown * per_byte if allocations else 0.0}

    def _driver(self, device: torch.device, frame_ms: float, *, others: bool) -> dict[str, float]:
        import torch

        from profiling.machine import nvml

        self.throttle_reasons |= nvml.throttle_reasons(device)
        row: dict[str, float] = {}
        if self._clocks is not None and (clock := self._clocks.read()) is not None:
            row["sm_clock_mhz"] = clock
        free, total = torch.cuda.mem_get_info(device)
        row["device_used"] = total - free
        if others and self._others is not None and (share := self._others.share()) is not None:
            row["others_ms"] = share * frame_ms
        return row

    def _on_collection(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._collecting = time.perf_counter()
            return
        self._collections += 1
        self._collection_ms += 1e3 * (time.perf_counter() - self._collecting)
