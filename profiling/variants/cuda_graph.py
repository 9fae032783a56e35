"""CUDA graphs captured by hand: of the eager module, and of the compiled one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from profiling.components.component import Component
from profiling.errors import InputError
from profiling.graphs import CudaGraphed
from profiling.graphs.capture import no_autocast_cache
from profiling.graphs.engine import check_options
from profiling.trace.counters import CompileCounters, snapshot
from profiling.variants.compile import Compile
from profiling.variants.gains import graphs_section
from profiling.variants.variant import EagerStep, Step, Variant


def needs_cuda(device: torch.device) -> str | None:
    """Return why CUDA graphs are unavailable on `device`, or None."""
    return None if device.type == "cuda" else f"CUDA graphs need a CUDA device, this run is on {device.type}"


def eager_step(call: Callable[..., Any], inputs: Mapping[str, Any], module: nn.Module | None) -> EagerStep:
    """Return `call(**inputs)` under the conditions of its capture, without which a compiled call would recompile."""

    def run() -> Any:
        with no_autocast_cache():
            return call(**inputs)

    return EagerStep(run, module)


@dataclass(frozen=True, kw_only=True)
class CudaGraph(Variant):
    """Capture the eager module once and replay it.

    Copying the inputs into the graph's static buffers is part of the step, since a real loop does it too. The output is
    a clone unless `alias_outputs` asks for the graph's own memory, which any later replay may overwrite.

    Raises:
        InputError: fewer than one warm-up call, or room for fewer than one graph.

    """

    warmup: int = 3
    max_graphs: int = 8
    alias_outputs: bool = False

    def __post_init__(self) -> None:
        """Check the options before the module is built."""
        check_options(max_graphs=self.max_graphs, warmup=self.warmup)

    def unavailable(self, device: torch.device) -> str | None:
        """Return why CUDA graphs are unavailable on `device`, or None."""
        return needs_cuda(device)

    def __call__(self, component: Component, folder: Path) -> Step:
        """Warm up, capture, and return the replaying step."""
        return self._step(component, component.module, self._captured(component, component.module))

    def _captured(self, component: Component, call: Callable[..., Any]) -> CudaGraphed:
        """Return graphs of `call`, the component's module or a compiled form of it, for all of its inputs."""
        graphed = CudaGraphed(
            component.module,
            call=call,
            max_graphs=max(self.max_graphs, len(component.extra_inputs) + 1),
            warmup=self.warmup,
            alias_outputs=self.alias_outputs,
            keep_state=component.keep_state,
            priority=component.priority,
        )
        # Largest first: the pool then has room for all.
        for inputs in (component.inputs, *reversed(component.extra_inputs)):
            graphed(**inputs)
        graphed(**component.inputs)
        return graphed

    def _step(
        self,
        component: Component,
        call: Callable[..., Any],
        graphed: CudaGraphed,
        compiled: CompileCounters | None = None,
    ) -> Step:
        """Return the step that replays `call`; `compiled` are the counters of compiling it."""
        inputs = component.inputs
        return Step(
            run=partial(graphed, **inputs),
            close=graphed.clear,
            explain=lambda: {"graphs": graphs_section([graphed], call, inputs, compiled)},
            extra_steps=tuple(partial(graphed, **each) for each in component.extra_inputs),
            eager_step=eager_step(call, inputs, component.module if call is component.module else None),
        )


@dataclass(frozen=True, kw_only=True)
class CompileCudaGraph(CudaGraph):
    """Compile as `compile` does, then capture as `cuda_graph` does; `compile` are the options of the compiler.

    A module that the compiler splits at graph breaks is captured as one graph around all pieces.

    Raises:
        InputError: compile options that bring CUDA graphs of their own, which cannot be captured again.

    """

    compile: Compile

    def __post_init__(self) -> None:
        """Check the options, also for a mode whose steps are replays already."""
        super().__post_init__()
        if self.compile.has_cuda_graphs():
            raise InputError(
                f"compile.mode={self.compile.mode} has CUDA graphs of its own and cannot be captured again. "
                "Use mode=default or mode=max-autotune-no-cudagraphs."
            )

    def unavailable(self, device: torch.device) -> str | None:
        """Return why CUDA graphs or the compiler are unavailable on `device`, or None."""
        return super().unavailable(device) or self.compile.unavailable(device)

    def __call__(self, component: Component, folder: Path) -> Step:
        """Compile, warm up, capture, and return the replaying step."""
        with self.compile.flags(folder) as flags:
            before = snapshot()
            call = self.compile.compiled(component.module)
            graphed = self._captured(component, call)
            counters = snapshot().since(before)
            self.compile.check(counters, component.module)
            step = self._step(component, call, graphed, counters)
            flags.callback(step.close)
            return replace(step, close=flags.pop_all().close)
