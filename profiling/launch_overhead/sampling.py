"""How each series is sampled: eager calls and replays, on a free device and behind a gate.

Graphs are captured here in a few lines of their own: the engine of the variants copies new inputs in and clones the
outputs, which a step owes its caller and which would be in these numbers.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any, Literal

import numpy as np
import torch

from profiling.launch_overhead.chains import Chain, Operator, SizeName
from profiling.launch_overhead.fits import Array, Lines, fit_lines

Enqueue = Callable[[], Any]


@dataclass(frozen=True)
class Timing:
    """Microseconds of one sample; what is None was not measured."""

    host_us: float | None = None
    device_us: float | None = None


def call_times(operator: Callable[[], Any], count: int) -> None:
    """Call `operator` `count` times; a turn of this loop is some 20 ns, and in the numbers as it is in any model's."""
    for _ in repeat(None, count):
        operator()


def host_sample(enqueue: Enqueue) -> Timing:
    """Time `enqueue` on a CPU, where it is over when it returns."""
    start = time.perf_counter_ns()
    enqueue()
    return Timing(host_us=(time.perf_counter_ns() - start) / 1e3)


def free_sample(enqueue: Enqueue) -> Timing:
    """Time `enqueue` on an idle CUDA device, which works while the host goes on."""
    start, end = _events()
    torch.cuda.synchronize()
    start.record()
    begun = time.perf_counter_ns()
    enqueue()
    returned = time.perf_counter_ns()
    end.record()
    torch.cuda.synchronize()
    return Timing(host_us=(returned - begun) / 1e3, device_us=start.elapsed_time(end) * 1e3)


class Gate:
    """Holds the current device back for a while, by a kernel that spins or, where torch has none, by large products.

    `torch.cuda._sleep` is private and may go; it counts clock cycles, so how long one takes is measured first.
    """

    #: How often a sample is taken again, behind a gate four times as long each, before it counts as not measurable.
    TRIES = 4

    def __init__(self, device: torch.device) -> None:
        spin = getattr(torch.cuda, "_sleep", None)
        self._hold, probe = (spin, 2_000_000) if spin is not None else (_products(device), 4)
        self._hold(20 * probe)  # loads the kernel, and gives the clocks time to rise
        start, end = _events()
        start.record()
        self._hold(probe)
        end.record()
        torch.cuda.synchronize()
        self._units_per_ms = probe / start.elapsed_time(end)

    def sample(self, enqueue: Enqueue, milliseconds: float) -> Timing:
        """Return the device's time for `enqueue`, all of it queued before the device gets to its beginning.

        `milliseconds` is how long queueing may take. Whether it was enough is looked at, not hoped for: the event
        behind the gate must still be pending when the last call is queued. A full queue fails that too, since the
        host then waits for the device. When no try succeeds the time is absent.
        """
        for attempt in range(self.TRIES):
            start, end = _events()
            torch.cuda.synchronize()
            self._hold(math.ceil(milliseconds * 4**attempt * self._units_per_ms))
            start.record()
            enqueue()
            end.record()
            in_time = not start.query()
            torch.cuda.synchronize()
            if in_time:
                return Timing(device_us=start.elapsed_time(end) * 1e3)
        return Timing()


def _events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)


def _products(device: torch.device) -> Callable[[int], None]:
    square = torch.zeros(4096, 4096, device=device)
    product = torch.empty_like(square)

    def multiply(times: int) -> None:
        call_times(lambda: torch.mm(square, square, out=product), times)

    return multiply


Mode = Literal["eager", "eager_queued", "graph", "graph_queued"]
Take = Callable[[int], Timing]


@dataclass(frozen=True)
class Series:
    """What is sampled at every count: a chain, at a size, in a mode.

    eager: calls on a free device. eager_queued: calls that wait behind a gate until all are there. graph: a graph of
    that many calls, replayed on a free device. graph_queued: the same behind a gate.
    """

    chain: str
    size_name: SizeName
    size: int
    mode: Mode


@dataclass(frozen=True)
class Times:
    """All samples of a series, microseconds, [rounds, counts] each; NaN where there was none."""

    counts: tuple[int, ...]
    host: Array
    device: Array

    def host_lines(self) -> Lines:
        """Return the host's time over the number of calls, a line a round."""
        return fit_lines(self.counts, self.host)

    def device_lines(self) -> Lines:
        """Return the device's time over the number of calls, a line a round."""
        return fit_lines(self.counts, self.device)


def take_rounds(
    takers: Mapping[Series, Take],
    counts: Sequence[int],
    rounds: int,
    seed: int,
    on_progress: Callable[[str], None],
) -> dict[Series, Times]:
    """Take each series at each of `counts`, `rounds` times and once before that for warm-up, which is thrown away.

    Series come in a new order each round, and so do the counts of each; a call of the least count goes before them,
    since the series before has had the caches.
    """
    shape = (rounds, len(counts))
    times = {key: Times(tuple(counts), np.full(shape, np.nan), np.full(shape, np.nan)) for key in takers}
    rng = random.Random(seed)
    for turn in range(rounds + 1):
        on_progress(f"round {turn} of {rounds}" if turn else "warm-up")
        for series in rng.sample(list(takers), len(takers)):
            takers[series](counts[0])
            for index in rng.sample(range(len(counts)), len(counts)):
                timing = takers[series](counts[index])
                if turn:
                    times[series].host[turn - 1, index] = _or_nan(timing.host_us)
                    times[series].device[turn - 1, index] = _or_nan(timing.device_us)
    return times


def points(times: Mapping[Series, Times]) -> list[dict[str, Any]]:
    """Return every measured point: {chain, elements or width, mode, count, host_us, device_us: medians, n: samples}."""
    return [
        {"chain": series.chain, series.size_name: series.size, "mode": series.mode, "count": count, **clocks}
        for series, measured in times.items()
        for index, count in enumerate(measured.counts)
        if (clocks := _medians(measured, index))
    ]


def _medians(measured: Times, index: int) -> dict[str, float]:
    clocks: dict[str, float] = {}
    for name, column in (("host_us", measured.host[:, index]), ("device_us", measured.device[:, index])):
        there = column[~np.isnan(column)]
        if there.size:
            clocks |= {name: float(np.median(there)), "n": int(there.size)}
    return clocks


def _or_nan(value: float | None) -> float:
    return np.nan if value is None else value


Sample = Callable[[Enqueue], Timing]


@dataclass(frozen=True)
class _Replays:
    """Graphs of an operator by number of calls, and the operator: they write to its tensors, which have to live."""

    operator: Operator
    graphs: Mapping[int, torch.cuda.CUDAGraph]

    def replay(self, count: int) -> None:
        self.graphs[count].replay()


def cpu_takers(chains: Sequence[Chain]) -> dict[Series, Take]:
    """Return how to sample each chain at each of its sizes on a CPU: calls, one after the other."""
    return {
        Series(chain.name, chain.size_name, size, "eager"): _eager(chain.operator(size), host_sample)
        for chain in chains
        for size in chain.sizes
    }


def cuda_takers(chains: Sequence[Chain], counts: Sequence[int], device: torch.device) -> dict[Series, Take]:
    """Return how to sample each chain at each of its sizes on the current CUDA device.

    Only the smallest elementwise operator is captured: a node's cost is that of a kernel which does nothing, and a
    linear may be more than one node.
    """
    gate = Gate(device)
    takers: dict[Series, Take] = {}
    for chain in chains:
        for size in chain.sizes:
            series, operator = partial(Series, chain.name, chain.size_name, size), chain.operator(size)
            takers[series("eager")] = _eager(operator, free_sample)
            takers[series("eager_queued")] = _queued(gate, partial(call_times, operator))
    first = chains[0]
    captured = first.operator(first.sizes[0])
    replays = _Replays(captured, {count: _captured(captured, count) for count in counts})
    smallest = partial(Series, first.name, first.size_name, first.sizes[0])
    takers[smallest("graph")] = lambda count: free_sample(replays.graphs[count].replay)
    takers[smallest("graph_queued")] = _queued(gate, replays.replay)
    return takers


def _eager(operator: Operator, sample: Sample) -> Take:
    return lambda count: sample(partial(call_times, operator, count))


def _queued(gate: Gate, enqueue: Callable[[int], None]) -> Take:
    # 20 µs a call is several times what a launch takes; a slower host is met by the gate's further tries.
    return lambda count: gate.sample(partial(enqueue, count), milliseconds=0.5 + 0.02 * count)


def _captured(operator: Operator, count: int) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        operator()  # loads the kernel, which a capture must not
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        call_times(operator, count)
    return graph
