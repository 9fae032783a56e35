"""How each series is sampled: eager calls and replays, on a free device and behind a gate.

Graphs are captured here in a few lines of their own: the engine of the variants copies new inputs in and clones the
outputs, which a step owes its caller and which would be in these numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from profiling.calibration.chains import Chain, Operator
from profiling.calibration.samplers import Enqueue, Gate, Timing, call_times, free_sample, host_sample
from profiling.calibration.sweep import Series, Take

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
