"""The record's section `inside`: what the traces of a cell say about one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiling.trace.attribution import CostOf, Witness, Witnesses, anchored, by_work, one_class_a_name, told_by
from profiling.trace.events import HostCall, Timeline, Work, launched_by, traced_calls
from profiling.trace.host_waits import waits_and_copies
from profiling.trace.kernel_classes import CLASSES
from profiling.trace.modules import module_rows, own_times, paths_in


@dataclass(frozen=True)
class Idle:
    """Microseconds of one call, from its first work on the device to the end of its last.

    `busy`: something ran. `host`: nothing ran, and what came next had not been handed over when the device ran dry.
    `between`: what came next had been: it was queued, or is a node of a graph that was being replayed.
    """

    span: float
    busy: float
    host: float
    between: float


def idle_of(work: Sequence[Work], launches: Mapping[int | None, HostCall]) -> Idle:
    """Walk the gaps of a call's `work`, which is sorted by begin and not empty; streams may overlap.

    A gap before work whose launch the trace lost counts as between: nothing says that the host was late.
    """
    host = between = 0.0
    reached, seen = work[0].end, {work[0].correlation}
    for item in work[1:]:
        gap = item.begin - reached
        if gap > 0:
            launch = None if item.correlation in seen else launches.get(item.correlation)
            if launch is not None and launch.end > reached:
                host += gap
            else:
                between += gap
        reached = max(reached, item.end)
        seen.add(item.correlation)
    return Idle(span=reached - work[0].begin, busy=_busy(work), host=host, between=between)


def _busy(work: Sequence[Work]) -> float:
    """Return the time in which at least one ran, from the moments at which they begin and end."""
    moments = sorted([*((item.begin, 1) for item in work), *((item.end, -1) for item in work)])
    busy, running, since = 0.0, 0, 0.0
    for moment, change in moments:
        if running:
            busy += moment - since
        running, since = running + change, moment
    return busy


_NAME_LENGTH = 200
#: A rate is told where what is known makes at least this share of a row's time.
_KNOWN = 0.5


def kernel_rows(calls: Sequence[Sequence[Witness]], parts: int = 1) -> list[dict[str, Any]]:
    """Return a row a name, the longest total first; milliseconds and counts are of one call, `mean_us` of one piece.

    A traced call may be several `parts` (frames), of one of which they are then.
    `gbps` (10⁹ bytes a second) and `tflops` (10¹² FLOPs a second) are over the pieces whose bytes and FLOPs are known.
    """
    groups: dict[str, list[Witness]] = {}
    for call in calls:
        for item in call:
            groups.setdefault(item.work.name, []).append(item)
    whole = _microseconds([item for call in calls for item in call])
    kinds = one_class_a_name(calls)
    rows = [_row(name, kinds[name], items, whole, len(calls) * parts) for name, items in groups.items()]
    return sorted(rows, key=lambda row: -row["ms"])


def class_rows(kernels: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add the rows of `kernel_rows` up by class, the longest total first; classes that do not occur are left out."""
    rows = []
    for kind in CLASSES:
        mine = [row for row in kernels if row["class"] == kind]
        if mine:
            rows.append({"class": kind, **{key: sum(row[key] for row in mine) for key in ("ms", "share", "count")}})
    return sorted(rows, key=lambda row: -row["ms"])


def _row(name: str, kind: str, items: Sequence[Witness], whole: float, calls: int) -> dict[str, Any]:
    total = _microseconds(items)
    row: dict[str, Any] = {
        "name": name[:_NAME_LENGTH],
        "class": kind,
        "ms": total / 1e3 / calls,
        "share": total / whole if whole else 0.0,
        "count": len(items) / calls,
        "mean_us": total / len(items),
    }
    for key, attribute, unit in (("gbps", "bytes", 1e3), ("tflops", "flops", 1e6)):
        known = [item for item in items if getattr(item, attribute) is not None]
        spent = _microseconds(known)
        if spent > 0 and spent >= _KNOWN * total:
            row[key] = sum(getattr(item, attribute) for item in known) / spent / unit
    return row


def _microseconds(items: Sequence[Witness]) -> float:
    return sum(item.work.length for item in items)


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
