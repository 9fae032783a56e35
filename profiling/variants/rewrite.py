"""The transform that traces a module with torch.fx and rewrites the graph by passes, without dynamo."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import msgspec
import torch
from torch import fx, nn

from profiling.components.component import Component
from profiling.components.outputs import relative_l2
from profiling.components.trees import keyed_tensors, map_tensors
from profiling.fx_passes.nodes import propagate
from profiling.fx_passes.passes import AppliedPass, Pass, apply_passes, check_callables
from profiling.fx_passes.tracer import placeholders, trace
from profiling.graphs import CaptureError
from profiling.results.explanations import BeforeAfter, FxPass
from profiling.variants.cuda_graph import CudaGraph
from profiling.variants.gains import replay_ms
from profiling.variants.kernels import compile_kernels
from profiling.variants.recipe import Outcome, Transform


@dataclass(frozen=True, kw_only=True)
class Rewrite(Transform):
    """Trace the module with torch.fx for the shapes of its inputs, and apply `passes` in their order.

    A pass is any callable `GraphModule → GraphModule`: a class of `profiling.fx_passes`, or a user's own. Unchanged
    weights stay shared with the module.

    Raises:
        InputError: a pass that cannot be called.

    """

    runs_no_python: ClassVar[bool] = True
    passes: Sequence[Pass] = ()

    def __post_init__(self) -> None:
        check_callables("passes", self.passes)

    def apply(self, module: nn.Module, component: Component) -> Outcome:
        """Return a module with a rewritten graph for each shape of the inputs, and the number of places replaced.

        The number is None if nothing was replaced and a pass does not count, or there is no pass.

        Raises:
            InputError: the module cannot be traced (names file and line), or a pass returns no module.

        """
        graphs, counts, notes = [], list[int | None](), list[str]()
        for inputs in (*component.extra_inputs, component.inputs):
            graph, applied = self._applied(module, component, inputs)
            for each in applied:
                graph = each.after
                counts.append(each.replaced)
                notes += [f"{each.name} left {count} in place ({reason})" for reason, count in each.left.items()]
            graphs.append((inputs, graph))
        changed: int | None = sum(each or 0 for each in counts)
        if not changed and (not counts or None in counts):
            changed = None
        return Outcome(
            Rewritten(graphs),
            changed,
            notes=tuple(notes or [f"no graph pass matches anything in {type(module).__name__}"][: changed == 0]),
            explain_uncompiled=lambda: {"passes": self.explained(module, component)},
        )

    def explained(self, module: nn.Module, component: Component) -> tuple[FxPass, ...]:
        """Return for each pass its number of replacements, the error of its output, and its gain on the device.

        The passes run again for this, so that intermediate modules hold no memory while metrics measure.
        """
        return tuple(_section(component, each) for each in self._applied(module, component, component.inputs)[1])

    def _applied(
        self, module: nn.Module, component: Component, inputs: Mapping[str, Any]
    ) -> tuple[fx.GraphModule, Iterator[AppliedPass]]:
        """Return the traced module, and each pass as it is applied."""
        if isinstance(module, Rewritten):
            traced = module.graph_for(inputs)
        else:
            traced = _unchanged(component, partial(trace, module, inputs))
        tensors = placeholders(inputs)
        return traced, apply_passes(
            traced, self.passes, lambda each: _unchanged(component, partial(propagate, each, tensors))
        )


class Rewritten(nn.Module):
    """Traced graphs of a module, called with its arguments: the one that was traced for inputs of their shapes."""

    def __init__(self, graphs: Sequence[tuple[Mapping[str, Any], fx.GraphModule]]) -> None:
        super().__init__()
        self.traced = nn.ModuleList(graph for _, graph in graphs)
        inputs = graphs[-1][0]
        # Looked up by key, which a compiler can trace.
        self._keys = dict(zip(placeholders(inputs), (keys for keys, _ in keyed_tensors(inputs)), strict=True))
        self._shapes = [[tuple(tensor.shape) for tensor in placeholders(inputs).values()] for inputs, _ in graphs]

    def forward(self, /, **inputs: Any) -> Any:
        """Call the graph that was traced for these shapes; values that are no tensors are those of the trace."""
        tensors: dict[str, Any] = dict.fromkeys(self._keys, inputs)
        for name, keys in self._keys.items():
            for key in keys:
                tensors[name] = key.get(tensors[name])
        return self._graph_for(tensors)(**tensors)

    def graph_for(self, inputs: Mapping[str, Any]) -> Any:
        """Return the graph, a `torch.fx.GraphModule`, that inputs of these shapes are passed to."""
        return self._graph_for(placeholders(inputs))

    def _graph_for(self, tensors: Mapping[str, Any]) -> nn.Module:
        several = len(self._shapes) > 1
        return self.traced[self._shapes.index([each.shape for each in tensors.values()]) if several else 0]


def _section(component: Component, applied: AppliedPass) -> FxPass:
    inputs = placeholders(component.inputs)
    compile_kernels(applied.after, inputs)

    def output(graph: fx.GraphModule) -> Any:
        return map_tensors(torch.clone, graph(**map_tensors(torch.clone, inputs)))

    before, after = (_unchanged(component, partial(output, each)) for each in (applied.before, applied.after))
    rel_l2 = relative_l2(after, before)
    section = FxPass(name=applied.name, replaced=applied.replaced, rel_l2=rel_l2 if math.isfinite(rel_l2) else None)
    if applied.replaced == 0:
        return section
    if (reason := CudaGraph().unavailable(component.device)) is not None:
        return msgspec.structs.replace(section, unmeasured=reason)
    try:
        before, after = replay_ms(applied.before, applied.after, inputs, component.keep_state)
    except CaptureError as error:  # before a pass the module may not be capturable, and then has no time
        return msgspec.structs.replace(section, unmeasured=str(error).splitlines()[0])
    return msgspec.structs.replace(section, replay_ms=BeforeAfter(before=before, after=after))


def _unchanged(component: Component, run: Callable[[], Any]) -> Any:
    """Return `run()`; the component's state is then as before."""
    restore = component.keep_state()
    try:
        return run()
    finally:
        restore()
