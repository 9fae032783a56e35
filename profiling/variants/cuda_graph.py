"""The capture of a recipe: a CUDA graph of the transformed and compiled module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from profiling.components.component import Component
from profiling.components.effects import Observer
from profiling.components.snapshot import Kept
from profiling.graphs import CudaGraphed
from profiling.graphs.capture import CaptureError
from profiling.graphs.engine import check_options


@dataclass(frozen=True, kw_only=True)
class CudaGraph:
    """Capture a call once and replay it.

    The step includes copying the inputs into the graph's static buffers, as in a real loop. The output is a clone;
    with `alias_outputs` it is the graph's own memory, which the next replay may overwrite. A module that the
    compiler splits at graph breaks is captured as one graph.

    Raises:
        InputError: fewer than one warm-up call, or room for fewer than one graph.

    """

    runs_no_python: ClassVar[bool] = True
    warmup: int = 3
    max_graphs: int = 8
    alias_outputs: bool = False

    def __post_init__(self) -> None:
        check_options(max_graphs=self.max_graphs, warmup=self.warmup)

    def unavailable(self, device: torch.device) -> str | None:
        """Return why CUDA graphs are unavailable on `device`, or None."""
        return None if device.type == "cuda" else f"CUDA graphs need a CUDA device, this run is on {device.type}"

    def captured(self, component: Component, module: nn.Module, call: Callable[..., Any]) -> CudaGraphed:
        """Return the graphs of `call` (`module`, or what was compiled of it) for all inputs of the component.

        Raises:
            CaptureError: the call cannot be captured.

        """
        graphed = CudaGraphed(
            module,
            call=call,
            max_graphs=max(self.max_graphs, len(component.extra_inputs) + 1),
            warmup=self.warmup,
            alias_outputs=self.alias_outputs,
            keep_state=component.keep_state,
            priority=component.priority,
            generators=component.kept.generators,
            check_state=False,  # it was, over a trajectory: see `Recipe`
        )
        # Largest first: the pool then has room for all.
        for inputs in (component.inputs, *reversed(component.extra_inputs)):
            graphed(**inputs)
        graphed(**component.inputs)
        return graphed


def check_reset(component: Component) -> None:
    """Check that `reset()` of the module writes to its tensors in place, where the component's state is put back by it.

    Raises:
        CaptureError: it replaces one of them, so that the graph would read memory that has been freed.

    """
    if component.policy != "reset":
        return
    module: Any = component.module
    component.reset()
    observer = Observer({"": module}, Kept())
    module.reset()
    observer.after_call()
    component.reset()
    if moved := observer.effects.assigned:
        some = ", ".join(moved[:3])
        raise CaptureError(
            f"reset() replaces tensors that the CUDA graph reads ({some}; {len(moved)} in all): write to them in place "
            "(self.cache.zero_(), self.weight.copy_(merged))."
        )
