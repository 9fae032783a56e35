"""Where the time of a call goes: a bar for each correct recipe, by class of kernel; and of a frame, by stage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from profiling.report.charts import GREY, Chart, Node, Part, Row, Rows, palette
from profiling.report.format import count_of, percent, significant
from profiling.report.run_data import RunData, cell_words
from profiling.results.explanations import KERNEL_CLASSES, KernelClass, ModuleTime
from profiling.results.loop import Realtime
from profiling.results.record import Record
from profiling.results.verdicts import by_component, fastest_correct

#: What is left of the median beside kernels, or operators; and kernels whose classes are not known.
_GAPS, _OUTSIDE, _UNKNOWN = "launch gaps, host", "outside operators", "kernels of no known class"
_COLOURS = palette([*KERNEL_CLASSES.values(), _UNKNOWN]) | {_GAPS: GREY, _OUTSIDE: GREY}
#: Where a bar is longer than `_FAR` times the shortest, the axis ends at `_IN_SIGHT` times the shortest.
_FAR, _IN_SIGHT = 7, 5
#: Parts of a bar below this share of it are left out.
_LEAST_PART = 1e-3
#: Submodules below this share of a call count as their parent's own time.
_LEAST_SHARE = 0.002
_NOTE = (
    "Bars: the median wall time. Kernels: their durations in a few profiled calls, scaled to fit where they run side "
    "by side or exceed the median. Launch gaps, host: the rest, in which the GPU had nothing to run. ▸: longer than "
    "the axis."
)
_OF_FRAMES = "Bars: the mean time of a frame by stage, of loops whose stages do not overlap."
_ON_CPU = "On a CPU: operators, by their share of a profiled call; outside operators: Python."


def time_charts(data: RunData) -> tuple[Chart, ...]:
    """Return the charts of where the time of a call or a frame goes, and of the modules of the fastest cells."""
    calls = {record.cell: parts for record in data.timed if record.is_correct and (parts := call_parts(record))}
    on_cpu = [record.device == "cpu" for record in data.timed if record.cell in calls]
    note = " ".join(words for words, shown in ((_NOTE, not all(on_cpu)), (_ON_CPU, any(on_cpu))) if shown)
    of_calls = Chart("time", "Where the time of a call goes", _bars(data.timed, calls), note)
    loops = {record.cell: record.realtime for record in data.loops if record.is_correct and record.realtime is not None}
    colours = palette(stage for loop in loops.values() for stage in loop.stages)
    frames = {cell: parts for cell, loop in loops.items() if (parts := _frame_parts(loop, colours))}
    of_frames = Chart("stages", "Where the time of a frame goes", _bars(data.loops, frames), _OF_FRAMES)
    best = [fastest_correct(each for each in group if _modules(each)[0]) for group in data.groups.values()]
    trees = {cell_words(record, component=True): _tree(record) for record in best if record is not None}
    note = "Each module is as wide as its time; below it, its submodules."
    return of_calls, of_frames, Chart("modules", "Time by module, of the fastest recipe that has modules", trees, note)


def _bars(records: Iterable[Record], parts: Mapping[tuple[str, str], Sequence[Part]]) -> dict[str, Rows]:
    """Return the bars, by component, of the records of which parts are known."""
    bars = dict[str, Rows]()
    for component, group in by_component(record for record in records if record.cell in parts).items():
        rows = []
        for record in group:
            of_record = parts[record.cell]
            whole_ms = record.wall_p50 or sum(part.ms for part in of_record)  # of a frame all parts are known
            rows.append(Row(cell_words(record), f"{significant(whole_ms)} ms", of_record))
        times = [row.ms for row in rows]
        end = max(times) if max(times) <= _FAR * min(times) else _IN_SIGHT * min(times)
        bars[component] = Rows(rows, end)
    return bars


def _frame_parts(loop: Realtime, colours: Mapping[str, str]) -> tuple[Part, ...]:
    """Return the mean time of a frame by stage, with what is left of it; empty without stages, or if they overlap."""
    parts = loop.budget.parts if loop.budget is not None else {}
    means = {name: part.mean_ms for name, part in parts.items() if part.mean_ms is not None}
    if not loop.stages or not means.keys() >= set(loop.stages):
        return ()
    return tuple(Part(name, ms, colours.get(name, GREY)) for name, ms in means.items())


def call_parts(record: Record) -> tuple[Part, ...]:
    """Return the median wall time of a call by class of kernel, with what is left of it; empty where not known."""
    wall_ms, on_cpu = record.wall_p50, record.device == "cpu"
    times = _operator_ms(record) if on_cpu else _kernel_ms(record)
    if not times or not wall_ms:
        return ()
    scale = min(1.0, wall_ms / sum(times.values()))
    times = {title: ms * scale for title, ms in times.items() if ms > _LEAST_PART * wall_ms}
    left_ms = wall_ms - sum(times.values())
    if left_ms > _LEAST_PART * wall_ms:
        times[_OUTSIDE if on_cpu else _GAPS] = left_ms
    return tuple(Part(title, times[title], colour) for title, colour in _COLOURS.items() if title in times)


def _kernel_ms(record: Record) -> dict[str, float]:
    """Return the time in which the GPU worked by class of kernel, from the trace or the short profile of the call."""
    trace, roofline = record.trace_analysis, record.roofline
    work = roofline.device_work if roofline is not None else None
    if trace is not None and trace.classes and trace.busy_ms:
        times, busy_ms = _by_title(trace.classes), trace.busy_ms
    elif roofline is not None and work is not None:
        times, busy_ms = _by_title(roofline.classes or roofline.kernels), work.busy_ms
    else:
        return {}
    total = sum(times.values())
    if total > busy_ms:  # side by side
        return {title: ms * busy_ms / total for title, ms in times.items()}
    return {**times, _UNKNOWN: busy_ms - total}


def _operator_ms(record: Record) -> dict[str, float]:
    """Return the time of a call in operators by class, from their shares of a profiled call."""
    classes = record.roofline.classes if record.roofline is not None else ()
    shares = [replace(each, ms=(record.wall_p50 or 0.0) * (each.share or 0.0)) for each in classes]
    return _by_title(shares)


def _by_title(classes: Iterable[KernelClass]) -> dict[str, float]:
    times: dict[str, float] = {}
    for each in classes:
        title = KERNEL_CLASSES.get(each.kind, KERNEL_CLASSES["other"])
        times[title] = times.get(title, 0.0) + each.ms
    return times


def _modules(record: Record) -> tuple[dict[str, ModuleTime], float]:
    """Return the modules that take time, by path, and the ms of none: of the trace, else of the roofline."""
    for found in (record.trace_analysis, record.roofline):
        if found is not None and (modules := {each.path: each for each in found.modules if each.ms}):
            return modules, found.unattributed_ms or 0.0
    return {}, 0.0


def _tree(record: Record) -> Node:
    """Return the modules of a call as a tree; what no module is known for stands at its end."""
    modules, unattributed_ms = _modules(record)
    whole_ms = sum(module.self_ms or 0.0 for module in modules.values()) + unattributed_ms
    kept = {path for path, module in modules.items() if path and module.ms >= _LEAST_SHARE * whole_ms}
    on_gpu = record.trace_analysis is None or record.trace_analysis.kernel_ms is not None
    noun = "kernel" if on_gpu else "call"
    own_ms = dict.fromkeys(("", *kept), 0.0)
    below: dict[str, list[str]] = {}
    for path, module in modules.items():
        own_ms[path if path in kept else _parent(path, kept)] += module.self_ms or 0.0
        if path in kept:
            below.setdefault(_parent(path, kept), []).append(path)

    def node(path: str) -> Node:
        label, words = path.removeprefix(f"{_parent(path, kept)}."), _words(modules[path], noun)
        return Node(label, words, own_ms[path], [node(each) for each in below.get(path, ())])

    inner = [node(path) for path in below.get("", ())]
    if unattributed_ms:
        words = f"{significant(unattributed_ms)} ms that belong to no submodule for certain"
        inner.append(Node("no module", words, unattributed_ms))
    name = cell_words(record, component=True)
    words = f"{name}: {significant(whole_ms)} ms of {noun}s"
    if record.wall_p50 is not None and whole_ms > record.wall_p50:
        words += f", side by side in a call of {significant(record.wall_p50)} ms"
    return Node(name, words, own_ms[""], inner)


def _parent(path: str, kept: set[str]) -> str:
    """Return the nearest module above `path` that is kept; empty for the whole."""
    while path:
        path = path.rpartition(".")[0]
        if path in kept:
            return path
    return ""


def _words(module: ModuleTime, noun: str) -> str:
    counted = "" if module.count is None else f", {count_of(module.count, noun)}"
    own = f"its own {significant(module.self_ms)} ms"
    return f"{module.path}: {significant(module.ms)} ms ({percent(module.share)}), {own}{counted}"
