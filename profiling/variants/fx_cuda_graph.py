"""Trace, rewrite, capture: a CUDA graph of a network that torch.fx passes have rewritten, without dynamo."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import fx

from profiling.components.component import Component
from profiling.errors import InputError
from profiling.fx_passes.nodes import propagate
from profiling.fx_passes.passes import AppliedPass, Pass, apply_passes
from profiling.fx_passes.tracer import placeholders, trace
from profiling.graphs import CaptureError, CudaGraphed
from profiling.graphs.engine import check_options
from profiling.results.record import BeforeAfter, FxPass
from profiling.variants.cuda_graph import eager_step, needs_cuda
from profiling.variants.gains import graphs_section, replay_ms
from profiling.variants.variant import Step, Variant


@dataclass(frozen=True, kw_only=True)
class FxCudaGraph(Variant):
    """Trace the module with torch.fx, apply `passes` in their order, capture the result and replay it.

    A pass is any callable `GraphModule → GraphModule`: a class of `profiling.fx_passes`, or a user's own. As with
    `cuda_graph`, copying the inputs is part of the step, and the output is a clone unless `alias_outputs` is set.

    Raises:
        InputError: fewer than one warm-up call, or a pass that cannot be called.

    """

    passes: Sequence[Pass] = ()
    warmup: int = 3
    alias_outputs: bool = False

    def __post_init__(self) -> None:
        """Check the options before the module is traced."""
        check_options(max_graphs=1, warmup=self.warmup)
        for number, each in enumerate(self.passes):
            if not callable(each):
                raise InputError(
                    f"passes.{number}={each!r} cannot be called. Write {{_target_: package.module.Class}}, or a "
                    "function's path with _partial_: true."
                )

    def unavailable(self, device: torch.device) -> str | None:
        """Return why CUDA graphs are unavailable on `device`, or None."""
        return needs_cuda(device)

    def __call__(self, component: Component, folder: Path) -> Step:
        """Trace, rewrite, capture, and return the replaying step.

        Raises:
            InputError: the module cannot be traced (names file and line), or a pass returns no module.
            CaptureError: the rewritten module cannot be captured.

        """
        # A trace is for one shape, so each of the extra inputs gets a module of its own.
        extra = [replace(component, inputs=inputs) for inputs in component.extra_inputs]
        extra_graphs = [self._captured(each, self.transformed(each)) for each in extra]
        module, inputs = self.transformed(component), component.inputs
        graphed = self._captured(component, module)

        def close() -> None:
            for graph in (graphed, *extra_graphs):
                graph.clear()

        return Step(
            run=partial(graphed, **inputs),
            close=close,
            explain=lambda: {
                "graphs": graphs_section([*extra_graphs, graphed], component.module, inputs),
                "passes": self.explained(component),
            },
            extra_steps=tuple(partial(graph, **each.inputs) for graph, each in zip(extra_graphs, extra, strict=True)),
            eager_step=eager_step(_like_the_original(module), inputs, None),  # the graph has no submodules
        )

    def _captured(self, component: Component, module: fx.GraphModule) -> CudaGraphed:
        graphed = CudaGraphed(
            module,
            call=_like_the_original(module),
            warmup=self.warmup,
            alias_outputs=self.alias_outputs,
            keep_state=component.keep_state,
            priority=component.priority,
        )
        graphed(**component.inputs)
        return graphed

    def transformed(self, component: Component) -> fx.GraphModule:
        """Return the traced module after all passes; unchanged weights stay shared with the component's module."""
        module = _traced(component)
        for applied in apply_passes(module, self.passes, partial(_propagated, component)):
            module = applied.after
        return module

    def explained(self, component: Component) -> tuple[FxPass, ...]:
        """Return for each pass what it replaced, how far it moved the output, and its gain on the device.

        The passes run once more for this, so that the modules between them hold no memory while metrics measure.
        """
        applied = apply_passes(_traced(component), self.passes, partial(_propagated, component))
        return tuple(self._section(component, each) for each in applied)

    def _section(self, component: Component, applied: AppliedPass) -> FxPass:
        rel_l2 = applied.rel_l2 if math.isfinite(applied.rel_l2) else None
        section = FxPass(name=applied.name, replaced=applied.replaced, rel_l2=rel_l2)
        if applied.replaced == 0:
            return section
        try:
            before, after = replay_ms(
                applied.before,
                applied.after,
                placeholders(component.inputs),
                warmup=self.warmup,
                keep_state=component.keep_state,
            )
        except CaptureError as error:  # before a pass the module may not be capturable, and then has no time
            return msgspec.structs.replace(section, unmeasured=str(error).splitlines()[0])
        times = BeforeAfter(before=before, after=after)
        return msgspec.structs.replace(section, replay_ms=times, speedup=before / after)


def _like_the_original(module: fx.GraphModule) -> Callable[..., Any]:
    """Return a function with the arguments of the module that was traced."""
    return lambda **inputs: module(**placeholders(inputs))


def _traced(component: Component) -> fx.GraphModule:
    with _state_kept(component):
        return trace(component.module, component.inputs)


def _propagated(component: Component, module: fx.GraphModule) -> Any:
    """Run the module on the component's inputs, write the info of its nodes, and return the output."""
    with _state_kept(component):
        return propagate(module, placeholders(component.inputs))


@contextmanager
def _state_kept(component: Component) -> Iterator[None]:
    """Restore the network's state after the block, so that every run starts from the same one."""
    restore = component.keep_state()
    try:
        yield
    finally:
        restore()
