"""The trace analysis of a record: busy and idle time of a call, its kernels, submodules, waits and copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from profiling.results.environment import Ceilings
from profiling.results.explanations import KERNEL_CLASSES, Idle, Kernel, KernelClass, ModuleTime, TraceAnalysis
from profiling.trace.attribution import (
    Attributor,
    KernelAttribution,
    attributed_by_reference,
    mean,
    microseconds,
    rate,
    with_eager_modules,
)
from profiling.trace.events import MODULE, GpuWork, Operator, Span, Timeline, TracedCall, nested, traced_calls
from profiling.trace.findings import kernel_findings
from profiling.trace.host_waits import waits_and_copies
from profiling.trace.kernel_classes import kernel_class
from profiling.trace.modules import module_times, paths_in
from profiling.trace.operator_costs import Cost, OperatorCosts, only_dtype

_NAME_LENGTH = 200


@dataclass(frozen=True)
class Traces:
    """Traces of one step.

    `main` is the step as it was timed. `reference` is the same step without CUDA graphs, launched kernel by kernel.
    `eager` is the eager module, traced only where the reference is compiled. Spans of submodules are in `eager` if
    there is one, else in `reference`. `lines` is the step with a span for each line of code. `modules_from` names the
    source of submodules, or the reason why there are none.
    """

    main: Timeline
    modules_from: str
    reference: Timeline | None = None
    eager: Timeline | None = None
    lines: Timeline | None = None


def analyze_trace(
    traces: Traces,
    root: Path,
    *,
    parts: int = 1,
    ceilings: Ceilings | None = None,
) -> TraceAnalysis | None:
    """Return the trace analysis, with times in milliseconds a call; None where nothing ran on a GPU.

    Where a traced call consists of several `parts` (frames, which may overlap), every number is the mean of a part.
    Source files under `root` are named relative to it. Without `ceilings` it has no findings about kernels.
    """
    calls = traced_calls(traces.main)
    if not calls:
        return None
    times = [gpu_time(call.work) for call in calls]
    span_ms, host_ms, between_ms = (sum(each) / 1e3 / len(calls) / parts for each in zip(*times, strict=True))
    attributions, modules_from = _attributions(traces, calls)
    kernels = kernels_by_name(attributions, parts)
    waits, copies = waits_and_copies(traces.main, traces.lines, root, parts)
    modules, unattributed_ms = module_times(
        ((item.module, item.work.length) for call in attributions for item in call),
        len(calls) * parts,
        paths_in((traces.eager or traces.reference or traces.main).modules),
    )
    return TraceAnalysis(
        calls=len(calls) * parts,
        span_ms=span_ms,
        busy_ms=span_ms - (host_ms + between_ms),
        idle=Idle(host_ms=host_ms, between_ms=between_ms),
        kernel_ms=sum(kernel.ms for kernel in kernels),
        count=sum(len(call.work) for call in calls) / len(calls) / parts,
        classes=kernel_classes(kernels),
        kernels=kernels,
        findings=() if ceilings is None else kernel_findings(attributions, ceilings, parts=parts),
        waits=waits,
        copies=copies,
        modules=modules,
        unattributed_ms=unattributed_ms,
        modules_from=modules_from,
    )


def analyze_host_trace(
    main: Timeline, by_module: Timeline | None, modules_from: str, *, parts: int = 1
) -> TraceAnalysis | None:
    """Return the analysis of a step on a CPU: its operators by their self time, and the time of each submodule.

    `main` is the step as it was timed, `by_module` the step with spans of submodules. What of a call is in none of them
    is unattributed. Of a call of several `parts` (frames), every number of `main` is the mean of a part. None where
    `main` holds no call.
    """
    if not main.calls:
        return None
    modules: tuple[ModuleTime, ...] = ()
    unattributed_ms = None
    if by_module is not None and by_module.modules and by_module.calls:
        calls = len(by_module.calls)
        modules, _ = module_times(self_times(by_module.modules), calls, paths_in(by_module.modules))
        whole_ms = sum(call.end - call.begin for call in by_module.calls) / 1e3 / calls
        unattributed_ms = max(0.0, whole_ms - sum(module.self_ms or 0.0 for module in modules))
    return TraceAnalysis(
        calls=len(main.calls) * parts,
        kernels=operators_by_name(main, parts),
        modules=modules,
        unattributed_ms=unattributed_ms,
        modules_from=modules_from,
    )


def operators_by_name(trace: Timeline, parts: int = 1) -> tuple[Kernel, ...]:
    """Return the operators of a step on a CPU by name, with their self time a call, or per part of a call.

    Shares are of the whole call. Operators on other threads than the call's are left out: they run while it waits.
    """
    rows, costs = {call.row for call in trace.calls}, OperatorCosts()
    inside = [
        operator
        for operator in trace.operators
        if operator.row in rows and any(call.begin <= operator.begin <= call.end for call in trace.calls)
    ]
    spent = [each for _, each in self_times(inside)]
    worked, items = _work_of(inside, spent, costs), []
    for place, (each, self_us) in enumerate(zip(inside, spent, strict=True)):
        cost, arguments = (costs.of(outer), outer.arguments) if (outer := worked.get(place)) else (Cost(), {})
        own = GpuWork(each.name, "operator", each.begin, each.begin + self_us, None, None, None)
        items.append(KernelAttribution(own, "operator", bytes=cost.bytes, flops=cost.flops, arguments=arguments))
    return kernels_by_name([items], len(trace.calls) * parts, sum(call.end - call.begin for call in trace.calls))


def self_times(spans: Sequence[Span]) -> list[tuple[str, float]]:
    """Return (name, microseconds) of each span without the spans inside it, never negative.

    `spans` are sorted by begin, outer ones first (see `nested`).
    """
    times: list[float] = []
    for span, (outer, end) in zip(spans, nested(spans), strict=True):
        times.append(end - span.begin)
        if outer is not None:
            times[outer] -= end - span.begin
    return [(span.name.removeprefix(MODULE), each) for span, each in zip(spans, times, strict=True)]


def _work_of(operators: Sequence[Operator], spent: Sequence[float], costs: OperatorCosts) -> dict[int, Operator]:
    """Return {place of an operator: the operator whose work it does}; they are sorted, callers first.

    The work of the outermost operator whose cost is known is done by its longest callee, or by itself: `aten::conv2d`
    has shapes that are understood, `aten::mkldnn_convolution` does the work. `spent` are self times.
    """
    outermost: list[int | None] = []
    longest: dict[int, int] = {}
    for place, (caller, _) in enumerate(nested(operators)):
        outer = None if caller is None else outermost[caller]
        if outer is None and costs.of(operators[place]) != Cost():
            outer = place
        outermost.append(outer)
        if outer is not None and spent[place] > spent[longest.setdefault(outer, place)]:
            longest[outer] = place
    return {place: operators[outer] for outer, place in longest.items()}


class GpuTime(NamedTuple):
    """Idle microseconds of the GPU in the `span` of a call, from the begin of its first work to the end of its last.

    `host`: the host had not launched the next work yet. `between`: it had (the work was queued, or is a node of a graph
    under replay).
    """

    span: float
    host: float
    between: float


def gpu_time(work: Sequence[GpuWork]) -> GpuTime:
    """Return the idle time of a call's `work`, which is sorted by begin and not empty; streams may overlap.

    A gap counts as `between` where the trace lacks the launch of the work after it: no evidence that the host was late.
    """
    host = between = 0.0
    reached, seen = work[0].end, {work[0].correlation}
    for item in work[1:]:
        gap = max(0.0, item.begin - reached)
        late = item.launch is not None and item.launch.end > reached and item.correlation not in seen
        host, between = (host + gap, between) if late else (host, between + gap)
        reached = max(reached, item.end)
        seen.add(item.correlation)
    return GpuTime(reached - work[0].begin, host, between)


def _attributions(traces: Traces, calls: Sequence[TracedCall]) -> tuple[list[tuple[KernelAttribution, ...]], str]:
    """Return the attribution of each traced call's work by all traces, and what the source of submodules is."""
    costs = OperatorCosts()
    own = Attributor(traces.main, costs)
    reference = _last_call(traces.reference, costs)
    if traces.eager is not None:
        reference = with_eager_modules(reference, _last_call(traces.eager, costs))
    found = [attributed_by_reference(own.of(call), reference) for call in calls]
    other = sum(unmatched for _, unmatched in found) / len(calls)
    note = f"; {other:.0f} kernels of a call run in another order than there, so they belong to none" if other else ""
    return [attributions for attributions, _ in found], traces.modules_from + note


def _last_call(trace: Timeline | None, costs: OperatorCosts) -> Sequence[KernelAttribution]:
    """Return the attribution of the last traced call's work, in the order of its launches."""
    if trace is None:
        return ()
    work = [item for call in traced_calls(trace)[-1:] for item in Attributor(trace, costs).of(call)]
    return sorted(work, key=lambda item: item.work.launched)


def kernels_by_name(
    calls: Sequence[Sequence[KernelAttribution]], parts: int = 1, whole_us: float | None = None
) -> tuple[Kernel, ...]:
    """Return the kernels of traced calls by name, the longest total first; times are per call, or per part of a call.

    Kernels whose names a record cannot tell apart, since it holds their beginning, are one. Rates cover only the
    launches whose bytes or FLOPs are known. Shares are of `whole_us`, the microseconds of all calls, by default those
    of all kernels.
    """
    by_name: dict[str, list[KernelAttribution]] = {}
    for call in calls:
        for item in call:
            by_name.setdefault(item.work.name[:_NAME_LENGTH], []).append(item)
    total_us = whole_us or sum(map(microseconds, calls))
    kernels = [_kernel(name, items, total_us, len(calls) * parts) for name, items in by_name.items()]
    return tuple(sorted(kernels, key=lambda kernel: -kernel.ms))


def _kernel(name: str, items: Sequence[KernelAttribution], total_us: float, calls: int) -> Kernel:
    spent, lengths = microseconds(items), [item.work.length for item in items]
    by_kind: dict[str, float] = {}
    for item in items:
        by_kind[item.kind] = by_kind.get(item.kind, 0.0) + item.work.length
    return Kernel(
        name=name,
        kind=max(by_kind, key=lambda kind: by_kind[kind]),
        ms=spent / 1e3 / calls,
        share=spent / total_us if total_us else 0.0,
        count=len(items) / calls,
        mean_us=spent / len(items),
        typical_us=sum(length * length for length in lengths) / spent if spent > 0 else None,
        gbps=rate(items, "bytes", 1e3),
        tflops=rate(items, "flops", 1e6),
        dtype=only_dtype(item.arguments for item in items if item.flops),
        blocks=mean(item.work.blocks for item in items),
        occupancy=mean(item.work.occupancy for item in items),
    )


def kernel_classes(kernels: Sequence[Kernel]) -> tuple[KernelClass, ...]:
    """Return the total time of each class of kernels, or operators, longest first; classes without one are left out."""
    classes = []
    for kind in KERNEL_CLASSES:
        if of_class := [kernel for kernel in kernels if kernel_class(kernel) == kind]:
            ms, share, count = (sum(getattr(each, key) for each in of_class) for key in ("ms", "share", "count"))
            classes.append(KernelClass(kind=kind, ms=ms, share=share, count=count))
    return tuple(sorted(classes, key=lambda each: -each.ms))
