"""Manual CUDA-graph capture, of the eager module and of the compiled one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from profiling.core.components import Component
from profiling.core.graphs import CudaGraphed
from profiling.errors import InputError
from profiling.tracing.counters import CompileCounters, snapshot
from profiling.variants.compile import Compile
from profiling.variants.graph_facts import graph_facts, uncaptured
from profiling.variants.variant import Step, Variant


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
            max_graphs=max(self.max_graphs, len(component.also) + 1),
            warmup=self.warmup,
            alias_outputs=self.alias_outputs,
            state=component.state,
            priority=component.priority,
        )
        inputs = component.inputs
        for given in (inputs, *reversed(component.also)):  # the largest first: the pool is then large enough for all
            graphed(**given)
        graphed(**inputs)
        return Step(
            run=partial(graphed, **inputs),
            close=graphed.clear,
            explain=lambda: {"graphs": graph_facts([graphed], call, inputs)},
            others=tuple(partial(graphed, **given) for given in component.also),
            uncaptured=uncaptured(call, inputs, component.module if call is component.module else None),
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
