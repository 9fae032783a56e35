"""Samples of each operator: eager calls and graph replays, on an idle device and behind a stream blocker.

Graphs are captured as those of the ceilings: the engine that variants use also copies inputs and clones outputs, and
that time would be in the samples.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any, Literal

import numpy as np
import torch

from profiling.launch_overhead.chains import Chain, Operator
from profiling.launch_overhead.fits import Array, Lines, fit_lines
from profiling.metrics.clocks import CudaClock, WallClock, clock_of
from profiling.roofline.measure_ceilings import captured

Mode = Literal["eager", "eager_queued", "graph", "graph_queued"]


@dataclass(frozen=True)
class Series:
    """What is sampled at every number of calls: a chain, at a size, in a mode.

    - eager: calls on an idle device; eager_queued: calls that wait behind a stream blocker until all are queued.
    - graph: a graph of that many calls, replayed on an idle device; graph_queued: the same behind a stream blocker.
    """

    chain: str
    size: int
    mode: Mode


@dataclass(frozen=True)
class Timing:
    """Times of one sample in microseconds; NaN: not measured."""

    host_us: float = math.nan
    device_us: float = math.nan


@dataclass(frozen=True)
class SeriesTimes:
    """All samples of a series in microseconds, [rounds, counts] each; NaN: not measured."""

    counts: tuple[int, ...]
    host: Array
    device: Array

    def host_lines(self) -> Lines:
        """Return the host time over the number of calls, a line for each round."""
        return fit_lines(self.counts, self.host)

    def device_lines(self) -> Lines:
        """Return the device time over the number of calls, a line for each round."""
        return fit_lines(self.counts, self.device)


#: Number of calls -> sample.
Sampler = Callable[[int], Timing]


def sample_rounds(
    samplers: Mapping[Series, Sampler],
    counts: Sequence[int],
    rounds: int,
    seed: int,
    on_progress: Callable[[str], None],
) -> dict[Series, SeriesTimes]:
    """Sample each series at each of `counts`, once for warm-up and then `rounds` times.

    Each round shuffles the series, and the counts within each. A series starts with a discarded sample, because the one
    before may have evicted its data from the caches.
    """
    shape = (rounds, len(counts))
    times = {key: SeriesTimes(tuple(counts), np.full(shape, np.nan), np.full(shape, np.nan)) for key in samplers}
    rng = random.Random(seed)
    for number in range(rounds + 1):
        on_progress(f"round {number} of {rounds}" if number else "warm-up")
        for series in rng.sample(list(samplers), len(samplers)):
            samplers[series](counts[0])
            for index in rng.sample(range(len(counts)), len(counts)):
                timing = samplers[series](counts[index])
                if number:
                    times[series].host[number - 1, index] = timing.host_us
                    times[series].device[number - 1, index] = timing.device_us
    return times


def call_repeatedly(operator: Operator, count: int) -> None:
    """Call `operator` `count` times; the loop adds some 20 ns a call, as it does in a model."""
    for _ in repeat(None, count):
        operator()


def idle_sample(clock: CudaClock | WallClock, enqueue: Callable[[], Any]) -> Timing:
    """Time `enqueue` on an idle device, which works while the host goes on; on a CPU the host is the device."""
    sample = clock.sample(enqueue)
    host_ms, device_ms = sample.wall if sample.host is None else sample.host, sample.device
    return Timing(1e3 * host_ms, math.nan if device_ms is None else 1e3 * device_ms)


class StreamBlocker:
    """Blocks the current stream for a while by a spinning kernel of torch.

    The unit of `torch.cuda._sleep` is clock cycles, whose duration is measured first.
    """

    #: Attempts at a sample, each blocked four times as long as the one before.
    TRIES = 4

    #: Cycles of the kernel whose duration is measured.
    PROBE = 2_000_000

    def __init__(self) -> None:
        torch.cuda._sleep(20 * self.PROBE)  # loads the kernel, and gives the clocks time to rise
        start, end = _events()
        start.record()
        torch.cuda._sleep(self.PROBE)
        end.record()
        torch.cuda.synchronize()
        self._cycles_per_ms = self.PROBE / start.elapsed_time(end)

    def sample(self, enqueue: Callable[[], Any], milliseconds: float) -> Timing:
        """Return the device time of `enqueue`, all of whose work is queued before the device starts on it.

        `milliseconds` is the expected time of queueing. The sample counts only if the event behind the blocker is still
        pending after the last call is queued. A full queue, in which the host waits for the device, fails this too.
        Without a sample that counts, the time is NaN.
        """
        for attempt in range(self.TRIES):
            start, end = _events()
            torch.cuda.synchronize()
            torch.cuda._sleep(math.ceil(milliseconds * 4**attempt * self._cycles_per_ms))
            start.record()
            enqueue()
            end.record()
            all_queued = not start.query()
            torch.cuda.synchronize()
            if all_queued:
                return Timing(device_us=start.elapsed_time(end) * 1e3)
        return Timing()


def _events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)


def samplers_of(chains: Sequence[Chain], counts: Sequence[int], device: torch.device) -> dict[Series, Sampler]:
    """Return a sampler for each chain at each of its sizes on a CPU, several on the current CUDA device.

    Only the smallest operator of the first chain is captured: the cost of a node is that of a negligible kernel, and a
    linear may be more than one node.
    """
    clock, blocker = clock_of(device), StreamBlocker() if device.type == "cuda" else None
    samplers: dict[Series, Sampler] = {}
    for chain in chains:
        for size in chain.sizes:
            call = partial(call_repeatedly, chain.operator(size))
            samplers[Series(chain.name, size, "eager")] = _idle(clock, call)
            if blocker is not None:
                samplers[Series(chain.name, size, "eager_queued")] = _queued(blocker, call)
    if blocker is not None:
        first = chains[0]
        operator = first.operator(first.sizes[0])
        graphs = {count: captured(operator, count) for count in counts}

        def replay(count: int, _owner: Operator = operator) -> None:  # which owns the tensors that the graphs write to
            graphs[count].replay()

        samplers[Series(first.name, first.sizes[0], "graph")] = lambda count: idle_sample(clock, graphs[count].replay)
        samplers[Series(first.name, first.sizes[0], "graph_queued")] = _queued(blocker, replay)
    return samplers


def _idle(clock: CudaClock | WallClock, enqueue: Callable[[int], None]) -> Sampler:
    return lambda count: idle_sample(clock, partial(enqueue, count))


def _queued(blocker: StreamBlocker, enqueue: Callable[[int], None]) -> Sampler:
    # 20 µs a call is several times the cost of a launch; for a slower host the blocker makes further attempts.
    return lambda count: blocker.sample(partial(enqueue, count), milliseconds=0.5 + 0.02 * count)
