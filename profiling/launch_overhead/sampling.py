"""Samples of chains of two operators, a negligible elementwise kernel and a linear: eager calls and graph replays.

Both write to buffers that exist already, so no time of the caching allocator is included. A linear of a model, which
allocates its output and goes through a module, costs more host time than these.

All calls of a chain use the same tensors, which stay in the cache if they fit. A model that reads other weights in each
layer keeps its device busy with smaller operators than the linears here.

Graphs are captured as those of the ceilings: the engine that variants use also copies inputs and clones outputs, and
that time would be in the samples.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from profiling.metrics.clocks import CallClock
from profiling.roofline.measure_ceilings import captured

Array = NDArray[np.float64]
Operator = Callable[[], Any]

#: Calls in a sample; a cost is the slope of the time over them. A stream queues about 1000 kernels before a launch
#: waits for the device (measured in https://forums.developer.nvidia.com/t/68937), and a linear may launch two: a split
#: product and its reduction.
COUNTS = (1, 50, 100, 200, 400)
#: From a negligible operator, at which a launch is measured, to one that takes several times its launch or dispatch;
#: denser where current GPUs stop being starved.
ELEMENTS = {
    "cpu": (1, 256, 1024, 4096, 16384, 65536),
    "cuda": (1, 2**12, 2**16, 2**18, 2**20, 2**21, 2**22, 2**23, 2**24),
}
WIDTHS = {"cpu": (1, 16, 32, 64, 128, 256, 512), "cuda": (64, 256, 512, 1024, 2048, 3072, 4096, 6144, 8192)}


@dataclass(frozen=True)
class Chain:
    """A kind of operator at several sizes."""

    name: Literal["elementwise", "linear"]
    size_name: Literal["elements", "width"]
    sizes: tuple[int, ...]
    operator: Callable[[int], Operator]


def make_chains(device: torch.device, dtype: torch.dtype, seed: int) -> tuple[Chain, Chain]:
    """Return a chain of elementwise operators and a chain of linear layers with one row as input, both on `device`."""

    def elementwise(elements: int) -> Operator:
        # Negation: one kernel, values that never overflow, and no Python number that each call would convert to a
        # tensor, which costs more than the dispatch.
        return torch.ones(elements, dtype=dtype, device=device).neg_

    def linear(width: int) -> Operator:
        generator = torch.Generator(device).manual_seed(seed)
        x = torch.randn(1, width, dtype=dtype, device=device, generator=generator)
        weight = torch.randn(width, width, dtype=dtype, device=device, generator=generator)
        # The call that F.linear makes without a bias. The input is not the last output: repeated products of random
        # matrices shrink to denormals, which are slow on a CPU.
        return partial(torch.mm, x, weight.t(), out=torch.empty_like(x))  # [1, width] × [width, width]

    return (
        Chain("elementwise", "elements", ELEMENTS[device.type], elementwise),
        Chain("linear", "width", WIDTHS[device.type], linear),
    )


@dataclass(frozen=True)
class Series:
    """What is sampled at every number of calls: a chain, at a size, as eager calls or a replay of a graph of so many.

    It begins on an idle device; with `queued`, it waits behind a kernel that blocks the stream until all is queued.
    """

    chain: str
    size: int
    captured: bool = False
    queued: bool = False


#: The clocks of a sample, in the order of its times.
HOST, DEVICE = 0, 1
#: Number of calls -> host and device time of a sample in microseconds; NaN: not measured.
Sampler = Callable[[int], tuple[float, float]]


def sample_rounds(
    samplers: Mapping[Series, Sampler], rounds: int, seed: int, on_progress: Callable[[str], None]
) -> dict[Series, Array]:
    """Sample each series at each of `COUNTS`, once for warm-up and then `rounds` times.

    Return the times in microseconds by series, [clocks, rounds, counts]; NaN: not measured.

    Each round shuffles the series, and the counts within each. A series starts with a discarded sample, because the one
    before may have evicted its data from the caches.
    """
    times = {series: np.full((2, rounds, len(COUNTS)), np.nan) for series in samplers}
    rng = random.Random(seed)
    for number in range(rounds + 1):
        on_progress(f"round {number} of {rounds}" if number else "warm-up")
        for series in rng.sample(list(samplers), len(samplers)):
            samplers[series](COUNTS[0])
            for index in rng.sample(range(len(COUNTS)), len(COUNTS)):
                sample = samplers[series](COUNTS[index])
                if number:
                    times[series][:, number - 1, index] = sample
    return times


def call_repeatedly(operator: Operator, count: int) -> None:
    """Call `operator` `count` times; the loop adds some 20 ns a call, as it does in a model."""
    for _ in repeat(None, count):
        operator()


def idle_sample(clock: CallClock, enqueue: Callable[[], Any]) -> tuple[float, float]:
    """Return (host, device) time of `enqueue` on an idle device in microseconds; on a CPU the device's is NaN."""
    sample = clock.sample(enqueue)
    host_ms, device_ms = sample.wall if sample.host is None else sample.host, sample.device
    return 1e3 * host_ms, math.nan if device_ms is None else 1e3 * device_ms


#: How often a queued sample is tried. Each try blocks the stream four times as long as the one before.
TRIES = 4
#: Clock cycles of a GPU in a millisecond: a slower one is blocked for longer, a faster one is tried again.
CYCLES_PER_MS = 2_000_000


def queued_sample(enqueue: Callable[[], Any], milliseconds: float) -> tuple[float, float]:
    """Return (NaN, device time) of `enqueue` in microseconds: all its work is queued before the device starts on it.

    A spinning kernel of torch blocks the current stream meanwhile; `milliseconds` is the expected time of queueing. The
    sample counts only if the event behind the blocker is still pending after the last call is queued. A full queue, in
    which the host waits for the device, fails this too. Without a sample that counts, the time is NaN.
    """
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for attempt in range(TRIES):
        torch.cuda.synchronize()
        torch.cuda._sleep(math.ceil(milliseconds * 4**attempt * CYCLES_PER_MS))
        start.record()
        enqueue()
        end.record()
        all_queued = not start.query()
        torch.cuda.synchronize()
        if all_queued:
            return math.nan, 1e3 * start.elapsed_time(end)
    return math.nan, math.nan


def samplers_of(chains: Sequence[Chain], device: torch.device) -> dict[Series, Sampler]:
    """Return a sampler for each chain at each of its sizes on a CPU, several on the current CUDA device.

    Only the smallest operator of the first chain is captured: the cost of a node is that of a negligible kernel, and a
    linear may be more than one node.
    """
    clock, samplers = CallClock(device), dict[Series, Sampler]()

    def add(series: Series, calls: Callable[[int], Callable[[], Any]]) -> None:
        samplers[series] = lambda count: idle_sample(clock, calls(count))
        if device.type == "cuda":
            # 20 µs a call is several times the cost of a launch; for a slower host there are further attempts.
            samplers[replace(series, queued=True)] = lambda count: queued_sample(calls(count), 0.5 + 0.02 * count)

    for chain in chains:
        for size in chain.sizes:
            operator = chain.operator(size)
            add(Series(chain.name, size), lambda count, each=operator: partial(call_repeatedly, each, count))
            if device.type == "cuda" and chain is chains[0] and size == chain.sizes[0]:
                # They write to the tensors of the operator, which the samplers of its eager calls hold.
                replays = {count: captured(operator, count).replay for count in COUNTS}
                add(Series(chain.name, size, captured=True), replays.__getitem__)
    return samplers
