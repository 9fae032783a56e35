"""Counters of torch's compiler, read before and after a timed window to detect compiles and captures inside it.

Reading changes nothing and takes about 2 µs. Where nothing has used torch.compile, the compiler is not imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiling.trace.compile_log import failed_guard

#: Why a step under torch.compile ran without one compiled graph.
COMPILES_NOTHING = (
    "torch.compile compiled nothing and ran eagerly: it refuses torch.nn.LSTM, GRU and RNN (measure those with "
    "cuda_graph), the module computes nothing or has torch.compiler.disable, or TORCH_COMPILE_DISABLE or "
    "TORCHDYNAMO_DISABLE is set"
)


def unsupported() -> dict[str, int]:
    """Return how often Dynamo met each thing in this process that it does not support."""
    utils = sys.modules.get("torch._dynamo.utils")
    return {} if utils is None else dict(utils.counters.get("unimplemented", {}))


def nothing_compiled(before: Mapping[str, int] | None = None) -> str:
    """Return why a call under torch.compile ran without one compiled graph; `before` is what was unsupported before."""
    texts = [text for text, times in unsupported().items() if times > (before or {}).get(text, 0)]
    if not texts:
        return COMPILES_NOTHING
    kind, *more = texts[-1].splitlines()
    explanation = next((line.partition("Explanation:")[2].strip() for line in more if "Explanation:" in line), kind)
    loop = "; in a loop, so Dynamo leaves the whole function eager" if "graph break in loop" in texts[-1] else ""
    other = " (measure it with cuda_graph)" if "RNN" in kind else ""
    return f"torch.compile compiled nothing and ran eagerly: {explanation.rstrip('.')}{loop}{other}"


def recompile_reason() -> str | None:
    """Return why Dynamo compiled something anew last: the value, the line and its code; None: it did not."""
    utils = sys.modules.get("torch._dynamo.utils")
    recompiled = [] if utils is None else [each for each in utils.get_compilation_metrics() if each.recompile_reason]
    if not recompiled:
        return None
    guard, file, line, code = failed_guard(vars(recompiled[-1]), Path.cwd())
    return f"{guard} no longer holds at {file}:{line} ({code})" if code else guard


def recompiles_in_each_call(reason: str | None) -> str:
    """Return the sentence on a function that is compiled again and again."""
    why = f": {reason}" if reason else ""
    return (
        f"torch.compile recompiles in each call{why}, until a call fails at its limit. A Python value is compiled into "
        "the code: keep it in a tensor and change that in place"
    )


class Recompiles:
    """Makes the calls of a trajectory, and notes whether torch's compiler compiles something again in each of them."""

    #: The first call, from 1, in which a recompile is one of all later calls: before it, shapes may still be new.
    STEADY = 4

    def __init__(self) -> None:
        self._calls = 0
        self.reason: str | None = None

    def __call__(self, run: Callable[[], Any]) -> Any:
        """Make a call and return its output."""
        before = snapshot()
        output = run()
        self._calls += 1
        if self._calls >= self.STEADY and self.reason is None and snapshot().since(before).recompiles:
            self.reason = recompiles_in_each_call(recompile_reason())
        return output


@dataclass(frozen=True)
class CompileCounters:
    """Totals of this process, or the difference of two snapshots.

    `compiles` counts the frames that Dynamo compiled, including failures, hits of the recompile limit and graphs loaded
    from the cache on disk. `recompiles` counts those of a function that had been compiled before (a guard failed).
    `graphs` counts the FX graphs given to a back end. `cudagraph_captures` counts the graphs captured by inductor's
    CUDA-graph trees (`mode="reduce-overhead"`), not those that a variant captures itself, and `cudagraph_skips` those
    that inductor refused to capture. `cache_hits` counts graphs loaded from the cache on disk: above 0, the preparation
    was a warm start.
    """

    compiles: int = 0
    recompiles: int = 0
    graphs: int = 0
    graph_breaks: int = 0
    cudagraph_captures: int = 0
    cudagraph_skips: int = 0
    cache_hits: int = 0

    def since(self, before: CompileCounters) -> CompileCounters:
        """Return the difference to `before`, an earlier snapshot of the same thread.

        `torch._dynamo.reset()` sets totals to zero, so a total below its earlier value is itself the difference.
        """
        return CompileCounters(**_differences(vars(before), vars(self)))

    def describe(self) -> str | None:
        """Return the counts in words, `"1 recompile, 2 CUDA graphs captured"` for example; None if all are zero."""
        counted = (
            (self.compiles - self.recompiles, "compile", "compiles"),
            (self.recompiles, "recompile", "recompiles"),
            (self.graph_breaks, "graph break", "graph breaks"),
            (self.cudagraph_captures, "CUDA graph captured", "CUDA graphs captured"),
            (self.cudagraph_skips, "CUDA graph skipped", "CUDA graphs skipped"),
        )
        return ", ".join(f"{n} {one if n == 1 else many}" for n, one, many in counted if n > 0) or None


def snapshot() -> CompileCounters:
    """Return the counters now; all are zero where nothing in this process has used torch.compile."""
    utils = sys.modules.get("torch._dynamo.utils")
    frames = sys.modules.get("torch._dynamo.convert_frame")
    if utils is None or frames is None:
        return CompileCounters()
    compiles, captures, _ = compile_totals()
    counters = utils.counters  # a defaultdict: .get, so that reading does not write
    inductor = counters.get("inductor", {})
    return CompileCounters(
        compiles=compiles,
        recompiles=compiles - len(frames.FRAME_COMPILE_COUNTER),
        graphs=counters.get("stats", {}).get("unique_graphs", 0),
        graph_breaks=sum(counters.get("graph_break", {}).values()),
        cudagraph_captures=captures,
        cudagraph_skips=inductor.get("cudagraph_skips", 0),
        cache_hits=inductor.get("fxgraph_cache_hit", 0) + counters.get("aot_autograd", {}).get("autograd_cache_hit", 0),
    )


def compile_ids() -> frozenset[str]:
    """Return the ids of all compiles so far, as in torch's logs: "0/1" is the second compile of frame 0."""
    frames = sys.modules.get("torch._dynamo.convert_frame")
    counts: dict[int, int] = {} if frames is None else frames.FRAME_COMPILE_COUNTER
    return frozenset(f"{frame}/{number}" for frame, count in counts.items() for number in range(count))


def compile_totals() -> tuple[int, int, float]:
    """Return (`compiles` and `cudagraph_captures` of `snapshot`, ms that Dynamo compiled with its back end) so far.

    This is what a loop reads after every frame: it takes a quarter of the time of a snapshot.
    """
    utils = sys.modules.get("torch._dynamo.utils")
    frames = sys.modules.get("torch._dynamo.convert_frame")
    if utils is None or frames is None:
        return 0, 0, 0.0
    # Compile ids, since counters["frames"] misses fullgraph=True and torch keeps the metrics of only 64 compiles.
    compiles = sum(frames.FRAME_COMPILE_COUNTER.values())
    captures = len(utils.compilation_time_metrics.get("CUDAGraphNode.record", ()))
    return compiles, captures, utils.cumulative_time_spent_ns.get("entire_frame_compile", 0) / 1e6


def compile_seconds() -> dict[str, float]:
    """Return the seconds that this process has spent in each phase of torch's compiler so far.

    `dynamo` is tracing, guards included; `inductor` is the back end: AOTAutograd, inductor, and the compilers of Triton
    or C++; `autotune` is timing kernels to choose one; `capture` is recording inductor's own CUDA graphs.
    """
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return {}
    spent, times = utils.cumulative_time_spent_ns, utils.compilation_time_metrics

    def total(*endings: str) -> float:
        return sum(sum(values) for name, values in tuple(times.items()) if name.endswith(endings))

    backend = spent.get("backend_compile", 0) / 1e9
    in_backend = total("_template_autotuning", "_template_precompiling")
    return {
        "dynamo": spent.get("entire_frame_compile", 0) / 1e9 - backend,
        "inductor": backend - in_backend,
        "autotune": in_backend + total("benchmark_all_configs", "coordinate_descent_tuning"),
        "capture": total("CUDAGraphNode.record"),
    }


def seconds_since(before: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of each phase of `compile_seconds` since it returned `before`, without phases of 0 s."""
    return {name: seconds for name, seconds in _differences(before, compile_seconds()).items() if seconds > 0}


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was added to each total; one that is smaller than before was set to 0 in between."""
    return {name: total - then if total >= (then := before.get(name, 0)) else total for name, total in now.items()}
