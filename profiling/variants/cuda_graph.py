"""Manual CUDA-graph capture, of the eager module and of the compiled one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from profiling.core.components import Component
from profiling.core.graphs import Call, capture
from profiling.errors import InputError
from profiling.tracing.counters import snapshot
from profiling.variants.compile import Compile
from profiling.variants.variant import Step, Variant


@dataclass(frozen=True, kw_only=True)
class CudaGraph(Variant):
    """Capture the eager module once and replay it.

    Copying the inputs into the graph's static buffers is part of the step, since a real loop has to do it. The output
    is a clone unless `alias_outputs` asks for the graph's own memory, which the next replay overwrites.

    Raises:
        InputError: fewer than one warm-up call.

    """

    warmup: int = 3
    alias_outputs: bool = False

    def __post_init__(self) -> None:
        """Refuse a capture without warm-up: lazy initialisation inside a capture fails in obscure ways."""
        if self.warmup < 1:
            raise InputError(f"warmup={self.warmup}: capture needs at least 1 call before it. Try warmup=3.")

    def unavailable(self, device: torch.device) -> str | None:
        """Return that CUDA graphs need CUDA, unless they have it."""
        return None if device.type == "cuda" else f"CUDA graphs need a CUDA device, this run is on {device.type}"

    def __call__(self, component: Component, folder: Path) -> Step:
        """Warm up, capture, and return the replaying step."""
        module = component.module
        return self.captured(component, lambda inputs: module(**inputs))

    def captured(self, component: Component, call: Call) -> Step:
        """Return the step that replays `call`."""
        graph = capture(call, component.inputs, warmup=self.warmup)
        inputs, alias = component.inputs, self.alias_outputs
        return Step(run=lambda: graph.replay(inputs, alias_outputs=alias))


@dataclass(frozen=True, kw_only=True)
class CompileCudaGraph(CudaGraph):
    """Compile as `compile` does, then capture as `cuda_graph` does; `compile` holds the options of the first.

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
            step = self.captured(component, lambda inputs: compiled(**inputs))
            self.compile.check(snapshot().since(before))
            return Step(run=step.run, close=flags.pop_all().close)
