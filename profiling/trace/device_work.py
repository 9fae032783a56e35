"""GPU work of one call: number and duration of kernels, launches, transfers, waits of the host.

They are measured in a short profiler pass without shapes, stacks or files. The profiler slows down the host. Kernel
durations are right nevertheless, because they come from CUPTI; the duration of the call must come from another pass.
"""

from __future__ import annotations

import os
import re
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from time import perf_counter, sleep

import torch
from torch.autograd.profiler import profile
from torch.torch_version import TorchVersion

from profiling.results.explanations import SHORT_US, DeviceWork
from profiling.trace.events import TRANSFERS, WAITS, GpuWork, Timeline, read_events, timeline, traced_calls

#: Calls of the CUDA runtime and driver that launch work.
_LAUNCHES = re.compile(r"(cuda|cu)(Launch(Cooperative)?Kernel|Memcpy|Memset|GraphLaunch)")
#: Kernels with fewer blocks than multiprocessors underfill a GPU up to this duration in microseconds; a longer one has
#: enough work to fill it, and is slow.
FILLABLE_US = 20.0
#: Torch's profiler detaches CUPTI after a session if this variable is 1.
_DETACHES = "TEARDOWN_CUPTI"
_THREADS = Path("/proc/self/task")
#: Most seconds for which `detached_afterwards` waits: it takes a few milliseconds, longer where many processes compute.
_DETACHING_S = 2.0


def device_work(call: Callable[[], object], *, calls: int = 1) -> DeviceWork | None:
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
    """Profile `calls` calls, each inside `around()`, after one that warms up: CUPTI misses the first launches.

    On a CPU that one has a session of its own, since the trace is read as a whole.

    This is the autograd profiler: `torch.profiler.profile` would import the compiler (4 s). With `shapes`, and always
    on a CPU, operators have shapes.
    """
    if not cuda:
        with profile(use_kineto=True, record_shapes=True):
            call()
    profiler = profile(use_device="cuda" if cuda else None, use_kineto=True, record_shapes=shapes or not cuda)
    with detached_afterwards(cuda) as traced, profiler:
        if cuda:
            call()
            torch.cuda.synchronize()
            traced()
        for number in range(calls):
            with torch.profiler.record_function(f"profiling/call/trace/{number}"), around():
                call()
        if cuda:
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory(prefix="profiling-") as folder:
        profiler.export_chrome_trace(f"{folder}/trace.json")
        return timeline(read_events(Path(folder) / "trace.json"))


@contextmanager
def detached_afterwards(on_device: bool) -> Iterator[Callable[[], None]]:
    """Make torch's profiler detach CUPTI from the process after the session in this block, and wait for that.

    CUPTI that stays attached remembers CUDA graphs that are freed later, and crashes in the next session at the replay
    of a graph that was captured since (torch 2.11, CUDA 13.0). Torch detaches it in a thread, which ends after the next
    call into CUDA; the next session would lose its kernels if it began before. Nothing happens with a CUDA below 12.6,
    where detaching crashes itself, or where the user has set TEARDOWN_CUPTI=0.

    Yields a function to call once a call was traced: threads that run by then stay, and are not waited for.
    """
    detaches = on_device and _THREADS.is_dir() and TorchVersion(torch.version.cuda or "0") >= "12.6"
    detaches = detaches and os.environ.setdefault(_DETACHES, "1") == "1"
    others = set[Path]()

    def traced() -> None:
        others.update(_THREADS.iterdir() if detaches else ())

    traced()
    try:
        yield traced
    finally:
        until = perf_counter() + _DETACHING_S
        with suppress(RuntimeError):  # the call has broken the device
            while detaches and perf_counter() < until and not others.issuperset(_THREADS.iterdir()):
                torch.cuda.current_stream().query()
                sleep(1e-3)


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
