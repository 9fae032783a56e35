"""The record's section `inside`: what the traces of a cell say about one call."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiling.inside.anchors import anchored
from profiling.inside.counterparts import by_work, told_by
from profiling.inside.host_waits import waits_and_copies
from profiling.inside.idle import Idle, idle_of
from profiling.inside.kernel_table import class_rows, kernel_rows
from profiling.inside.module_times import module_rows, own_times, paths_in
from profiling.inside.timeline import Timeline, launched_by, traced_calls
from profiling.inside.witness import CostOf, Witness, Witnesses


@dataclass(frozen=True)
class Traces:
    """Traces of one step: `main`, as it is; `reference`, the same work launched one by one; `eager`, the module itself
    where the reference is compiled; `lined`, the step with a span a line of code. Of reference and eager the
    last that there is has a span a submodule. `modules_from` and `lines_from` say in a phrase where those come from, or
    why there are none.
    """

    main: Timeline
    modules_from: str
    lines_from: str
    reference: Timeline | None = None
    eager: Timeline | None = None
    lined: Timeline | None = None


def inside_of(traces: Traces, cost_of: CostOf, root: Path, *, parts: int = 1) -> dict[str, Any] | None:
    """Return the section, times in milliseconds of one call; None where nothing ran on a device.

    Where each traced call is several `parts`, frames that may overlap, all is of one of them.
    """
    calls = traced_calls(traces.main)
    if not calls:
        return None
    launches = launched_by(traces.main)
    idles = [idle_of(call.work, launches) for call in calls]
    known = _witnesses(traces, cost_of)
    kernels = kernel_rows(known, parts)
    waits, copies = waits_and_copies(traces.main, traces.lined, root, parts)
    return {
        "calls": len(calls) * parts,
        **_idle(idles, parts),
        "kernel_ms": sum(row["ms"] for row in kernels),
        "count": sum(len(call.work) for call in calls) / len(calls) / parts,
        "classes": class_rows(kernels),
        "kernels": kernels,
        "waits": waits,
        "copies": copies,
        **_modules(traces, known, parts),
        "lines_from": traces.lines_from,
    }


def on_host(reference: Timeline) -> dict[str, Any] | None:
    """Return the section of a step on a CPU: wall time of each submodule's forward; None where none was seen."""
    if not reference.modules or not reference.calls:
        return None
    calls = len(reference.calls)
    rows, _ = module_rows(own_times(reference.modules), calls, paths_in(reference.modules))
    return {
        "calls": calls,
        "modules": rows,
        "modules_from": "wall time of each forward, of which the profiler makes short ones longer: see the shares",
    }


def _idle(idles: list[Idle], parts: int) -> dict[str, Any]:
    def mean_ms(name: str) -> float:
        return sum(getattr(idle, name) for idle in idles) / 1e3 / len(idles) / parts

    host, between = mean_ms("host"), mean_ms("between")
    return {
        "span_ms": mean_ms("span"),
        "busy_ms": mean_ms("busy"),
        "idle_ms": host + between,
        "idle": {"host_ms": host, "between_ms": between},
    }


def _witnesses(traces: Traces, cost_of: CostOf) -> list[tuple[Witness, ...]]:
    """Return what is known of the work of each traced call, from its own trace and from those beside it."""
    own = Witnesses(traces.main, cost_of)
    told = _last_call(traces.reference, cost_of)
    if traces.eager is not None:
        told = anchored(told, _last_call(traces.eager, cost_of))
    return [by_work(told_by(told, call.work), own.of(call)) for call in traced_calls(traces.main)]


def _last_call(trace: Timeline | None, cost_of: CostOf) -> tuple[Witness, ...]:
    calls = () if trace is None else traced_calls(trace)
    return Witnesses(trace, cost_of).of(calls[-1]) if trace is not None and calls else ()


def _modules(traces: Traces, known: list[tuple[Witness, ...]], parts: int) -> dict[str, Any]:
    trace = traces.eager or traces.reference or traces.main
    spans = trace.modules
    pieces = ((item.module, item.work.length) for call in known for item in call)
    rows, unattributed = module_rows(pieces, len(known) * parts, paths_in(spans))
    section = {"unattributed_ms": unattributed, "modules_from": traces.modules_from}
    return {"modules": rows, **section} if rows else section
