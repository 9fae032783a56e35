"""Manual CUDA-graph capture, of the eager module and of the compiled one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from profiling.components.component import Component
from profiling.errors import InputError
from profiling.fx_passes.passes import interleaved
from profiling.graphs import CudaGraphed
from profiling.graphs.capture import no_autocast_cache
from profiling.trace.counters import CompileCounters, snapshot
from profiling.trace.device_work import host_launches
from profiling.variants.compile import Compile
from profiling.variants.variant import EagerStep, Step, Variant

Call = Callable[[], object]


def alternate(first: Call, second: Call, *, rounds: int = 31, warmup: int = 3) -> tuple[float, float]:
    """Return the median wall time of a call of each, in milliseconds, of `rounds` rounds of one call each.

    The device is idle at the start of every call and waited for at its end.
    """
    for _ in range(warmup):
        first()
        second()
    torch.cuda.synchronize()
    return interleaved(partial(_wall_ms, first), partial(_wall_ms, second), rounds)


def _wall_ms(call: Call) -> float:
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3


def eager_step(call: Callable[..., Any], inputs: Mapping[str, torch.Tensor], module: nn.Module | None) -> EagerStep:
    """Return `call(**inputs)` under the conditions of its capture: else a compiled one would compile once more."""

    def plain() -> Any:
        with no_autocast_cache():
            return call(**inputs)

    return EagerStep(plain, module)


def graph_facts(
    engines: Sequence[CudaGraphed], call: Callable[..., Any], inputs: Mapping[str, torch.Tensor]
) -> dict[str, Any]:
    """Return the record's section `graphs`; the last of `engines` replays what `call(**inputs)` does uncaptured.

    Counters are totals over all engines. `host_launches` are of one call, before (uncaptured) and after (replayed),
    absent where CUPTI saw none; `wall_ms` the medians of alternating calls, and `gain` their ratio; `memory` what was
    held around the last capture, bytes by kind.
    """
    counters = [asdict(engine.counters) for engine in engines]
    recording = engines[-1].newest
    uncaptured, replay = partial(call, **inputs), partial(engines[-1], **inputs)
    with no_autocast_cache():  # as it was captured: a compiled call would find a guard broken and compile once more
        before, after = alternate(uncaptured, replay)
        launches = {"before": host_launches(uncaptured), "after": host_launches(replay)}
    return {
        **{key: sum(counter[key] for counter in counters) for key in counters[0]},
        "memory": {} if recording is None else recording.memory,
        "host_launches": {key: count for key, count in launches.items() if count is not None},
        "wall_ms": {"before": before, "after": after},
        "gain": before / after,
    }


@dataclass(frozen=True, kw_only=True)
class CudaGraph(Variant):
    """Capture the eager module once and replay it.

    Copying the inputs into the graph's static buffers is part of the step, since a real loop has to do it. The output
    is a clone unless `alias_outputs` asks for the graph's own memory, which any later replay may overwrite.

    Raises:
        InputError: fewer than one warm-up call, or room for fewer than one graph.

    """

    warmup: int = 3
    max_graphs: int = 8
    alias_outputs: bool = False

    def __post_init__(self) -> None:
        """Refuse a capture without warm-up: lazy initialisation inside a capture fails in obscure ways."""
        if self.warmup < 1:
            raise InputError(f"warmup={self.warmup}: capture needs at least 1 call before it. Try warmup=3.")
        if self.max_graphs < 1:
            raise InputError(f"max_graphs={self.max_graphs}: the cache needs room for at least 1. Try max_graphs=8.")

    def unavailable(self, device: torch.device) -> str | None:
        """Return that CUDA graphs need CUDA, unless they have it."""
        return None if device.type == "cuda" else f"CUDA graphs need a CUDA device, this run is on {device.type}"

    def __call__(self, component: Component, folder: Path) -> Step:
        """Warm up, capture, and return the replaying step."""
        return self.captured(component, component.module)

    def captured(self, component: Component, call: Callable[..., Any]) -> Step:
        """Return the step that replays `call`, the component's module or a compiled form of it."""
        graphed = CudaGraphed(
            component.module,
            call=call,
            max_graphs=max(self.max_graphs, len(component.extra_inputs) + 1),
            warmup=self.warmup,
            alias_outputs=self.alias_outputs,
            state=component.state,
            priority=component.priority,
        )
        inputs = component.inputs
        for given in (inputs, *reversed(component.extra_inputs)):  # largest first: the pool then fits all
            graphed(**given)
        graphed(**inputs)
        return Step(
            run=partial(graphed, **inputs),
            close=graphed.clear,
            explain=lambda: {"graphs": graph_facts([graphed], call, inputs)},
            extra_steps=tuple(partial(graphed, **given) for given in component.extra_inputs),
            eager_step=eager_step(call, inputs, component.module if call is component.module else None),
        )


@dataclass(frozen=True, kw_only=True)
class CompileCudaGraph(CudaGraph):
    """Compile as `compile` does, then capture as `cuda_graph` does; `compile` holds the options of the first.

    A module that the compiler cuts into pieces at graph breaks is captured as one graph around all of them.

    Raises:
        InputError: compile options that bring CUDA graphs of their own, which cannot be captured again.

    """

    compile: Compile

    def __post_init__(self) -> None:
        """Refuse modes whose steps are replays already."""
        super().__post_init__()
        if self.compile.has_cuda_graphs():
            raise InputError(
                f"compile.mode={self.compile.mode} holds CUDA graphs already and cannot be captured again. "
                "Use mode=default or mode=max-autotune-no-cudagraphs."
            )

    def unavailable(self, device: torch.device) -> str | None:
        """Return what either half lacks."""
        return super().unavailable(device) or self.compile.unavailable(device)

    def __call__(self, component: Component, folder: Path) -> Step:
        """Compile, warm up, capture, and return the replaying step."""
        with self.compile.flags(folder) as flags:
            before = snapshot()
            compiled = self.compile.compiled(component.module)
            step = self.captured(component, compiled)
            happened = snapshot().since(before)
            self.compile.check(happened)

            def explain() -> Mapping[str, Any]:
                return {"graphs": {**step.explain()["graphs"], **pieces(happened)}}

            flags.callback(step.close)
            return replace(step, close=flags.pop_all().close, explain=explain)


def pieces(happened: CompileCounters) -> dict[str, int]:
    """Return into how many graphs the compiler cut the module, and at how many breaks."""
    return {"compiled_pieces": happened.graphs, "graph_breaks": happened.graph_breaks}
