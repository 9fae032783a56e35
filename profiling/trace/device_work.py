"""GPU work of one call: number and duration of kernels, launches, transfers, waits of the host.

They are measured in a short profiler pass without shapes, stacks or files. The profiler slows down the host. Kernel
durations are right nevertheless, because they come from CUPTI; the duration of the call must come from another pass.
"""

from __future__ import annotations

import re
import statistics
import tempfile
from collections.abc import Callable, Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler import profile
from torch.profiler import ProfilerActivity

from profiling.results.record import SHORT_US, DeviceWork
from profiling.trace.events import CUDA_CALLS, GPU_WORK, TRANSFERS, WAITS, read_events, sizes_of

#: Calls of the CUDA runtime and driver that launch work.
_LAUNCHES = re.compile(r"(cuda|cu)(Launch(Cooperative)?Kernel|Memcpy|Memset|GraphLaunch)")


def host_launches(call: Callable[[], object], *, calls: int = 3) -> float | None:
    """Return the number of launches per call (kernels, copies, fills, graphs); None where CUPTI reports none.

    A graph launch counts as one. The profiler slows down the host, so this must not run while something is timed.
    """
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=1)
    with torch.profiler.profile(activities=activities, schedule=schedule, acc_events=True) as profiler:
        for count in (1, calls):
            for _ in range(count):
                call()
            torch.cuda.synchronize()
            profiler.step()
    launches = sum(average.count for average in profiler.key_averages() if _LAUNCHES.match(average.key))
    return launches / calls if launches else None


_MARK = "profiling: device work"
#: Kernels with fewer blocks than multiprocessors underfill a GPU up to this duration in microseconds; a longer one has
#: enough work to fill it, and is slow.
FILLABLE_US = 20.0


def device_work(call: Callable[[], object], *, calls: int = 3) -> DeviceWork | None:
    """Profile `calls` calls and return the mean GPU work of one; None where CUPTI reports no work on the GPU."""
    multiprocessors = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    return summarize(device_events(call, calls), calls, multiprocessors)


def device_events(call: Callable[[], object], calls: int) -> list[dict[str, Any]]:
    """Return the events of the profiler over `calls` calls, after one that starts CUPTI."""
    _profiled(call, 1)  # CUPTI misses the first launches of a process
    return _profiled(call, calls)


def _profiled(call: Callable[[], object], calls: int) -> list[dict[str, Any]]:
    """Profile `calls` calls with the autograd profiler: `torch.profiler.profile` would import the compiler (4 s)."""
    profiler = profile(use_device="cuda", use_kineto=True)
    with profiler:
        with torch.profiler.record_function(_MARK):
            for _ in range(calls):
                call()
        torch.cuda.synchronize()
    return exported_events(profiler)


def exported_events(profiler: profile) -> list[dict[str, Any]]:
    """Return the events that the profiler recorded."""
    with tempfile.TemporaryDirectory(prefix="profiling-") as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        return list(read_events(trace))


def summarize(events: Iterable[Mapping[str, Any]], calls: int, multiprocessors: int | None = None) -> DeviceWork | None:
    """Return the mean GPU work of a call, from the events (microseconds) of `calls` calls; None where there is none."""
    events = [event for event in events if "dur" in event]
    work = [event for event in events if event.get("cat") in GPU_WORK]
    if not work:
        return None
    marks = [event for event in events if event.get("cat") == "user_annotation" and event.get("name") == _MARK]
    spans = [(float(mark["ts"]), float(mark["ts"]) + float(mark["dur"])) for mark in marks]
    cuda_calls = [
        str(event.get("name"))
        for event in events
        if event.get("cat") in CUDA_CALLS and any(begin <= float(event["ts"]) <= end for begin, end in spans)
    ]
    lengths = [float(event["dur"]) for event in work if event["cat"] == "kernel"]
    busy = _covered([(float(event["ts"]), float(event["dur"])) for event in work])
    long = [event for event in work if event["cat"] != "kernel" or float(event["dur"]) > SHORT_US]
    filling = [event for event in long if not _underfills(event, multiprocessors)]
    transfer_us = sum(float(event["dur"]) for event in work if TRANSFERS.match(str(event.get("name"))))
    return DeviceWork(
        kernels=len(work) / calls,
        launches=sum(1 for name in cuda_calls if _LAUNCHES.match(name)) / calls,
        busy_ms=busy / 1e3 / calls,
        median_us=statistics.median(lengths or [float(event["dur"]) for event in work]),
        short_ms=(busy - _covered([(float(event["ts"]), float(event["dur"])) for event in long])) / 1e3 / calls,
        transfer_ms=transfer_us / 1e3 / calls,
        waits=sum(1 for name in cuda_calls if WAITS.match(name)) / calls,
        underfilled_ms=(busy - _covered([(float(event["ts"]), float(event["dur"])) for event in filling]))
        / 1e3
        / calls,
    )


def _underfills(event: Mapping[str, Any], multiprocessors: int | None) -> bool:
    """Return whether a kernel has fewer blocks than the device multiprocessors, and too little work for more."""
    grid = sizes_of(event.get("args") or {}, "grid")
    few = grid is not None and multiprocessors is not None and prod(grid) < multiprocessors
    return few and event["cat"] == "kernel" and float(event["dur"]) <= FILLABLE_US


def _covered(intervals: list[tuple[float, float]]) -> float:
    """Return the length of the union of (start, length) intervals, which overlap where streams do."""
    covered, reached = 0.0, float("-inf")
    for start, length in sorted(intervals):
        covered += max(0.0, start + length - max(start, reached))
        reached = max(reached, start + length)
    return covered
