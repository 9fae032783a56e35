"""The referees of `referees.py` that need a GPU: triton's two, and the profiler."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from unittest import mock

import torch
from referee_callables import Call
from referee_rows import MEASURE_MS, WARM_UP_MS, Row, back_to_back, in_turns, ours, timer
from triton.runtime import driver  # pyright: ignore[reportMissingImports]
from triton.testing import do_bench, do_bench_cudagraph  # pyright: ignore[reportMissingImports]

from profiling.graphs import CudaGraphed
from profiling.trace.device_work import device_work


def against(name: str, call: Call, device: torch.device) -> Iterator[Row]:
    """Yield a row a referee."""
    graphed = CudaGraphed(call, alias_outputs=True)  # a copy of the output would be timed too
    graphed()
    yield in_turns(name, "torch Timer, back to back", lambda: timer(call), lambda: back_to_back(call, device))
    yield in_turns(name, "do_bench, cold", lambda: queued(call), lambda: ours(call, device, cold=True))
    yield in_turns(name, "do_bench, hot", lambda: queued_hot(call), lambda: ours(call, device))
    chain = "chain" in name
    replayed = partial(unrolled, call, calls_ms=1 if chain else MEASURE_MS // 10)
    yield in_turns(name, "do_bench_cudagraph", replayed, lambda: ours(graphed, device))
    if chain:  # between kernels of a microsecond or two are gaps as long as they are, which only ours has
        return
    # Calls in a row, so that the device rests under neither; a trace of many calls takes seconds, so in fewer turns.
    for what, called in (("eager", call), ("captured", graphed)):
        yield in_turns(name, f"kernels, {what}", partial(busy_ms, called), partial(back_to_back, called, device), 7)


def queued(call: Call) -> float:
    """Return do_bench's median in ms; it overwrites a buffer larger than the L2 cache before each call."""
    return do_bench(call, warmup=WARM_UP_MS, rep=MEASURE_MS, return_mode="median")


def queued_hot(call: Call) -> float:
    """Return do_bench's median in ms with that buffer left alone."""

    def leave(_buffer: torch.Tensor) -> None:
        pass

    with mock.patch.object(driver.active, "clear_cache", leave):
        return queued(call)


def unrolled(call: Call, *, calls_ms: int) -> float:
    """Return do_bench_cudagraph's median in ms, the cache left alone; it replays a graph of `calls_ms` ten times.

    Three calls of the chain in one graph, 4000 nodes each, took 7% longer than in a graph of their own: there a graph
    holds one, as ours does.
    """
    return do_bench_cudagraph(call, rep=calls_ms, return_mode="median")


def busy_ms(call: Call) -> float:
    """Return how long kernels, copies and fills of a call ran, in ms, from a profiler trace.

    Raises:
        SystemExit: the profiler saw nothing on the device.

    """
    work = device_work(call, calls=30)
    if work is None:
        raise SystemExit("the profiler saw no kernel: another profiler holds CUPTI, or it may not be used here")
    return work.busy_ms
