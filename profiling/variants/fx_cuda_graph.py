"""Trace, transform, capture: a manual CUDA graph of a network that torch.fx passes have rewritten, without dynamo."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import fx

from profiling.components.component import Component
from profiling.errors import InputError
from profiling.fx_passes.graph_facts import propagate
from profiling.fx_passes.passes import Pass, Stage, replay_ms, stages
from profiling.fx_passes.tracer import trace
from profiling.graphs import CaptureError, CudaGraphed
from profiling.variants.cuda_graph import eager_step, graph_facts
from profiling.variants.variant import Step, Variant


@dataclass(frozen=True, kw_only=True)
class FxCudaGraph(Variant):
    """Trace the module with torch.fx, apply `passes` in their order, capture the result and replay it.

    A pass is any callable `GraphModule → GraphModule`, a class of `profiling.fx_passes` or one's own. As with
    `cuda_graph`, copying the inputs is part of the step, and the output is a clone unless `alias_outputs` is set.

    Raises:
        InputError: fewer than one warm-up call, or a pass that cannot be called.

    """

    passes: Sequence[Pass] = ()
    warmup: int = 3
    alias_outputs: bool = False

    def __post_init__(self) -> None:
        """Refuse what would fail after the trace only."""
        if self.warmup < 1:
            raise InputError(f"warmup={self.warmup}: capture needs at least 1 call before it. Try warmup=3.")
        for number, each in enumerate(self.passes):
            if not callable(each):
                raise InputError(
                    f"passes.{number}={each!r} cannot be called. Write {{_target_: package.module.Class}}, or a "
                    "function's path with _partial_: true."
                )

    def unavailable(self, device: torch.device) -> str | None:
        """Return that CUDA graphs need CUDA, unless they have it."""
        return None if device.type == "cuda" else f"CUDA graphs need a CUDA device, this run is on {device.type}"

    def __call__(self, component: Component, folder: Path) -> Step:
        """Trace, transform, capture, and return the replaying step.

        Raises:
            InputError: the module cannot be traced (names file and line), or a pass returns no module.
            CaptureError: what the passes made cannot be captured.

        """
        others = [self._captured(given, self.transformed(given)) for given in _each_also(component)]
        module, inputs = self.transformed(component), component.inputs
        graphed = self._captured(component, module)
        return Step(
            run=lambda: graphed(**inputs),
            close=lambda: _clear(graphed, *others),
            explain=lambda: {
                "graphs": graph_facts([*others, graphed], component.module, inputs),
                "passes": self.explained(component),
            },
            extra_steps=tuple(
                partial(other, **given) for other, given in zip(others, component.extra_inputs, strict=True)
            ),
            eager_step=eager_step(module, inputs, None),  # of the submodules, the trace keeps nothing
        )

    def _captured(self, component: Component, module: fx.GraphModule) -> CudaGraphed:
        """Return the graph of `module` on the component's inputs."""
        graphed = CudaGraphed(
            module,
            warmup=self.warmup,
            alias_outputs=self.alias_outputs,
            state=component.state,
            priority=component.priority,
        )
        graphed(**component.inputs)
        return graphed

    def transformed(self, component: Component) -> fx.GraphModule:
        """Return the traced module after all passes; it shares the weights that they left as they were."""
        module = _traced(component)
        for stage in stages(module, self.passes, partial(_evaluated, component)):
            module = stage.after
        return module

    def explained(self, component: Component) -> tuple[Mapping[str, Any], ...]:
        """Return what each pass replaced, how far it moved the output, and what it gained on the device.

        The passes run once more, so that the graphs between them take no memory while others measure.
        """
        found = stages(_traced(component), self.passes, partial(_evaluated, component))
        return tuple(self._described(component, stage) for stage in found)

    def _described(self, component: Component, stage: Stage) -> Mapping[str, Any]:
        section: dict[str, Any] = {"name": stage.name}
        if stage.replaced is not None:
            section["replaced"] = stage.replaced
        if math.isfinite(stage.rel_l2):
            section["rel_l2"] = stage.rel_l2
        if stage.replaced != 0:
            section |= self._gain(component, stage)
        return section

    def _gain(self, component: Component, stage: Stage) -> Mapping[str, Any]:
        try:
            before, after = replay_ms(
                stage.before, stage.after, component.inputs, warmup=self.warmup, state=component.state
            )
        except CaptureError as error:  # a pass can be what makes a network capturable: then there is no time before it
            return {"unmeasured": str(error).splitlines()[0]}
        return {"replay_ms": {"before": before, "after": after}, "speedup": before / after}


def _each_also(component: Component) -> list[Component]:
    """Return the component with each of its further inputs; a trace is for one shape, so each gets a module."""
    return [replace(component, inputs=inputs) for inputs in component.extra_inputs]


def _clear(*graphs: CudaGraphed) -> None:
    for graphed in graphs:
        graphed.clear()


def _traced(component: Component) -> fx.GraphModule:
    with _state_kept(component):
        return trace(component.module, component.inputs)


def _evaluated(component: Component, module: fx.GraphModule) -> Any:
    """Run the module, writing facts on its nodes, and return the output."""
    with _state_kept(component):
        return propagate(module, component.inputs)


@contextmanager
def _state_kept(component: Component) -> Iterator[None]:
    """Put the network's state back at the end: every run starts from the same one."""
    state = component.state()
    before = [tensor.clone() for tensor in state]
    try:
        yield
    finally:
        for tensor, value in zip(state, before, strict=True):
            tensor.copy_(value)
