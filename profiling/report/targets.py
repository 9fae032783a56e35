"""Tables of single targets and options: starts and preparation, shape sweeps, launch overhead, and `check=true`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from profiling.errors import printable
from profiling.report.cells import pays_after
from profiling.report.format import Marked, Value, count_of, listed, mebibytes, significant
from profiling.report.page import Section
from profiling.report.run_data import RunData, cell_table
from profiling.report.table import Column, Table, columns
from profiling.results.check import CheckedCall, Obstacle, StateForm, TensorForm
from profiling.results.explanations import LaunchCosts, ShapeCompile
from profiling.results.field import described
from profiling.results.measured import Start, Starts
from profiling.results.record import Record

_COUNTS = ("graphs", "graph_breaks", "recompiles", "cudagraph_captures", "cudagraph_skips", "cache_hits")
_KINDS = ("cold", "warm", "portable")
#: Phases in their order.
_PREPARING = ("transforms", "dynamo", "inductor", "autotune", "export", "package", "load package", "capture")
_PHASES = ("import", "artifacts", "load", *_PREPARING, "call")
_NOTE = (
    "prepare: compile, warm-up and capture, from an empty cache. ~: estimated: other cells were being prepared at the "
    "same time, or the compiled code came from the cache of another variant, whose seconds in inductor, autotune and "
    "package are then added. warm: from a cache, and it is not known what it takes from an empty one."
)
_STARTS_NOTE = ". ".join(
    (
        "A start: a fresh process imports, builds, prepares and makes one call",
        *(f"{kind}: {described(Starts, kind).meaning}" for kind in _KINDS),
        "Files may be in the page cache of the host.",
    )
)
_Started = tuple[Record, Start, str]


def starts_section(data: RunData) -> Section:
    """Return the tables of starts and of preparations, by phase."""
    rows = [r for r in data.records if r.prepare is not None and (r.prepare.phases or r.prepare.graphs)]
    preparing = (
        *columns(Record, "prepare.seconds", "prepare.cache"),
        *columns(Record, *_COUNTS, at="prepare"),
        *columns(Record, *_phases(r.prepare.phases for r in rows if r.prepare is not None), at="prepare.phases"),
    )
    started = [
        (record, start, kind)
        for record in data.records
        for kind in _KINDS
        if (start := getattr(record.starts, kind, None)) is not None
    ]
    starting = (
        Column[_Started]("start", lambda row: row[2]),
        *columns(Start, "seconds"),
        *columns(Start, *_phases(start.phases for _, start, _ in started), at="phases", unit="", depth="report"),
        Column[_Started]("unaccounted", lambda row: row[1].unaccounted, "s", depth="report"),
        *columns(Record, "starts.artifact_bytes", of=lambda row: row[0] if row[2] == "portable" else None),
    )
    tables = (
        cell_table("From the start of a process to its first output", starting, started, [_STARTS_NOTE], keys=3),
        cell_table("Preparation by phase", preparing, rows, [_NOTE], depth="report"),
    )
    return Section("starts", "Starts and preparation", tables=tables)


def _phases(measured: Iterable[Mapping[str, float]]) -> list[str]:
    names = {name for phases in measured for name in phases}
    return sorted(names, key=lambda name: _PHASES.index(name) if name in _PHASES else len(_PHASES))


def shape_sweep_section(data: RunData) -> Section:
    """Return what compiles at each new shape, and the totals with preparation."""
    compiled = [(r, shape) for r in data.records for step in r.recipe or () for shape in step.shapes or ()]
    shapes = columns(ShapeCompile, "inputs", wrap=34), columns(ShapeCompile, "seconds", "graphs", "recompiles")
    new_shapes = cell_table("Compiling shape after shape, in one process", sum(shapes, ()), compiled, keys=3)
    about_shapes = ["Shape after shape: 0 graphs if code compiled for an earlier shape was used."] if compiled else []
    rows = [record for record in data.records if record.call_points]
    if not rows:
        return Section("sweep", "Compiling for new shapes", legend=about_shapes, tables=(new_shapes,))
    numbers = sorted({number for record in rows for number in record.call_points})
    totals = (
        *(
            Column[Record](f"{count_of(number, 'call')},", lambda record, n=number: total_seconds(record, n), "s")
            for number in numbers
        ),
        Column[Record]("a call", lambda r: r.metrics.calls and 1e3 * r.metrics.calls.seconds_per_call, "ms"),
        Column[Record]("pays after", lambda r: pays_after(r, data.groups[r.component]), "count", unit="calls"),
    )
    legend = ["Total time: calls in a row with one wait at the end. Preparation: compiling, warm-up and capture."]
    points = [point for record in rows for point in record.call_points.values()]
    if not all(point.measured for point in points):
        legend.append("~: computed from the time of a call in the longest measured row of calls.")
    if any(record.point is not None and record.point.value == "all" for record in rows):
        legend.append("A range of values: all shapes prepared in one process, the largest one timed.")
    legend += about_shapes
    tables = (new_shapes, cell_table("Total time with preparation", totals, rows))
    return Section("sweep", "Calls in a row", legend=legend, tables=tables)


def total_seconds(record: Record, number: int) -> Value | None:
    """Return the seconds of `number` calls in a row with preparation; None where not known."""
    point, prepare = record.call_points.get(number), record.prepare
    if point is None or prepare is None:
        return None
    seconds = point.seconds + prepare.from_cold
    return seconds if point.measured and prepare.cold_s is None else Marked("~", seconds)


#: A chain of operators, and what its launches cost.
_Chain = tuple[str, LaunchCosts]


def launches_section(data: RunData) -> Section:
    """Return the table of each calibration; the record has the cost of an operator at each size."""
    tables, lines = [], []
    for launches in (record.launches for record in data.records if record.launches is not None):
        costs = launches.launch_calibration
        chains = [("elementwise", costs), *([("linear", costs.linear)] if costs.linear is not None else [])]
        tables.append(Table("Launch costs", _COSTS, chains))
        lines.append(
            f"{costs.device}, {costs.dtype}: slopes over the number of calls, medians of {costs.rounds} rounds with "
            "their 95% intervals."
        )
        for name, each in chains:
            lines += [f"{name}: {note}." for note in (each.starvation_note, each.dispatch_bound_note) if note]
    return Section("launches", "Launch overhead", list(map(printable, lines)), tables=tables)


_COSTS = (
    Column[_Chain]("chain", lambda row: row[0]),
    Column[_Chain]("size", lambda r: count_of(r[1].elements, "element") if r[1].elements else f"width {r[1].width}"),
    *columns(LaunchCosts, "rows"),
    *columns(LaunchCosts, "host_us_per_launch", "gpu_us_per_launch", "graph_us_per_node", "graph_launch_device_us"),
    *columns(LaunchCosts, "graph_launch_host_us", "graph_host_us_per_node", "dispatch_us_per_operator"),
    *columns(LaunchCosts, "starvation_elements", "starvation_width", "starvation_us"),
    *columns(LaunchCosts, "dispatch_bound_elements", "dispatch_bound_width"),
)

#: Most names of state that a line lists.
_MOST_NAMES = 6


#: A tensor or a value that a call of a network reads, returns or keeps.
_Tensor = tuple[str, TensorForm | StateForm, str]


def check_section(data: RunData) -> Section:
    """Return, for each network, a line on parameters and state, one on each obstacle, and a table of its tensors."""
    checked = [(record.component, record.check) for record in data.records if record.check is not None]
    lines: list[str] = []
    rows: list[_Tensor] = []
    for component, check in checked:
        for name, call in check.calls.items():
            title = name if name == component else f"{component}, {name}"
            lines += _lines(title, call)
            roles = (("input", call.inputs), ("output", call.outputs), ("state", call.state))
            rows += [(title, form, role) for role, forms in roles for form in forms]
        if check.seconds is not None:
            lines.append(f"{component}: checked in {significant(check.seconds, 2)} s, nothing was timed.")
    table = Table("Tensors of a call", _TENSORS, rows, keys=3)
    return Section("check", "Check", tuple(map(printable, lines)), tables=(table,))


def _lines(name: str, call: CheckedCall) -> Iterator[str]:
    dtypes = listed([f"{count:,} {dtype}" for dtype, count in call.parameter_dtypes.items()] or ["none"])
    yield f"{name}: parameters: {dtypes}, {mebibytes(call.parameter_bytes)} MiB. {_state(call)}"
    yield from (f"{name}, {call.calls} calls in a row: {each}." for each in call.effects)
    places: dict[str, list[str]] = {"parity": [], "cuda_graph": [], "compile": []}
    for each in call.obstacles:
        places[each.hinders].append(_obstacle(each))
    yield from (f"{name}, parity: {each}" for each in places["parity"])
    if call.captured:
        yield f"{name}, CUDA graph: a call was captured."
    elif not places["cuda_graph"]:
        yield f"{name}, CUDA graph: nothing stands in its way, as far as a CPU can show: no capture can be tried here."
    yield from (f"{name}, CUDA graph: {each}" for each in places["cuda_graph"])
    if call.compiled_graphs == 1 and not places["compile"]:
        yield f"{name}, torch.compile: one call is 1 graph, without a break."
    elif call.compiled_graphs and not places["compile"]:
        graphs = count_of(call.compiled_graphs, "graph")
        yield f"{name}, torch.compile: the call is {graphs}. What lies between runs eagerly; Dynamo names no place."
    cause = "graph break: " if call.compiled_graphs else ""  # without a graph there is nothing to break
    yield from (f"{name}, torch.compile: {cause}{each}" for each in places["compile"])
    yield from (f"{name}: {reason}." for reason in call.unknown)


def _state(call: CheckedCall) -> str:
    if not call.state:
        return "No state."
    changed = [each.path for each in call.state if each.changed]
    size = f"{count_of(len(call.state), 'tensor')}, {mebibytes(sum(each.bytes for each in call.state))} MiB"
    if not changed:
        return f"State: {size}; a call changes none of it."
    more = f" and {len(changed) - _MOST_NAMES} more" if len(changed) > _MOST_NAMES else ""
    return f"State: {size}; a call changes {', '.join(changed[:_MOST_NAMES])}{more}."


def _obstacle(each: Obstacle) -> str:
    place = f"{each.file}:{each.line} ({each.code})" if each.file else (each.operator or "")
    reason = f"{place}: {each.reason}" if place else each.reason
    return f"{reason.rstrip('.')}." + (f" To do: {each.advice.rstrip('.')}." if each.advice else "")


_TENSORS = (
    Column[_Tensor]("component", lambda row: row[0]),
    Column[_Tensor]("role", lambda row: row[2]),
    Column[_Tensor]("name", lambda row: row[1].path or "(itself)"),
    *columns(TensorForm, "dtype", "value"),
    Column[_Tensor]("shape", lambda row: None if row[1].shape is None else str(list(row[1].shape))),
    *columns(TensorForm, "device"),
    *columns(StateForm, "bytes", "changed"),
)
