"""Looks inside a prepared step: the passes beside its main trace, and the section of the record that they make."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from profiling.core.components import Component
from profiling.inside.line_spans import line_spans
from profiling.inside.module_spans import module_spans
from profiling.inside.op_cost import Cost, OpCosts
from profiling.inside.passes import short_trace
from profiling.inside.section import Traces, inside_of, on_host
from profiling.inside.timeline import Operator, Timeline, timeline
from profiling.inside.witness import CostOf
from profiling.tracing.chrome_trace import read_events
from profiling.variants.variant import Step

#: On a CPU wall times are what is told, and one call's are chance; kernels on a device take as long in each.
_CALLS_ON_HOST = 5
_NOWHERE = "not attributable: the variant has nothing that launches kernel by kernel"
_FAILED = "not attributable: the pass that would tell failed"
_FUSED = "the eager module, for products, convolutions, attention and custom operators; the rest is fused"

#: Does what explains a number, and takes note where it fails: (what could not be told, the work).
Spare = Callable[[str, Callable[[], None]], None]


@dataclass(frozen=True)
class Look:
    """A look inside a prepared step. It runs the step and the module a few times more under the profiler.

    Files under `root` are named relative to it. A pass that fails costs what it would have told, through `spare`.
    """

    component: Component
    variant: str
    step: Step
    root: Path
    spare: Spare

    def section(self, trace: Path) -> dict[str, Any] | None:
        """Return the section `inside`, the file `trace` being the step's main trace; None where it says nothing."""
        plain = self.step.uncaptured
        if self.component.device.type != "cuda":
            if plain is not None and plain.module is None:
                return {"modules_from": "not attributable: the compiler fused operators of several submodules"}
            reference = None if plain is None or plain.module is None else self._by_module(plain.call, plain.module)
            return None if reference is None else on_host(reference)
        traces = self._beside(Traces(timeline(read_events(trace)), _NOWHERE, "this step, line by line"))
        return inside_of(traces, costs(), self.root)

    def _beside(self, traces: Traces) -> Traces:
        """Return the traces with those of the further passes."""
        lined = self._trace("lines of code could not be told", self.step.run, line_spans)
        if lined is None:
            traces = replace(traces, lines_from="nothing: the pass that would tell failed")
        traces, plain = replace(traces, lined=lined), self.step.uncaptured
        if plain is None:
            return traces
        if plain.module is not None:
            reference = self._by_module(plain.call, plain.module)
            said = "this step" if plain.call is self.step.run else "the step before its capture"
            return replace(traces, reference=reference, modules_from=_FAILED if reference is None else said)
        reference = self._trace("the step could not be run uncaptured", plain.call, nullcontext)
        eager = self._by_module(self.component.call, self.component.module)
        said = _FAILED if reference is None or eager is None else _FUSED
        return replace(traces, reference=reference, eager=eager, modules_from=said)

    def _by_module(self, call: Callable[[], Any], module: nn.Module) -> Timeline | None:
        cuda = self.component.device.type == "cuda"
        spans = partial(module_spans, module, borrowed=cuda)
        return self._trace("submodules could not be told", call, spans, calls=1 if cuda else _CALLS_ON_HOST)

    def _trace(
        self, what: str, call: Callable[[], Any], around: Callable[[], AbstractContextManager[None]], calls: int = 1
    ) -> Timeline | None:
        found: list[Timeline] = []
        device, cell = self.component.device, (self.component.name, self.variant)
        self.spare(what, lambda: found.append(short_trace(call, device, around, cell=cell, calls=calls)))
        return found[0] if found else None


def costs() -> CostOf:
    """Return what tells the bytes and FLOPs of operators; it remembers those that it was asked about."""
    known = OpCosts()

    def cost_of(operator: Operator) -> tuple[int | None, int | None]:
        cost = known.of(operator) or Cost()
        return cost.bytes, cost.flops

    return cost_of
