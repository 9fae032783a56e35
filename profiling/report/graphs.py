"""What recipe steps, CUDA graphs, torch.fx passes and torch.compile did, and the files to open."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from profiling.errors import printable
from profiling.report.format import Value, count_of
from profiling.report.page import Section
from profiling.report.run_data import RunData, cell_table, first, itself, name_of
from profiling.report.table import Column
from profiling.results.explained import FxPass, Graphs, KernelFile, Package, RecipeStep
from profiling.results.record import Record

#: Most lines of compiler reasons for a cell in the console; `report.md` holds all.
_MOST = 8
_COUNTS = (
    ("graphs", "graphs"),
    ("graph_breaks", "graph breaks"),
    ("recompiles", "recompiles"),
    ("cudagraph_captures", "CUDA graphs captured"),
    ("cudagraph_skips", "CUDA graphs skipped"),
    ("cache_hits", "cache hits"),
)
_PERFETTO = (
    "To open a trace, drop its .json.gz file onto ui.perfetto.dev in a browser, which reads it without uploading it. "
    "Operator tables are text."
)
_MEMORY_VIZ = (
    "To open a memory snapshot, drop its .pickle file onto pytorch.org/memory_viz in a browser, which reads it without "
    "uploading it. It shows what was allocated when, and by which lines, in a load, a preparation and a few calls that "
    "were made after the timed ones."
)

_Reason = tuple[Record, str, str | None, str, str | None]
_Kernel = tuple[Record, KernelFile]


def recipe_section(data: RunData) -> Section:
    """Return the tables of the steps of each recipe (seconds, changes, memory) and of the files that they wrote."""
    steps = [(record, step) for record in data.records for step in record.recipe or ()]
    table = cell_table("Steps of the recipes", _STEPS, steps, first, keys=4, depth="report")
    packages = [(record, package) for record, step in steps for package in step.packages or ()]
    files = cell_table("Files compiled ahead of time", _PACKAGES, packages, first, keys=3, depth="report")
    return Section("recipe", "Recipes", tables=(table, files))


def graphs_section(data: RunData) -> Section:
    """Return the tables of captured CUDA graphs and of torch.fx passes."""
    captured = [record for record in data.records if record.graphs is not None]
    passes = [(record, each) for record in data.records for each in record.passes or ()]
    graphs = cell_table("CUDA graphs: a call without and with replay", _GRAPHS, captured, itself)
    title = "torch.fx passes, each against the module before it"
    table = cell_table(title, _PASSES, passes, first, keys=3, depth="report")
    return Section("graphs", "CUDA graphs", tables=(graphs, table))


def compile_section(data: RunData) -> Section:
    """Return the compile times and counts of each compiled cell, and the compiler's reasons for breaks and skips."""
    compiled = [r for r in data.records if r.compile is not None or (r.prepare is not None and r.prepare.compiles)]
    reasons = [reason for record in compiled for reason in _reasons(record)]
    phases = dict.fromkeys(name for record in compiled if record.compile for name in record.compile.phases)
    kernels = [(record, kernel) for record in data.records for kernel in record.kernels or ()]
    tables = (
        cell_table("What was compiled", _compiled(data), compiled, itself, depth="report"),
        cell_table(
            "Seconds of compiling by phase",
            [Column[Record](printable(name), _phase(name), "s", unit="") for name in phases],
            [record for record in compiled if record.compile is not None and record.compile.phases],
            itself,
            depth="report",
        ),
        cell_table("What the compiler reported", _REASONS, reasons, first, depth="report"),
        cell_table("Kernel files", _kernel_columns(data), kernels, first, depth="page"),
    )
    return Section("compile", "torch.compile", _lines(reasons), tables=tables)


def files_section(data: RunData) -> Section:
    """Return the traces, operator tables and memory snapshots as links, and how they are opened."""
    traced = [record for record in data.records if record.trace is not None]
    recorded = [record for record in data.records if record.memory_snapshot is not None]
    columns = (
        Column[Record]("trace", lambda record: data.link(record.trace.trace if record.trace else None)),
        Column[Record]("operator table", lambda record: data.link(record.trace.operators if record.trace else None)),
    )
    snapshots = (
        Column[Record]("snapshot", lambda record: data.link(getattr(record.memory_snapshot, "file", None))),
        Column[Record]("ended by", lambda record: getattr(record.memory_snapshot, "ended_by", None)),
    )
    return Section(
        "traces",
        "Traces",
        legend=(*((_PERFETTO,) if traced else ()), *((_MEMORY_VIZ,) if recorded else ())),
        tables=(
            cell_table("Traces of the profiler", columns, traced, itself, depth="report"),
            cell_table("Memory snapshots", snapshots, recorded, itself, depth="report"),
        ),
    )


def file_lines(data: RunData) -> tuple[str, ...]:
    """Return where the folders of compile reports and traces are, a line each, for the end of the console."""
    indexes = [r.compile.index for r in data.records if r.compile is not None]
    traces = [r.trace.trace for r in data.records if r.trace is not None]
    lines = [f"compile report: {data.folder / indexes[0]}"] if len(indexes) == 1 else []
    if len(indexes) > 1:
        lines.append(f"compile reports: {len(indexes)}, linked in report.html")
    if snapshots := [r.memory_snapshot.file for r in data.records if r.memory_snapshot is not None]:
        lines.append(f"memory snapshots (open in pytorch.org/memory_viz): {(data.folder / snapshots[0]).parent}/")
    if traces:
        lines.append(f"profiler traces (open in ui.perfetto.dev): {(data.folder / traces[0]).parent}/")
    return tuple(map(printable, lines))


def _lines(reasons: Sequence[_Reason]) -> tuple[str, ...]:
    """Return the compiler's reasons, at most `_MOST` lines a cell."""
    by_cell: dict[str, list[str]] = {}
    for record, what, _, reason, where in reasons:
        by_cell.setdefault(name_of(record), []).append(f"{what}: {reason}{f' ({where})' if where else ''}")
    lines = []
    for cell, said in by_cell.items():
        lines += [f"{cell}: {line}" for line in said[:_MOST]]
        if len(said) > _MOST:
            lines.append(f"{cell}: {count_of(len(said) - _MOST, 'line')} more in report.md")
    return tuple(map(printable, lines))


def _reasons(record: Record) -> Iterator[_Reason]:
    log = record.compile
    if log is None:
        return
    for each in log.graph_breaks:
        yield record, "graph break", None, each.reason, _where(each.file, each.line)
    for each in log.recompiles:
        yield record, "recompile", each.compile_id, each.reason, _where(each.file, each.line)
    for each in log.failures:
        yield record, f"not compiled, {each.kind}", each.compile_id, each.reason, _where(each.file, each.line)
    for reason in log.cudagraph_skips:
        yield record, "CUDA graph skipped", None, reason, None


def _where(file: str | None, line: int | None) -> str | None:
    return file if not file or line is None else f"{file}:{line}"


def _compiled(data: RunData) -> tuple[Column[Record], ...]:
    def count(key: str) -> Callable[[Record], float | None]:
        return lambda record: getattr(record.prepare, key, None)

    return (
        Column("compiled in", lambda record: record.compile.compile_seconds if record.compile else None, "s"),
        *(Column[Record](title, count(key), "count") for key, title in _COUNTS),
        Column("report", lambda record: data.link(record.compile.index if record.compile else None)),
    )


def _phase(name: str) -> Callable[[Record], float | None]:
    return lambda record: record.compile.phases.get(name) if record.compile is not None else None


_REASONS = (
    Column[_Reason]("what", lambda row: row[1]),
    Column[_Reason]("id", lambda row: row[2]),
    Column[_Reason]("reason", lambda row: row[3]),
    Column[_Reason]("where", lambda row: row[4]),
)


def _kernel_columns(data: RunData) -> tuple[Column[_Kernel], ...]:
    return (
        Column("kernel", lambda row: row[1].name),
        Column("kind", lambda row: row[1].kind),
        Column("file", lambda row: data.link(row[1].file)),
    )


def _of(read: Callable[[Graphs], Value | None]) -> Callable[[Record], Value | None]:
    return lambda record: read(record.graphs) if record.graphs is not None else None


_GRAPHS = (
    Column[Record]("launches without", _of(lambda graphs: getattr(graphs.host_launches, "before", None)), "count"),
    Column[Record]("launches with", _of(lambda graphs: getattr(graphs.host_launches, "after", None)), "count"),
    Column[Record]("without", _of(lambda graphs: getattr(graphs.wall_ms, "before", None)), "ms"),
    Column[Record]("with", _of(lambda graphs: getattr(graphs.wall_ms, "after", None)), "ms"),
    Column[Record]("speedup", _of(lambda graphs: graphs.speedup), "ratio"),
    Column[Record]("capture", _of(lambda graphs: graphs.capture_seconds), "s"),
    Column[Record]("pool", _of(lambda graphs: graphs.pool_bytes), "MiB"),
    Column[Record]("graphs", _of(lambda graphs: graphs.held), "count", depth="report"),
    Column[Record]("graph breaks", _of(lambda graphs: graphs.graph_breaks), "count", depth="report"),
    Column[Record]("compiled pieces", _of(lambda graphs: graphs.compiled_pieces), "count", depth="report"),
)

_Step = tuple[Record, RecipeStep]
_STEPS = (
    Column[_Step]("stage", lambda row: row[1].stage),
    Column[_Step]("step", lambda row: row[1].kind),
    Column[_Step]("name", lambda row: row[1].name),
    Column[_Step]("took", lambda row: row[1].seconds, "s"),
    Column[_Step]("changed", lambda row: row[1].changed, "count"),
    Column[_Step]("allocated before", lambda row: getattr(row[1].memory_bytes, "before", None), "MiB"),
    Column[_Step]("allocated after", lambda row: getattr(row[1].memory_bytes, "after", None), "MiB"),
    Column[_Step]("notes", lambda row: "; ".join(row[1].notes) or None, wrap=40),
)

_Package = tuple[Record, Package]
_PACKAGES = (
    Column[_Package]("file", lambda row: row[1].file),
    Column[_Package]("size", lambda row: row[1].bytes, "MiB"),
    Column[_Package]("export", lambda row: row[1].export_s, "s"),
    Column[_Package]("compile", lambda row: row[1].compile_s, "s"),
    Column[_Package]("load", lambda row: row[1].load_s, "s"),
    Column[_Package]("dynamic axes", lambda row: ", ".join(row[1].dynamic) or None),
    Column[_Package]("copied from", lambda row: "an earlier cell" if row[1].cached else None),
)

_Pass = tuple[Record, FxPass]
_PASSES = (
    Column[_Pass]("pass", lambda row: row[1].name),
    Column[_Pass]("replaced", lambda row: row[1].replaced, "count"),
    Column[_Pass]("rel. L2 error", lambda row: row[1].rel_l2, "error"),
    Column[_Pass]("replay before", lambda row: row[1].replay_ms.before if row[1].replay_ms else None, "ms"),
    Column[_Pass]("replay after", lambda row: row[1].replay_ms.after if row[1].replay_ms else None, "ms"),
    Column[_Pass]("speedup", lambda row: row[1].speedup, "ratio"),
    Column[_Pass]("not measured because", lambda row: row[1].unmeasured, wrap=30),
)
