"""Looks inside a prepared step: the passes beside its main trace, and the section of the record that they make."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity

from profiling.components.component import Component
from profiling.trace.analysis import Traces, inside_of, on_host
from profiling.trace.attribution import CostOf
from profiling.trace.events import Operator, Timeline, read_events, timeline
from profiling.trace.host_waits import line_spans
from profiling.trace.modules import module_spans
from profiling.trace.operator_costs import Cost, OpCosts
from profiling.trace.profiler import synchronize
from profiling.trace.spans import cell_span, span
from profiling.variants.variant import Step


def short_trace(
    call: Callable[[], object],
    device: torch.device,
    around: Callable[[], AbstractContextManager[None]],
    *,
    cell: tuple[str, str],
    calls: int = 1,
) -> Timeline:
    """Profile `calls` calls, one more before them for the profiler to start up, all inside `around()`.

    `cell` is (component, variant). The calls move a network's state on, as those of the main trace do.
    """
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with tempfile.TemporaryDirectory(prefix="profiling-") as folder:
        file = Path(folder) / "trace.json"
        with (
            torch.profiler.profile(
                activities=activities,
                schedule=torch.profiler.schedule(wait=0, warmup=1, active=calls, repeat=1),
                on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(file)),
                record_shapes=True,
                acc_events=True,
            ) as profiler,
            cell_span(*cell, "trace"),
        ):
            for index in range(-1, calls):
                with span("warmup" if index < 0 else str(index)), around():
                    call()
                synchronize(device)
                profiler.step()
        return timeline(read_events(file))


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
        plain = self.step.eager_step
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
        traces, plain = replace(traces, lined=lined), self.step.eager_step
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
