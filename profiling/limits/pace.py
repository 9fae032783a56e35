"""Seconds of a call at its best, with the launches taken out where the device allows it.

A ceiling is what the device can do, so the fastest of several takes counts: what else runs on the machine only adds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import cache
from itertools import repeat
from typing import Any

import torch

Call = Callable[[], Any]
Pace = Callable[[Call], float]

TAKES = 5
#: Launches are repeated within a take until it lasts about this long, so that the clock's own cost is none of it.
TAKE_SECONDS = 1e-3
MOST_CALLS = 200
#: How long single calls on a CPU are repeated: where other programs run too, few of them are left alone.
CPU_SECONDS, LEAST_CALLS = 0.05, 5


def pace_of(device: torch.device) -> Pace:
    """Return what measures the seconds of a call on `device`."""
    return cuda_seconds if device.type == "cuda" else cpu_seconds


def cpu_seconds(call: Call) -> float:
    """Return the seconds of the fastest single `call`, as the host's clock has them."""
    call()  # pays for first touches and lazy initialisation
    best, calls, end = float("inf"), 0, time.perf_counter() + CPU_SECONDS
    while calls < LEAST_CALLS or time.perf_counter() < end:
        start = time.perf_counter_ns()
        call()
        best, calls = min(best, time.perf_counter_ns() - start), calls + 1
    return best / 1e9


def launch_seconds(call: Call) -> float:
    """Return the host's seconds for one of many calls in a row, which is not waited for: the fastest take's mean."""
    _host_take(call, MOST_CALLS)
    return min(_host_take(call, MOST_CALLS) for _ in range(TAKES))


def cuda_seconds(call: Call) -> float:
    """Return the seconds of `call` on the current CUDA device: many of them in one graph, so no launch is in it."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def take(work: Call) -> float:
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / 1e3

    take(call)
    count = _count_for(take(call))
    graph = captured(call, count)
    graph.replay()
    return min(take(graph.replay) for _ in range(TAKES)) / count


def captured(call: Call, count: int) -> torch.cuda.CUDAGraph:
    """Capture `count` calls of `call`, which ran before: a capture must load no kernel. Its tensors have to live on."""
    side = _side_stream(torch.cuda.current_device())
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()  # makes the workspace of this stream, which a capture would put into its own pool
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        for _ in repeat(None, count):
            call()
    return graph


@cache
def _side_stream(_device: int) -> torch.cuda.Stream:
    """Return the device's one stream for captures: a library keeps a workspace for each that it ever saw."""
    return torch.cuda.Stream()


def _count_for(seconds: float) -> int:
    return min(MOST_CALLS, max(1, math.ceil(TAKE_SECONDS / max(seconds, 1e-9))))


def _host_take(call: Call, count: int) -> float:
    start = time.perf_counter_ns()
    for _ in repeat(None, count):
        call()
    return (time.perf_counter_ns() - start) / 1e9 / count
