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

from profiling.core.graphs import CudaGraphed
from profiling.tracing.device_work import device_work


def against(name: str, call: Call, device: torch.device) -> Iterator[Row]:
    """Yield a row a referee."""
    graphed = CudaGraphed(call, alias_outputs=True)  # a copy of the output would be timed too
    graphed()
    yield in_turns(name, "torch Timer, back to back", lambda: timer(call), lambda: back_to_back(call, device))
    yield in_turns(name, "do_bench, cold", lambda: queued(call), lambda: ours(call, device, cold=True))
    yield in_turns(name, "do_bench, hot", lambda: queued_hot(call), lambda: ours(call, device))
    replayed = partial(unrolled, call, short=_is_short(name))
    yield in_turns(name, "do_bench_cudagraph", replayed, lambda: ours(graphed, device))
    yield _kernels(name, "kernels, eager", call, device)
    yield _kernels(name, "kernels, captured", graphed, device)


def _kernels(name: str, referee: str, call: Call, device: torch.device) -> Row:
    """Hold the kernels' sum against calls in a row: under both the device never rests, so its clocks are the same.

    Between kernels of a microsecond or two the gaps are as long as they are, and only ours has them.
    """
    short = _is_short(name)
    calls = 5 if short else 100  # few calls find other clocks than many
    theirs, mine = partial(busy_ms, call, calls=calls), partial(back_to_back, call, device)
    return in_turns(name, referee, theirs, mine, count=3, held=not short)  # a trace of many calls takes seconds


def _is_short(name: str) -> bool:
    return "chain" in name


def queued(call: Call) -> float:
    """Return do_bench's median in ms; it overwrites a buffer larger than the L2 cache before each call."""
    return do_bench(call, warmup=WARM_UP_MS, rep=MEASURE_MS, return_mode="median")


def queued_hot(call: Call) -> float:
    """Return do_bench's median in ms with that buffer left alone."""

    def leave(_buffer: torch.Tensor) -> None:
        pass

    with mock.patch.object(driver.active, "clear_cache", leave):
        return queued(call)


def unrolled(call: Call, *, short: bool) -> float:
    """Return do_bench_cudagraph's median in ms, the cache left alone; it replays a graph of `rep` ms ten times.

    Three calls of the chain in one graph, 4000 nodes each, took 7% longer than in a graph of their own: there a graph
    holds one, as ours does.
    """
    return do_bench_cudagraph(call, rep=1 if short else MEASURE_MS // 10, return_mode="median")


def busy_ms(call: Call, *, calls: int) -> float:
    """Return how long kernels, copies and fills of a call ran, in ms, from a profiler trace of so many calls.

    Raises:
        SystemExit: the profiler saw nothing on the device.

    """
    work = device_work(call, calls=calls)
    if work is None:
        raise SystemExit("the profiler saw no kernel: another profiler holds CUPTI, or it may not be used here")
    return work.busy_ms
