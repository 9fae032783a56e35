"""Observes frames and calls: compiles, captures, allocations, garbage collections, and interference from outside.

An observation of the host takes some microseconds; those of the allocator and of /proc take tens, and a driver query
more. They are made every few frames only, and right after a long frame; of calls, none is made after a call of usual
length, but for every 64th. Without a CUDA device, torch is not imported.
"""

from __future__ import annotations

import gc
import math
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from profiling.machine.run_queue import ThreadWaits
from profiling.metrics.slow_samples import CAUSES, slow_section, threshold_ms
from profiling.results.frames import ENERGY, Array
from profiling.results.loop import Steady
from profiling.results.measured import ClockConditions, SlowFrames
from profiling.trace.counters import compile_ids, compile_totals

if TYPE_CHECKING:
    import torch

    from profiling.machine import energy, nvml

#: Frames between two queries of the driver.
DRIVER_EVERY = 16
#: Seconds between queries by a thread: of clocks, energy and memory, and of how much other processes use the device.
DRIVER_SECONDS, OTHERS_SECONDS = 0.25, 1.0
#: A frame this many times as long as the running mean of those before it is long.
LONG = 1.2
#: Where not every frame is looked at, so many frames pass between two long ones that are. Of calls, those after which
#: the driver is asked.
LONG_EVERY = 8
#: There a long frame is also this much longer (ms), some times what looking at it takes: short frames vary by 20%.
LONG_MS = 0.5
#: Calls of usual length after which all is read once.
CALLS_EVERY = 64
#: What is counted after every frame.
_COUNTS = ("compiles", "captures", "compile_ms", "graphs_recorded", "capture_ms", "collections", "collection_ms")
PROC = Path("/proc")
_STEAL = 8  # index of the ticks stolen by other guests in the first line of /proc/stat, see proc(5)


class EventCounter:
    """Counts, from one reading to the next, what delays the frames or calls of this process.

    `events` are recompiles: {"frame", "id"}. With `skips`, a look at the allocator and at /proc covers several frames,
    and which of them was delayed is not known: the time of cudaMallocs and the CPU time that other guests took are
    absent. Without, a cudaMalloc is timed first, which waits for the device.
    """

    def __init__(self, device: torch.device | None, *, skips: bool) -> None:
        self._cuda, self._skips = None if device is None or device.type != "cuda" else device, skips
        self._malloc_cost: tuple[float, float] | None = None
        if self._cuda is not None and not skips:
            from profiling.machine.memory import malloc_cost

            self._malloc_cost = malloc_cost(self._cuda)
        self.events: list[dict[str, Any]] = []
        self._collecting, self._collections, self._collection_ms = 0.0, 0, 0.0
        self._totals, self._reserved = dict[str, float](), 0.0  # of the allocator and of /proc
        self._statm, self._stat = (
            os.open(file, os.O_RDONLY) if os.access(file, os.R_OK) else None  # a container may have no /proc
            for file in (PROC / "self" / "statm", PROC / "stat")
        )
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._tick_ms = 1e3 / os.sysconf("SC_CLK_TCK") / (os.cpu_count() or 1)
        self._waits = ThreadWaits(workers=self._cuda is None)
        gc.callbacks.append(self._on_collection)
        self.start()

    def close(self) -> None:
        """Close the files and remove the callback of the garbage collector."""
        gc.callbacks.remove(self._on_collection)
        self._waits.close()
        for descriptor in (self._statm, self._stat):
            if descriptor is not None:
                os.close(descriptor)

    def start(self) -> None:
        """Start counting: earlier events are not reported."""
        self._ids = compile_ids()
        self._look()
        self._nothing: dict[str, float] = dict.fromkeys((*_COUNTS, "switches"), 0.0)
        if self._waits.read()[0] is not None:
            self._nothing["run_queue_ms"] = 0.0
        self._counted = self._counts()

    def read(self, frame: int, *, look: bool) -> dict[str, float]:
        """Return counts and ms since the reading before, and where `look` also what the allocator and /proc say.

        The result must not be changed: after a frame in which nothing happened it is the same one each time.
        """
        counts, (wait_ms, switches) = self._counts(), self._waits.read()
        if not (look or switches or wait_ms) and counts == self._counted:
            return self._nothing
        row = self._nothing | {"switches": switches}
        if wait_ms is not None:
            row["run_queue_ms"] = wait_ms
        if counts != self._counted:
            row |= self._changes(frame, counts)
        if look:
            row |= self._look()
        return row

    def _counts(self) -> tuple[float, ...]:
        """Return the totals that are cheap to read, those of `_COUNTS`."""
        engine = sys.modules.get("profiling.graphs.engine")
        captured = (0, 0.0) if engine is None else (engine.total_captures(), 1e3 * engine.capture_seconds())
        return (*compile_totals(), *captured, self._collections, self._collection_ms)

    def _changes(self, frame: int, counts: tuple[float, ...]) -> dict[str, float]:
        """Return what was counted since the frame before; `torch._dynamo.reset()` sets totals to zero."""
        totals = zip(_COUNTS, counts, self._counted, strict=True)
        since = {name: now - before if now >= before else now for name, now, before in totals}
        self._counted = counts
        if since["compiles"]:
            ids = compile_ids()
            self.events += [{"frame": frame, "id": name} for name in ids if name not in self._ids]
            self._ids = ids
        return since

    def _look(self) -> dict[str, float]:
        """Return the bytes held now, and what the allocator and /proc have counted since the last look."""
        row: dict[str, float] = {}
        totals: dict[str, float] = {}
        if self._statm is not None:
            row["host_rss"] = int(os.pread(self._statm, 128, 0).split()[1]) * self._page
        if self._stat is not None and not self._skips:  # the CPU time that other guests took, the mean of all CPUs
            totals["steal_ms"] = int(os.pread(self._stat, 256, 0).split()[_STEAL]) * self._tick_ms
        if self._cuda is not None:
            import torch

            stats = torch.cuda.memory_stats_as_nested_dict(self._cuda)
            totals |= {"alloc_retries": stats["num_alloc_retries"], "device_allocs": stats["num_device_alloc"]}
            row |= {name: stats[f"{name}_bytes"]["all"]["current"] for name in ("allocated", "reserved")}
        row |= {name: total - self._totals.get(name, total) for name, total in totals.items()}
        if self._malloc_cost is not None:
            per_call, per_byte = self._malloc_cost
            grown, allocations = max(0.0, row["reserved"] - self._reserved), row["device_allocs"]
            row["malloc_ms"] = allocations * per_call + grown * per_byte if allocations else 0.0
        self._totals, self._reserved = totals, row.get("reserved", 0.0)
        return row

    def _on_collection(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._collecting = time.perf_counter()
            return
        self._collections += 1
        self._collection_ms += 1e3 * (time.perf_counter() - self._collecting)


class FrameMonitor(EventCounter):
    """Returns, after each frame, what happened since the call before.

    The allocator and /proc are read every `every` frames, and after a long one. Of a CUDA device the driver is asked,
    too: for energy, memory in use and SM clocks, of which `clocks()` are those since the start with what limited them;
    and by a thread every `OTHERS_SECONDS` how much other processes use the device. With `apart`, that thread asks for
    everything, every `DRIVER_SECONDS`, because a query may take milliseconds: no frame waits for it, and the values go
    into the row of the next frame that ends. `energy_reason` says why there is no energy.
    """

    def __init__(self, device: torch.device | None = None, *, every: int = 1, apart: bool = False) -> None:
        self._every, self._apart = every, apart
        self._closed = threading.Event()
        self._answers: dict[str, float] | None = None  # of the driver, for the next frame
        self._others_share: float | None = None  # of the device's time in the last second, 0 to 1
        self._failure: Exception | None = None  # that ended the thread
        self._clocks: nvml.ClockMonitor | None = None
        self._energy: energy.EnergyCounter | None = None
        self.energy_reason: str | None = None
        super().__init__(device, skips=every > 1)

    def close(self) -> None:
        """Stop observing."""
        self._closed.set()
        super().close()

    def start(self) -> None:
        """Start counting: earlier events are not reported."""
        super().start()
        self._typical, self._next_long = 0.0, 0
        self._start_driver()

    def use(self, device: torch.device) -> None:
        """Observe this CUDA device too, from now on."""
        self._waits.close()
        self._cuda, self._waits = device, ThreadWaits(workers=False)
        self._look()
        self._start_driver()

    def clocks(self) -> ClockConditions:
        """Return the clocks since the start, and for how long they were limited."""
        return ClockConditions() if self._clocks is None else self._clocks.conditions()

    def _start_driver(self) -> None:
        if self._cuda is None:
            return
        from profiling.machine.nvml import ClockMonitor

        asks, self._clocks = self._clocks is not None, ClockMonitor(self._cuda)
        self._answers = self._energy = self.energy_reason = None
        if not asks:
            threading.Thread(target=self._ask, args=(self._cuda,), name="driver", daemon=True).start()

    def _ask(self, device: torch.device) -> None:
        """Query the driver until this is closed; the next frame raises what it fails with."""
        from profiling.machine.nvml import share_of_others

        others_due = 0.0
        while True:
            clocks, now = self._clocks, time.monotonic()
            try:
                if now >= others_due:
                    self._others_share, others_due = share_of_others(device, OTHERS_SECONDS), now + OTHERS_SECONDS
                answers = self._driver(device) if self._apart else None
            except Exception as error:
                self._failure = error
                return
            if clocks is self._clocks:  # else the counters were started anew meanwhile
                self._answers = answers
            if self._closed.wait(DRIVER_SECONDS if self._apart else OTHERS_SECONDS):
                return

    def __call__(self, frame: int, frame_ms: float) -> Mapping[str, float]:
        """Return the series of a frame, as `read` does: counts and ms since the call before, and bytes held now."""
        typical = self._typical or frame_ms
        self._typical = typical + 0.1 * (frame_ms - typical)
        long = frame_ms > LONG * typical and (
            self._every == 1 or (frame >= self._next_long and frame_ms - typical > LONG_MS)
        )
        if long:
            self._next_long = frame + LONG_EVERY
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        row = self.read(frame, look=long or frame % self._every == 0)
        answers = self._answers
        if self._cuda is not None and not self._apart and (long or frame % max(DRIVER_EVERY, self._every) == 0):
            answers = self._driver(self._cuda)
        if answers is None:
            return row
        self._answers = None
        if self._others_share is not None:
            answers["others_ms"] = self._others_share * frame_ms
        return row | answers

    def _driver(self, device: torch.device) -> dict[str, float]:
        """Return what the driver says now, which may take milliseconds."""
        from profiling.machine import energy, nvml

        row: dict[str, float] = {}
        if self._clocks is not None and (clock := self._clocks.read()) is not None:
            row["sm_clock_mhz"] = clock
        if self.energy_reason is None:
            try:
                counter = self._energy or energy.EnergyCounter(device)
                row[ENERGY], self._energy = counter.read(), counter
            except energy.NoEnergy as reason:
                self.energy_reason = str(reason)
        if (used := nvml.memory_used(device)) is not None:
            row["device_used"] = used
        return row


class CallMonitor(EventCounter):
    """Observes the timed calls of a step, between samples, and explains the slow ones.

    After a call of usual length it compares one number. After a long one it reads what happened; so it does after the
    first call of a window and every 64th, to know what calls of usual length take. What was counted since the last
    reading belongs to the long call, but for what the usual calls before it took, and for the time by which those were
    longer than usual. There is no thread: it would run beside the timed calls of the cells with which this one takes
    turns.

    Reading the counters after every call, so that nothing need be apportioned, takes 20 µs after one with a context
    switch, as calls with several threads have, and 2 µs after others, where this takes 0.6 µs
    (`benchmarks/harness_cost.py`, two shared CPU cores, 30 November 2026).
    """

    def __init__(self, device: torch.device) -> None:
        self._typical, self._calls = 0.0, 0
        self._rows: list[_Reading] = []
        self._others: list[float] = []  # the share of its window in which other processes used the device, by call
        self._last_long = -LONG_EVERY
        super().__init__(device, skips=False)
        self.begin()

    def begin(self) -> None:
        """Begin a window of calls: what happens between two windows belongs to none."""
        self.start()
        self._readings, self._first, self._beyond_ms = 0, self._calls, 0.0

    def end(self, others_share: float | None) -> None:
        """End a window, in which other processes took that share of the device's time."""
        share = math.nan if others_share is None else others_share
        self._others += [share] * (self._calls - len(self._others))

    def __call__(self, call_ms: float) -> None:
        """Observe the call that has just ended."""
        self._calls += 1
        usual = self._typical or call_ms
        long = call_ms > LONG * usual
        self._typical = usual + 0.1 * (min(call_ms, 2 * usual) - usual)
        if long or not self._readings or self._calls - self._first >= CALLS_EVERY:
            self._read(long=long)
        elif call_ms > usual:
            self._beyond_ms += call_ms - usual

    def _read(self, *, long: bool) -> None:
        row = self.read(self._calls - 1, look=True)
        ask = long and self._calls - self._last_long >= LONG_EVERY
        if ask:
            self._last_long = self._calls
        if self._cuda is not None and (ask or self._readings % DRIVER_EVERY == 0):
            from profiling.machine.nvml import sm_clock_mhz

            row["sm_clock_mhz"] = sm_clock_mhz(self._cuda) or math.nan
        self._rows.append(_Reading(self._first, self._calls, long, self._beyond_ms, row))
        self._readings, self._first, self._beyond_ms = self._readings + 1, self._calls, 0.0

    def slow_calls(self, wall_ms: Sequence[float], device_ms: Sequence[float] = ()) -> SlowFrames:
        """Return the slow ones of all calls so far, and what explains them; the times are in ms, one a call."""
        frame_ms = np.asarray(wall_ms, dtype=np.float64)
        clocks = np.full(frame_ms.size, np.nan)  # known of the calls after which the driver was asked
        for each in self._rows:
            clocks[each.end - 1] = each.row.get("sm_clock_mhz", np.nan)
        series = {name: self._per_call(name, frame_ms.size) for name in CAUSES.values()}
        series |= {"frame_ms": frame_ms, "others_ms": np.array(self._others) * frame_ms, "sm_clock_mhz": clocks}
        if device_ms:
            series["device_call_ms"] = np.asarray(device_ms, dtype=np.float64)
        usual = Steady(from_frame=0, settled=True, p50=float(np.median(frame_ms)))
        return slow_section(series, usual, frame_ms > threshold_ms(frame_ms, usual), self.events)

    def _per_call(self, name: str, calls: int) -> Array:
        """Return the ms [calls] of a cause in each call: in usual ones their mean, in a long one what is left."""
        known = [each for each in self._rows if name in each.row]
        rates = [each.row[name] / (each.end - each.first) for each in known if not each.long]
        usual = float(np.median(rates)) if rates else 0.0
        series = np.zeros(calls)
        for each in known:
            before = each.end - each.first - 1
            series[each.first : each.end] = usual if each.long else each.row[name] / (before + 1)
            if each.long:
                series[each.end - 1] = max(0.0, each.row[name] - each.beyond_ms - before * usual)
        return series


@dataclass(frozen=True)
class _Reading:
    """What was read after the call before `end`, since that of the call before `first`.

    `beyond_ms` is by how much the calls before a `long` one were longer than usual.
    """

    first: int
    end: int
    long: bool
    beyond_ms: float
    row: Mapping[str, float]
