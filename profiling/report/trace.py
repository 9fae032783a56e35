"""The profiler trace of a call: busy and idle time of the GPU, kernels, submodules, waits and copies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from profiling.errors import printable
from profiling.report.charts import (
    GREY,
    RED,
    Chart,
    Figure,
    Trace,
    View,
    axis,
    bars,
    figure,
    palette,
    plain,
    points,
    rounded,
    tree,
)
from profiling.report.format import count_of, decimals, percent, significant
from profiling.report.hardware_counters import counters_table
from profiling.report.page import Section
from profiling.report.run_data import RunData, cell_table, cell_words, itself, name_of
from profiling.report.table import Column
from profiling.results.explained import HostWait, Kernel, KernelClass, ModuleTime, TraceAnalysis
from profiling.results.judgement import by_component, fastest_correct
from profiling.results.record import Record

#: Titles of tables that other sections link to.
KERNELS = "Kernels by total time"
#: Classes of kernels, in the order in which bars stack them.
CLASSES = ("gemm", "conv", "attention", "pointwise", "reduction", "copy", "other")
#: Least rows of kernels and of submodules for a cell, and rows that all traced cells share if that is more.
_KERNELS, _MODULES, _ROWS = 12, 20, 150
#: Most kernel classes that a line names, and the least share (0 to 1) of each.
_MOST_CLASSES, _LEAST_SHARE = 4, 0.01
#: Most submodules in the trees of all cells (about 100 bytes each), and levels that a tree shows at once.
_NODES, _LEVELS = 2_500, 4
_PALE_RED = "#eb9ea2"
_IDLE = (("idle, waiting for the host", "host_ms", RED), ("idle, between kernels", "between_ms", _PALE_RED))
#: Class of what a trace on a CPU lists.
_OPERATOR = "operator"
#: Names of nodes that no module's path can be.
_ROOT, _LOST = ".", ".."

_BUS = "Waits of the host, and copies between host and device"
_PROFILED = "The profiler slows down the host, and replays by up to 10%: idle time is longer here than when timed."
_OF_CEILINGS = (
    "Of the bandwidth: share of the ceiling for the bytes of a launch, which a cache may hold. Of the FLOP "
    "ceiling: share of that of the operands' dtype. Why a kernel is far below both, because of L2 for example, no "
    "trace shows: counters=true measures it."
)
_OPERATORS = (
    "On a CPU: operators, with their self time and its share of the call under the profiler. The self time of a "
    "compiled region is that of the code that the compiler generated."
)
_SELF = (
    "Self: time without its submodules; it adds up to the call. *: sum over indexed submodules of the same structure. "
    "Count: kernels, copies and fills; on a CPU, calls of the submodule and of those in it."
)


@dataclass(frozen=True)
class _Class:
    record: Record
    kernels: KernelClass


@dataclass(frozen=True)
class _Wait:
    record: Record
    wait: HostWait


@dataclass(frozen=True)
class _Kernel:
    """A kernel, or the sum of those that are not listed one by one, against what the device does at best."""

    record: Record
    name: str
    kind: str | None
    count: float | None
    ms: float
    share: float | None
    mean_us: float | None = None
    gbps: float | None = None
    of_bandwidth: float | None = None
    tflops: float | None = None
    of_flops: float | None = None


@dataclass(frozen=True)
class _Module:
    """Submodules that are built alike, or the sum of those that are not listed."""

    record: Record
    name: str
    modules: int | None = None
    count: float | None = None
    ms: float | None = None
    share: float | None = None
    self_ms: float | None = None
    self_share: float | None = None


def trace_section(data: RunData) -> Section:
    """Return a line for the fastest correct cell of each component; tables and charts of all cells with a trace."""
    traced = [record for record in data.records if record.trace_analysis is not None]
    traces = [(record, _trace(record)) for record in traced]
    best = [fastest_correct(group) for group in data.groups.values()]
    lines = [f"{name_of(r)}: {words}." for r in best if r is not None and (words := _line(_trace(r)))]
    seen = [record for record, trace in traces if trace.span_ms is not None]
    classes = [_Class(record, each) for record, trace in traces for each in trace.classes]
    waits = [_Wait(record, each) for record, trace in traces for each in (*trace.waits, *trace.copies)]
    kernels, modules = list(_kernels(traced, data)), list(_modules(traced))
    waiting = [record for record, trace in traces if trace.waits or trace.copies]
    on_cpu = [_on_cpu(record) for record in traced]
    kernel_notes = (*([_OPERATORS] if any(on_cpu) else []), *([] if all(on_cpu) else [_OF_CEILINGS]))
    module_notes = (_SELF, *_sources(traced, "modules_from"))
    tables = (
        cell_table("GPU time of a call, busy and idle", _BUSY, seen, itself, (_PROFILED,), depth="report"),
        cell_table("GPU time by class of kernel", _CLASSES, classes, _record_of, (), 3, "report"),
        cell_table(KERNELS, _KERNEL, kernels, _record_of, kernel_notes, 3, "report"),
        counters_table(data),
        cell_table("Time by submodule", _MODULE, modules, _record_of, module_notes, 3, "report"),
        cell_table(_BUS, _WAITS, waits, _record_of, _sources(waiting, "lines_from"), depth="report"),
    )
    charts = (
        Chart(
            "trace-classes",
            "GPU time of a call by class of kernel, and idle",
            _class_views(seen),
            "Red: idle because the host has not launched the next kernel. Pale red: idle between kernels that were "
            "launched already. Grey marks: the span from the first kernel to the end of the last; where kernels run "
            "side by side their bars reach beyond it.",
        ),
        Chart(
            "trace-modules",
            "Time by submodule",
            _module_views(traced),
            "Left: the whole call. Right: its submodules, each as tall as its share of the time. Click a submodule to "
            "zoom in, and the bar on top to zoom out.",
        ),
    )
    return Section("trace", "Inside a call", tuple(map(printable, lines)), tables=tables, charts=charts)


def class_ms(trace: TraceAnalysis) -> dict[str, float]:
    """Return the milliseconds of each class of kernel in a call; a class that is not known counts as other."""
    times: dict[str, float] = {}
    for each in trace.classes:
        name = each.kind if each.kind in CLASSES else CLASSES[-1]
        times[name] = times.get(name, 0.0) + each.ms
    return {name: times[name] for name in CLASSES if name in times}


def class_shares(trace: TraceAnalysis, most: int = _MOST_CLASSES) -> list[str]:
    """Return the classes that take most of the kernel time with their shares: `gemm 75%`, `reduction 13%`."""
    whole = trace.kernel_ms or 0.0
    ranked = sorted(class_ms(trace).items(), key=lambda item: -item[1])[:most]
    return [f"{name} {percent(ms / whole)}" for name, ms in ranked if whole and ms >= _LEAST_SHARE * whole]


def folded(paths: Iterable[str]) -> dict[str, str]:
    """Return each path with `*` for an index (`layers.*.mlp`), where all its modules have the same submodules.

    Layers of an `nn.Sequential` that have no submodules may be of different types, and keep their indices.
    """
    parts = {path: path.split(".") for path in paths}
    below: dict[tuple[str, ...], dict[str, set[str]]] = {}
    for names in parts.values():
        for place, name in enumerate(names):
            if name.isdecimal():
                numbered = below.setdefault(tuple(names[:place]), {})
                numbered.setdefault(name, set()).add(".".join(names[place + 1 :]))
    alike = {prefix for prefix, numbered in below.items() if _alike(list(numbered.values()))}
    return {
        path: ".".join("*" if n.isdecimal() and tuple(names[:i]) in alike else n for i, n in enumerate(names))
        for path, names in parts.items()
    }


def _alike(submodules: Sequence[set[str]]) -> bool:
    return len(submodules) > 1 and all(each == submodules[0] for each in submodules) and submodules[0] != {""}


def _trace(record: Record) -> TraceAnalysis:
    return record.trace_analysis if record.trace_analysis is not None else TraceAnalysis()


def _record_of(row: _Class | _Wait | _Kernel | _Module) -> Record:
    return row.record


def _line(trace: TraceAnalysis) -> str:
    """Return busy and idle time of the GPU in a call, its classes of kernels, and waits of the host."""
    if trace.span_ms is None or trace.busy_ms is None:
        return ""
    places = decimals(trace.busy_ms, 3)
    parts = [] if trace.count is None else [count_of(trace.count, "kernel")]
    parts.append(f"GPU busy {trace.busy_ms:.{places}f} of {trace.span_ms:.{places}f} ms under the profiler")
    parts += class_shares(trace)
    line = ", ".join(parts)
    waits = sum(wait.count for wait in trace.waits)
    if waits:  # the host should not wait at all inside a call
        where = max(trace.waits, key=lambda wait: wait.ms).line
        line += f"; the host waits {count_of(waits, 'time')} a call{f', longest at {where}' if where else ''}"
    return line


def _sources(records: Sequence[Record], field: str) -> tuple[str, ...]:
    """Return a line for each way in which lines or submodules were attributed, and the cells of each."""
    cells: dict[str, list[str]] = {}
    for record in records:
        if phrase := getattr(_trace(record), field):
            cells.setdefault(phrase, []).append(name_of(record))
    return tuple(f"{_how(phrase)} ({', '.join(names)})" for phrase, names in cells.items())


def _how(phrase: str) -> str:
    """Return the sentence on an attribution, or on why there is none."""
    return f"{phrase[:1].upper()}{phrase[1:]}" if phrase.startswith("not ") else f"Attributed by {phrase}"


def _kernels(records: Sequence[Record], data: RunData) -> Iterator[_Kernel]:
    """Yield the longest kernels of each cell, and the sum of its others."""
    most, ceilings = max(_KERNELS, _ROWS // max(1, len(records))), data.environment.ceilings
    for record in records:
        kernels = sorted(_trace(record).kernels, key=lambda kernel: -kernel.ms)
        for each in kernels[:most]:
            typed = each if each.dtype is not None else replace(each, dtype=record.dtype)
            memory, compute = (0.0, 0.0) if ceilings is None else ceilings.shares(typed)
            yield _Kernel(
                *(record, each.name, each.kind, each.count, each.ms, each.share, each.mean_us),
                *(each.gbps, memory or None, each.tflops, compute or None),
            )
        if rest := kernels[most:]:
            count, ms, share = (_added(rest, name) for name in ("count", "ms", "share"))
            yield _Kernel(record, f"and {len(rest)} more", None, count, ms or 0.0, share)
        ms, share = (_added(kernels, name) or 0.0 for name in ("ms", "share"))
        if _on_cpu(record) and 0 < share < 1:
            yield _Kernel(record, "outside of operators: Python, the profiler", None, None, ms / share - ms, 1 - share)


def _on_cpu(record: Record) -> bool:
    """Return whether the trace lists operators of the host in place of kernels."""
    return any(kernel.kind == _OPERATOR for kernel in _trace(record).kernels)


def _of(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _added(items: Iterable[Kernel | ModuleTime], name: str) -> float | None:
    known = [value for item in items if (value := getattr(item, name)) is not None]
    return sum(known) if known else None


def _modules(records: Sequence[Record]) -> Iterator[_Module]:
    """Yield the longest submodules of each cell in the order of the tree, the sum of its others, and the rest."""
    most = max(_MODULES, _ROWS // max(1, len(records)))
    for record in records:
        trace = _trace(record)
        groups: dict[str, list[ModuleTime]] = {}
        names = folded(module.path for module in trace.modules)
        for module in trace.modules:
            groups.setdefault(names[module.path], []).append(module)
        kept = set(sorted(groups, key=lambda path: -(_added(groups[path], "ms") or 0.0))[:most])
        for path, group in groups.items():
            if path in kept:
                count, ms, share, own = (_added(group, name) for name in ("count", "ms", "share", "self_ms"))
                own_share = share * own / ms if share is not None and own is not None and ms else None
                yield _Module(record, path or "(the whole component)", len(group), count, ms, share, own, own_share)
        rest = [module for path, group in groups.items() if path not in kept for module in group]
        if rest:
            name = f"and {len(groups) - len(kept)} more"
            yield _Module(record, name, len(rest), self_ms=_added(rest, "self_ms"))
        yield from _beside_modules(record, trace)


def _beside_modules(record: Record, trace: TraceAnalysis) -> Iterator[_Module]:
    """Yield what a call takes beside its submodules, and the call: the times of submodules themselves add up to it."""
    if not trace.modules and not trace.unattributed_ms:
        return
    side_by_side = idle = None
    if trace.kernel_ms is not None and trace.busy_ms is not None:
        side_by_side, idle = round(trace.busy_ms - trace.kernel_ms, 6), trace.idle_ms
    rows = (
        ("not attributable", trace.unattributed_ms),
        ("kernels that run side by side: counted twice above", side_by_side),
        ("GPU idle", idle),
    )
    for name, ms in rows:
        if ms:
            share = _of(ms, trace.kernel_ms) if ms is trace.unattributed_ms else None
            yield _Module(record, name, share=share, self_ms=ms, self_share=share)
    whole = sum(module.self_ms or 0.0 for module in trace.modules) + sum(ms for _, ms in rows if ms)
    yield _Module(record, "the call, under the profiler", ms=whole)


_BUSY = (
    Column[Record]("calls traced", lambda row: _trace(row).calls, "count"),
    Column[Record]("kernels, copies, fills", lambda row: _trace(row).count, "count"),
    Column[Record]("span", lambda row: _trace(row).span_ms, "ms", measured=True),
    Column[Record]("busy", lambda row: _trace(row).busy_ms, "ms", measured=True),
    Column[Record]("idle", lambda row: _trace(row).idle_ms, "ms", measured=True),
    Column[Record]("idle", lambda row: _of(_trace(row).idle_ms, _trace(row).span_ms), "percent", unit="share"),
    Column[Record](
        "idle, waiting for the host", lambda row: getattr(_trace(row).idle, "host_ms", None), "ms", measured=True
    ),
    Column[Record](
        "idle, between kernels", lambda row: getattr(_trace(row).idle, "between_ms", None), "ms", measured=True
    ),
    Column[Record]("sum of kernels", lambda row: _trace(row).kernel_ms, "ms", measured=True),
)
_CLASSES = (
    Column[_Class]("class", lambda row: row.kernels.kind),
    Column[_Class]("kernels", lambda row: row.kernels.count, "count"),
    Column[_Class]("total", lambda row: row.kernels.ms, "ms", measured=True),
    Column[_Class]("share", lambda row: row.kernels.share, "percent"),
)
_KERNEL = (
    Column[_Kernel]("kernel", lambda row: row.name),
    Column[_Kernel]("class", lambda row: row.kind),
    Column[_Kernel]("count", lambda row: row.count, "count"),
    Column[_Kernel]("mean", lambda row: row.mean_us, "us", measured=True),
    Column[_Kernel]("total", lambda row: row.ms, "ms", measured=True),
    Column[_Kernel]("share", lambda row: row.share, "percent"),
    Column[_Kernel]("GB/s", lambda row: row.gbps, "number"),
    Column[_Kernel]("of the bandwidth", lambda row: row.of_bandwidth, "percent"),
    Column[_Kernel]("TFLOP/s", lambda row: row.tflops, "number"),
    Column[_Kernel]("of the FLOP ceiling", lambda row: row.of_flops, "percent"),
)
_MODULE = (
    Column[_Module]("module", lambda row: row.name),
    Column[_Module]("modules", lambda row: row.modules, "count"),
    Column[_Module]("count", lambda row: row.count, "count"),
    Column[_Module]("total", lambda row: row.ms, "ms", measured=True),
    Column[_Module]("share", lambda row: row.share, "percent"),
    Column[_Module]("self", lambda row: row.self_ms, "ms", measured=True),
    Column[_Module]("self", lambda row: row.self_share, "percent", unit="share"),
)
_WAITS = (
    Column[_Wait]("what", lambda row: row.wait.what),
    Column[_Wait]("line", lambda row: row.wait.line),
    Column[_Wait]("code", lambda row: row.wait.code),
    Column[_Wait]("count", lambda row: row.wait.count, "count"),
    Column[_Wait]("time", lambda row: row.wait.ms, "ms", measured=True),
    Column[_Wait]("copied", lambda row: row.wait.bytes, "MiB"),
)


def _class_views(records: Sequence[Record]) -> list[View]:
    """Return a view of all cells and, of several components, one of each."""
    groups = by_component(records)
    views = [View(component, _class_figure(group)) for component, group in groups.items()]
    return views if len(groups) < 2 else [View("all components", _class_figure(records)), *views]


def _class_figure(records: Sequence[Record]) -> Figure:
    names, colours = [cell_words(record, component=True) for record in records], palette(CLASSES)
    times = [class_ms(_trace(record)) for record in records]
    kinds = [(name, colours[name], [each.get(name) for each in times]) for name in CLASSES]
    kinds += [(name, colour, [getattr(_trace(r).idle, key, None) for r in records]) for name, key, colour in _IDLE]
    traces = [bars(name, names, ms, colour, horizontal=True) for name, colour, ms in kinds if any(ms)]
    spans = [_trace(record).span_ms or 0.0 for record in records]
    mark = {"symbol": "line-ns-open", "size": 24, "color": GREY, "line": {"width": 3}}
    span = {**points("span", rounded(spans), []), "y": list(map(plain, names)), "marker": mark}
    y = axis("cell", type="category", autorange="reversed")
    return figure([*traces, span], axis("time of a call on the GPU, ms", rangemode="tozero"), y, barmode="stack")


def _module_views(records: Sequence[Record]) -> list[View]:
    """Return the tree of submodules of each cell that has one."""
    rows = [record for record in records if any(module.ms for module in _trace(record).modules)]
    most = max(60, _NODES // max(1, len(rows)))
    return [View(cell_words(record, component=True), tree(_tree(record, most))) for record in rows]


def _tree(record: Record, most: int) -> Trace:
    """Return the icicle of the `most` longest submodules; what is left out counts as its parent's own time."""
    trace = _trace(record)
    modules = {module.path: module for module in trace.modules if module.ms}
    kept = set(sorted(modules, key=lambda path: -modules[path].ms)[:most])
    noun = "call" if trace.kernel_ms is None else "kernel"  # without a device calls are counted
    nodes = {_ROOT: (cell_words(record, component=True), "", "")}
    own = {_ROOT: 0.0}
    for path in (path for path in modules if path and path in kept):
        parent = _parent(path, kept)
        nodes[path] = (path.removeprefix(f"{parent}."), parent, _hover(modules[path], noun))
        own[path] = modules[path].self_ms or 0.0
    for path in (path for path in modules if path not in nodes):
        own[_parent(path, kept)] += modules[path].self_ms or 0.0
    if trace.unattributed_ms:
        nodes[_LOST] = (
            "not attributable",
            _ROOT,
            f"{significant(trace.unattributed_ms)} ms that belong to no submodule for certain",
        )
        own[_LOST] = trace.unattributed_ms
    return {
        "type": "icicle",
        "ids": [plain(path) for path in nodes],
        "labels": [plain(label) for label, _, _ in nodes.values()],
        "parents": [plain(parent) for _, parent, _ in nodes.values()],
        "values": rounded(own[path] for path in nodes),
        "text": [plain(text) for _, _, text in nodes.values()],
        "branchvalues": "remainder",
        "sort": False,
        "maxdepth": _LEVELS,
        "marker": {"line": {"color": GREY, "width": 0.5}},
        "textinfo": "label",
        "hoverinfo": "label+text",
    }


def _parent(path: str, kept: Mapping[str, object] | set[str]) -> str:
    """Return the nearest module above `path` that is kept."""
    while path:
        path = path.rpartition(".")[0]
        if path and path in kept:
            return path
    return _ROOT


def _hover(module: ModuleTime, noun: str) -> str:
    counted = "" if module.count is None else f", {count_of(module.count, noun)}"
    return (
        f"{module.path}: {significant(module.ms)} ms ({percent(module.share)}), "
        f"itself {significant(module.self_ms)} ms{counted}"
    )
