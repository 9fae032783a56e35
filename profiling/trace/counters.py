"""Did anything compile, or was a graph captured again, between two moments? Asked around a timed window, in process.

Reads torch's own counters and changes nothing. Where no one has compiled, torch's compiler is not imported either. A
snapshot costs about 2 µs.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class CompileCounters:
    """Totals of this process, or what happened between two snapshots.

    `compiles` is every time Dynamo took up a frame, also when it failed, hit the recompile limit or found the graph
    compiled in a cache on disk; `recompiles` are those of a function it had taken up before (a guard failed).
    `graphs` are the FX graphs handed to a back end. `cudagraph_captures` are recordings of inductor's CUDA-graph trees
    on this thread (`mode="reduce-overhead"`), not graphs that a variant captures by hand; `cudagraph_skips` are the
    times it gave one up. `cache_hits` are graphs that came compiled from a cache on disk: a short prepare time then
    says nothing about a first start.
    """

    compiles: int = 0
    recompiles: int = 0
    graphs: int = 0
    graph_breaks: int = 0
    cudagraph_captures: int = 0
    cudagraph_skips: int = 0
    cache_hits: int = 0

    def since(self, before: CompileCounters) -> CompileCounters:
        """Return what happened after `before`, an earlier snapshot of the same thread.

        After `torch._dynamo.reset()` totals start at zero again: what is there then happened since.
        """
        names = [field.name for field in fields(self)]
        pairs = {name: (getattr(before, name), getattr(self, name)) for name in names}
        return CompileCounters(**{name: now - then if now >= then else now for name, (then, now) in pairs.items()})

    def describe(self) -> str | None:
        """Return e.g. `"1 recompile, 2 CUDA graphs captured"`, or None where nothing happened."""
        counted = (
            (self.compiles - self.recompiles, "compile", "compiles"),
            (self.recompiles, "recompile", "recompiles"),
            (self.graph_breaks, "graph break", "graph breaks"),
            (self.cudagraph_captures, "CUDA graph captured", "CUDA graphs captured"),
            (self.cudagraph_skips, "CUDA graph skipped", "CUDA graphs skipped"),
        )
        return ", ".join(f"{n} {one if n == 1 else many}" for n, one, many in counted if n > 0) or None


def snapshot() -> CompileCounters:
    """Read the counters now. All zero where nothing in this process has touched torch.compile."""
    utils = sys.modules.get("torch._dynamo.utils")
    frames = sys.modules.get("torch._dynamo.convert_frame")
    if utils is None or frames is None:
        return CompileCounters()
    # Compile ids, since counters["frames"] misses fullgraph=True and torch keeps the metrics of only 64 compiles.
    compiles = sum(frames.FRAME_COMPILE_COUNTER.values())
    counters = utils.counters  # a defaultdict: .get, so that reading does not write
    inductor = counters.get("inductor", {})
    return CompileCounters(
        compiles=compiles,
        recompiles=compiles - len(frames.FRAME_COMPILE_COUNTER),
        graphs=counters.get("stats", {}).get("unique_graphs", 0),
        graph_breaks=sum(counters.get("graph_break", {}).values()),
        cudagraph_captures=_cudagraph_captures(),
        cudagraph_skips=inductor.get("cudagraph_skips", 0),
        cache_hits=inductor.get("fxgraph_cache_hit", 0) + counters.get("aot_autograd", {}).get("autograd_cache_hit", 0),
    )


def compile_ids() -> frozenset[str]:
    """Return the ids of all compiles so far, as in torch's logs: "0/1" is the second compile of frame 0."""
    frames = sys.modules.get("torch._dynamo.convert_frame")
    counts: dict[int, int] = {} if frames is None else frames.FRAME_COMPILE_COUNTER
    return frozenset(f"{frame}/{number}" for frame, count in counts.items() for number in range(count))


def _cudagraph_captures() -> int:
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    if trees is None:
        return 0
    containers: dict[int, Any] = getattr(trees.local, "tree_manager_containers", {})
    managers = (container.tree_manager for container in containers.values())
    return sum(_handed_out(manager.graph_counter) for manager in managers if manager is not None)


def _handed_out(counter: object) -> int:
    """Read an `itertools.count` that began at zero without advancing it: its repr is `count(3)` after three numbers."""
    match = re.fullmatch(r"count\((\d+)\)", repr(counter))
    return int(match.group(1)) if match else 0
