"""Runs profiler passes over a prepared step, in addition to its main trace, and analyses all of the traces."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from profiling.components.component import Component
from profiling.results.environment import Ceilings
from profiling.results.explanations import TraceAnalysis
from profiling.trace.analysis import Traces, analyze_host_trace, analyze_trace
from profiling.trace.device_work import profiled
from profiling.trace.events import Timeline, read_events, timeline
from profiling.trace.host_waits import line_spans
from profiling.trace.modules import module_spans
from profiling.variants.variant import Step

#: Profiled calls on a CPU, where times vary from call to call. On a GPU one call is enough.
_CALLS_ON_CPU = 5
_NO_EAGER_STEP = "not attributable: the variant has no step that launches kernel by kernel"
_FAILED = "not attributable: the pass for submodules failed"
_HOST_TIMES = "wall time of each forward under the profiler, which lengthens short ones: read the shares"
_FUSED = "the eager module, for products, convolutions, attention and custom operators; the rest is fused"


@dataclass(frozen=True)
class TracePasses:
    """Profiler passes over a prepared step: by line of code, by submodule, and launched kernel by kernel.

    Each pass calls the step, its eager step or the module a few times. If a pass fails, only its part of the analysis
    is missing. Source files under `root` are named relative to it. `ceilings` decide which kernels are slow.
    """

    component: Component
    variant: str
    step: Step
    root: Path
    best_effort: Callable[[str], AbstractContextManager[None]]  # turns an exception into the note "ACTION failed: …"
    ceilings: Ceilings | None = None

    def analyze(self, trace: Path) -> TraceAnalysis | None:
        """Return the analysis of the step, whose main trace is the file `trace`; None if nothing can be analysed."""
        if self.component.device.type != "cuda":
            return self._analyze_on_cpu(trace)
        traces = Traces(timeline(read_events(trace)), _NO_EAGER_STEP)
        lines = self._profile("the trace by line of code", self.step.repeat, line_spans)
        traces = self._with_reference(replace(traces, lines=lines))
        return analyze_trace(traces, self.root, ceilings=self.ceilings)

    def trace_kernels(self) -> Timeline | None:
        """Return a short trace of the step without a file, for its kernels alone; None on a CPU, or if it failed."""
        if self.component.device.type != "cuda":
            return None
        return self._profile("the trace of its kernels", self.step.repeat, nullcontext)

    def analyze_kernels(self, main: Timeline | None) -> TraceAnalysis | None:
        """Return the analysis of the trace that `trace_kernels` returned; None without a trace."""
        if main is None:
            return None
        traces = self._with_reference(Traces(main, _NO_EAGER_STEP))
        with self.best_effort("reading the trace of its kernels"):
            return analyze_trace(traces, self.root, ceilings=self.ceilings)
        return None

    def _analyze_on_cpu(self, trace: Path) -> TraceAnalysis | None:
        eager_step, by_module = self.step.eager_step, None
        if eager_step is None:
            modules_from = _NO_EAGER_STEP
        elif eager_step.module is None:
            modules_from = "not attributable: the compiler fused operators of several submodules"
        else:
            by_module = self._by_module(eager_step.call, eager_step.module)
            modules_from = _FAILED if by_module is None else _HOST_TIMES
        return analyze_host_trace(timeline(read_events(trace)), by_module, modules_from)

    def _with_reference(self, traces: Traces) -> Traces:
        """Add the traces from which submodules and bytes of kernels are known."""
        eager_step = self.step.eager_step
        if eager_step is None:
            return traces
        if eager_step.module is not None:
            reference = self._by_module(eager_step.call, eager_step.module)
            origin = "this step" if eager_step.call is self.step.run else "the step before its capture"
            return replace(traces, reference=reference, modules_from=_FAILED if reference is None else origin)
        reference = self._profile("the trace of the step without capture", eager_step.call, nullcontext)
        eager = self._by_module(self.component.call, self.component.module)
        modules_from = _FAILED if reference is None or eager is None else _FUSED
        return replace(traces, reference=reference, eager=eager, modules_from=modules_from)

    def _by_module(self, call: Callable[[], Any], module: nn.Module) -> Timeline | None:
        cuda = self.component.device.type == "cuda"
        spans = partial(module_spans, module, borrowed=cuda)
        return self._profile("the trace by submodule", call, spans, calls=1 if cuda else _CALLS_ON_CPU)

    def _profile(
        self, action: str, call: Callable[[], Any], around: Callable[[], AbstractContextManager[None]], calls: int = 1
    ) -> Timeline | None:
        with self.best_effort(action):
            self.component.reset()
            return profiled(call, calls, cuda=self.component.device.type == "cuda", around=around, shapes=True)
        return None
