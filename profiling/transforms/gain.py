"""What a pass gains: replays of the graph before it and after it, taken in turns so that drift is in both."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from profiling.core.graphs import CudaGraphed

ROUNDS = 11
SPAN_MS = 20.0  # long enough that the events' resolution and the launch of the first replay do not count


def interleaved(before: Callable[[], float], after: Callable[[], float], rounds: int) -> tuple[float, float]:
    """Return the medians of both clocks, which are read in turns, the first of each round changing."""
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            times[side].append((before, after)[side]())
    return statistics.median(times[0]), statistics.median(times[1])


def replay_ms(
    before: Callable[..., Any],
    after: Callable[..., Any],
    inputs: Mapping[str, Tensor],
    *,
    warmup: int,
    state: Callable[[], Iterable[Tensor]],
) -> tuple[float, float]:
    """Capture both and return the device time of a replay of each, in ms; the copy of the inputs is part of both.

    `state` gives the tensors that a call may change, which capturing leaves as they were.
    """
    graphs = [CudaGraphed(module, warmup=warmup, alias_outputs=True, state=state) for module in (before, after)]
    try:
        clocks = [_clock(graph, inputs) for graph in graphs]
        return interleaved(clocks[0], clocks[1], ROUNDS)
    finally:
        for graph in graphs:
            graph.clear()


def _clock(graph: Callable[..., Any], inputs: Mapping[str, Tensor]) -> Callable[[], float]:
    """Return what times one replay, as the mean of as many as fill the span."""

    def elapsed(calls: int) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(calls):
            graph(**inputs)
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / calls

    graph(**inputs)  # captures
    calls = max(1, round(SPAN_MS / max(elapsed(3), 1e-3)))
    return lambda: elapsed(calls)
