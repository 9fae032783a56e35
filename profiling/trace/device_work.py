"""GPU work of one call: number and duration of kernels, launches, transfers, waits of the host.

They are measured in a short profiler pass without shapes, stacks or files. The profiler slows down the host. Kernel
durations are right nevertheless, because they come from CUPTI; the duration of the call must come from another pass.
"""

from __future__ import annotations

import re
import statistics
import tempfile
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch.autograd.profiler import profile

from profiling.results.explanations import SHORT_US, DeviceWork
from profiling.trace.events import TRANSFERS, WAITS, GpuWork, Timeline, read_events, timeline, traced_calls

#: Calls of the CUDA runtime and driver that launch work.
_LAUNCHES = re.compile(r"(cuda|cu)(Launch(Cooperative)?Kernel|Memcpy|Memset|GraphLaunch)")
#: Kernels with fewer blocks than multiprocessors underfill a GPU up to this duration in microseconds; a longer one has
#: enough work to fill it, and is slow.
FILLABLE_US = 20.0


def device_work(call: Callable[[], object], *, calls: int = 3) -> DeviceWork | None:
    """Profile `calls` calls and return the mean GPU work of one; None where CUPTI reports no work on the GPU."""
    multiprocessors = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    return summarize(profiled(call, calls, cuda=True), multiprocessors)


def profiled(
    call: Callable[[], object],
    calls: int,
    *,
    cuda: bool,
    around: Callable[[], AbstractContextManager[object]] = nullcontext,
    shapes: bool = False,
) -> Timeline:
    """Profile `calls` calls, each inside `around()`, after one that warms up: CUPTI misses a process's first launches.

    This is the autograd profiler: `torch.profiler.profile` would import the compiler (4 s). With `shapes`, and always
    on a CPU, operators have shapes.
    """

    def record(count: int) -> profile:
        profiler = profile(use_device="cuda" if cuda else None, use_kineto=True, record_shapes=shapes or not cuda)
        with profiler:
            for number in range(count):
                with torch.profiler.record_function(f"profiling/call/trace/{number}"), around():
                    call()
            if cuda:
                torch.cuda.synchronize()
        return profiler

    record(1)
    profiler = record(calls)
    with tempfile.TemporaryDirectory(prefix="profiling-") as folder:
        profiler.export_chrome_trace(f"{folder}/trace.json")
        return timeline(read_events(Path(folder) / "trace.json"))


def summarize(trace: Timeline, multiprocessors: int | None = None) -> DeviceWork | None:
    """Return the mean GPU work of a traced call; None where there is none."""
    called = traced_calls(trace)
    work = [item for call in called for item in call.work]
    if not work:
        return None
    calls, names = len(trace.calls), [host.name for call in called for host in call.host]
    busy, kernels = _covered(work), [item for item in work if item.kind == "kernel"]
    long = [item for item in work if item.kind != "kernel" or item.length > SHORT_US]
    few = multiprocessors or 0
    filling = [
        each for each in long if each.kind != "kernel" or each.length > FILLABLE_US or (each.blocks or few) >= few
    ]
    return DeviceWork(
        kernels=len(work) / calls,
        launches=sum(1 for name in names if _LAUNCHES.match(name)) / calls,
        busy_ms=busy / 1e3 / calls,
        median_us=statistics.median(item.length for item in kernels or work),
        short_ms=(busy - _covered(long)) / 1e3 / calls,
        transfer_ms=sum(item.length for item in work if TRANSFERS.match(item.name)) / 1e3 / calls,
        waits=sum(1 for name in names if WAITS.match(name)) / calls,
        underfilled_ms=(busy - _covered(filling)) / 1e3 / calls,
    )


def _covered(work: Iterable[GpuWork]) -> float:
    """Return the microseconds in which any of the work ran, which is sorted by begin; streams may overlap."""
    covered, reached = 0.0, float("-inf")
    for item in work:
        covered += max(0.0, item.end - max(item.begin, reached))
        reached = max(reached, item.end)
    return covered
