"""What one call makes the GPU do: kernels, their lengths, transfers, and how often the host waits for it.

A short profiler pass of its own, far below a full trace: no shapes, no stacks, nothing kept. Durations are CUPTI's,
and stay true although the profiler slows the host down; how long the call takes must come from another pass.
"""

from __future__ import annotations

import re
import statistics
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler import profile
from torch.profiler import ProfilerActivity

from profiling.trace.events import CROSSES, RUNTIME, WAITS, WORK, read_events

#: Calls of the CUDA runtime and driver that put work on a stream.
HANDS_OVER = re.compile(r"(cuda|cu)(Launch(Cooperative)?Kernel|Memcpy|Memset|GraphLaunch)")


def host_launches(call: Callable[[], object], *, calls: int = 3) -> float | None:
    """Return kernels, copies, fills and graphs that the host launches a call; None where CUPTI saw none.

    One graph launch counts once, however many nodes it has. For a pass of its own: the profiler slows the host down.
    """
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=1)
    with torch.profiler.profile(activities=activities, schedule=schedule, acc_events=True) as profiler:
        for count in (1, calls):
            for _ in range(count):
                call()
            torch.cuda.synchronize()
            profiler.step()
    seen = sum(average.count for average in profiler.key_averages() if HANDS_OVER.match(average.key))
    return seen / calls if seen else None


_MARK = "profiling: device work"
#: A kernel this short (µs) is mostly start-up and one trip to memory, whatever it computes.
SHORT_US = 5.0


@dataclass(frozen=True)
class DeviceWork:
    """Per call: `kernels`, copies and fills on the device, and `launches` by the host (a replayed graph is one).

    `busy_ms` is the time in which at least one of them ran, `median_us` a kernel's median length, `short_ms` the part
    of `busy_ms` in which only kernels of at most `SHORT_US` ran, `transfer_ms` that of copies between host and device,
    `waits` how often the host waited for the device.
    """

    kernels: float
    launches: float
    busy_ms: float
    median_us: float
    short_ms: float
    transfer_ms: float
    waits: float


def device_work(call: Callable[[], object], *, calls: int = 3) -> DeviceWork | None:
    """Run `call` a few times under the profiler; None where CUPTI saw nothing on the device."""
    _watched(call, 1)  # starts CUPTI, which is not ready for the first launches of a process
    watched = _watched(call, calls)
    with tempfile.TemporaryDirectory(prefix="profiling-") as folder:
        trace = Path(folder) / "trace.json"
        watched.export_chrome_trace(str(trace))
        return summarize(read_events(trace), calls)


def _watched(call: Callable[[], object], calls: int) -> profile:
    """Return what the profiler saw of `calls` calls.

    The one below `torch.profiler.profile`, which imports the compiler at its first start: 4 s, in a process that may
    have no other use for it.
    """
    watched = profile(use_device="cuda", use_kineto=True)
    with watched:
        with torch.profiler.record_function(_MARK):
            for _ in range(calls):
                call()
        torch.cuda.synchronize()
    return watched


def summarize(events: Iterable[Mapping[str, Any]], calls: int) -> DeviceWork | None:
    """Add up the events of a Chrome trace (microseconds) of `calls` calls; None without work on the device."""
    events = [event for event in events if "dur" in event]
    work = [event for event in events if event.get("cat") in WORK]
    if not work:
        return None
    marks = [event for event in events if event.get("cat") == "user_annotation" and event.get("name") == _MARK]
    spans = [(float(mark["ts"]), float(mark["ts"]) + float(mark["dur"])) for mark in marks]
    asked = [
        str(event.get("name"))
        for event in events
        if event.get("cat") in RUNTIME and any(begin <= float(event["ts"]) <= end for begin, end in spans)
    ]
    lengths = [float(event["dur"]) for event in work if event["cat"] == "kernel"]
    busy = _covered([(float(event["ts"]), float(event["dur"])) for event in work])
    long = [event for event in work if event["cat"] != "kernel" or float(event["dur"]) > SHORT_US]
    crossing = sum(float(event["dur"]) for event in work if CROSSES.match(str(event.get("name"))))
    return DeviceWork(
        kernels=len(work) / calls,
        launches=sum(1 for name in asked if HANDS_OVER.match(name)) / calls,
        busy_ms=busy / 1e3 / calls,
        median_us=statistics.median(lengths or [float(event["dur"]) for event in work]),
        short_ms=(busy - _covered([(float(event["ts"]), float(event["dur"])) for event in long])) / 1e3 / calls,
        transfer_ms=crossing / 1e3 / calls,
        waits=sum(1 for name in asked if WAITS.match(name)) / calls,
    )


def _covered(stretches: list[tuple[float, float]]) -> float:
    """Return how much of the time axis the (start, length) stretches cover: streams overlap."""
    covered, reached = 0.0, float("-inf")
    for start, length in sorted(stretches):
        covered += max(0.0, start + length - max(start, reached))
        reached = max(reached, start + length)
    return covered
