"""What a pass gains: replays of the graph before it and after it, taken in turns so that drift is in both."""

from __future__ import annotations

import copy
import functools
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from profiling.components.reference import relative_l2
from profiling.errors import InputError
from profiling.fx_passes.graph_facts import mutates
from profiling.graphs import CudaGraphed


@dataclass(frozen=True, kw_only=True)
class Transform(ABC):
    """A pass over a graph that `profiling.fx_passes.tracer.trace` made.

    Nodes without facts, which an earlier pass made, are left alone until `facts.propagate` has seen them.
    """

    def __call__(self, module: fx.GraphModule) -> fx.GraphModule:
        """Return the rewritten module, `meta["replaced"]` the number of places; `module`'s graph changes with it."""
        with torch.no_grad():
            replaced = self.rewrite(module)
        rewritten = pruned(module)
        rewritten.meta["replaced"] = replaced
        return rewritten

    @abstractmethod
    def rewrite(self, module: fx.GraphModule) -> int:
        """Rewrite the module's graph in place and return how many places were replaced."""


def pruned(module: fx.GraphModule) -> fx.GraphModule:
    """Return the module without nodes that nothing uses and without the tensors that only those used."""
    module.graph.eliminate_dead_code(is_impure_node=lambda node: bool(mutates(node)) or node.is_impure())
    return fx.GraphModule(module, module.graph, module._get_name())


Pass = Callable[[fx.GraphModule], fx.GraphModule]
#: Runs a module on the component's inputs, writes its facts and returns its output.
Propagate = Callable[[fx.GraphModule], Any]


@dataclass(frozen=True)
class Stage:
    """What one pass did. `replaced` is what it counted (None: it does not count), `rel_l2` how far the output moved."""

    name: str
    before: fx.GraphModule
    after: fx.GraphModule
    replaced: int | None
    rel_l2: float


def stages(traced: fx.GraphModule, passes: Sequence[Pass], propagate: Propagate) -> Iterator[Stage]:
    """Apply each pass to a copy of what the one before it left; weights that stay are shared.

    Raises:
        InputError: a pass returns no GraphModule.

    """
    before, output = traced, propagate(traced)
    for each in passes:
        after = each(fx.GraphModule(before, copy.deepcopy(before.graph), before._get_name()))
        if not isinstance(after, fx.GraphModule):
            raise InputError(f"pass {pass_name(each)} returned {type(after).__name__}. Return a torch.fx.GraphModule.")
        replaced = after.meta.get("replaced")
        new_output = propagate(after)
        after = pruned(after)
        yield Stage(pass_name(each), before, after, replaced, relative_l2(new_output, output))
        before, output = after, new_output


def pass_name(each: Pass) -> str:
    """Return the name of a pass: a function's or a class's."""
    function = each.func if isinstance(each, functools.partial) else each
    return getattr(function, "__name__", type(function).__name__)


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
