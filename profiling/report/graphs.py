"""What recipe steps, CUDA graphs, torch.fx passes and torch.compile did, and the files to open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from profiling.errors import printable
from profiling.report.format import count_of
from profiling.report.page import Section
from profiling.report.run_data import RunData, cell_table, name_of
from profiling.report.table import Column, columns
from profiling.results.explained import CompileFailure, FxPass, GraphBreak, KernelFile, Package, RecipeStep, Recompile
from profiling.results.record import Record

#: Most lines of compiler reasons for a cell in the console; `report.md` holds all.
_MOST = 8
_PERFETTO = (
    "To open a trace, drop its .json.gz file onto ui.perfetto.dev in a browser, which reads it without uploading it. "
    "Operator tables are text."
)
_MEMORY_VIZ = (
    "To open a memory snapshot, drop its .pickle file onto pytorch.org/memory_viz in a browser, which reads it without "
    "uploading it. It shows what was allocated when, and by which lines, in a load, a preparation and a few calls that "
    "were made after the timed ones."
)

_Reason = tuple[Record, GraphBreak | Recompile | CompileFailure, str]


def recipe_section(data: RunData) -> Section:
    """Return the tables of the steps of each recipe (seconds, changes, memory) and of the files that they wrote."""
    steps = [(record, step) for record in data.records for step in record.recipe or ()]
    packages = [(record, package) for record, step in steps for package in step.packages or ()]
    tables = (
        cell_table("Steps of the recipes", _STEPS, steps, keys=4, depth="report"),
        cell_table("Files compiled ahead of time", _PACKAGES, packages, keys=3, depth="report"),
    )
    return Section("recipe", "Recipes", tables=tables)


def graphs_section(data: RunData) -> Section:
    """Return the tables of captured CUDA graphs and of torch.fx passes."""
    captured = [record for record in data.records if record.graphs is not None]
    passes = [(record, each) for record in data.records for each in record.passes or ()]
    tables = (
        cell_table("CUDA graphs: a call before and after capture", _GRAPHS, captured),
        cell_table("torch.fx passes, each against the module before it", _PASSES, passes, keys=3, depth="report"),
    )
    return Section("graphs", "CUDA graphs", tables=tables)


def compile_section(data: RunData) -> Section:
    """Return the compile times and counts of each compiled cell, and the compiler's reasons for breaks and skips."""
    compiled = [r for r in data.records if r.compile is not None or (r.prepare is not None and r.prepare.compiles)]
    reasons = [reason for record in compiled for reason in _reasons(record)]
    phases = dict.fromkeys(name for record in compiled if record.compile for name in record.compile.phases)
    kernels = [(record, kernel) for record in data.records for kernel in record.kernels or ()]
    summary = (
        *columns(Record, "compile_seconds", at="compile"),
        *columns(Record, *_COUNTS, at="prepare"),
        *columns(Record, *phases, at="compile.phases"),
        *data.linked(columns(Record, "compile.index")),
    )
    files = (*columns(KernelFile, "name", "kind"), *data.linked(columns(KernelFile, "file")))
    tables = (
        cell_table("What was compiled, and seconds by phase", summary, compiled, depth="report"),
        cell_table("What the compiler reported", _REASONS, reasons, depth="report"),
        cell_table("Kernel files", files, kernels, depth="page"),
    )
    return Section("compile", "torch.compile", _lines(reasons), tables=tables)


def files_section(data: RunData) -> Section:
    """Return the traces, operator tables and memory snapshots as links, and how they are opened."""
    rows = [record for record in data.records if record.trace is not None or record.memory_snapshot is not None]
    links = (
        *data.linked(columns(Record, "trace.trace", "trace.operators", "memory_snapshot.file")),
        *columns(Record, "memory_snapshot.ended_by"),
    )
    legend = (
        *([_PERFETTO] if any(record.trace is not None for record in rows) else []),
        *([_MEMORY_VIZ] if any(record.memory_snapshot is not None for record in rows) else []),
    )
    return Section("traces", "Traces", (), legend, (cell_table("Traces and snapshots", links, rows, depth="report"),))


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
    for row in reasons:
        record, each, what = row
        where = f" ({place})" if (place := _where(row)) else ""
        by_cell.setdefault(name_of(record), []).append(f"{what}: {each.reason}{where}")
    lines = []
    for cell, said in by_cell.items():
        lines += [f"{cell}: {line}" for line in said[:_MOST]]
        if len(said) > _MOST:
            lines.append(f"{cell}: {count_of(len(said) - _MOST, 'line')} more in report.md")
    return tuple(map(printable, lines))


def _reasons(record: Record) -> Iterator[_Reason]:
    if (log := record.compile) is not None:
        yield from ((record, each, "graph break") for each in log.graph_breaks)
        yield from ((record, each, "recompile") for each in log.recompiles)
        yield from ((record, each, f"not compiled, {each.kind}") for each in log.failures)
        yield from ((record, GraphBreak(reason=reason), "CUDA graph skipped") for reason in log.cudagraph_skips)


def _where(row: _Reason) -> str | None:
    file, line = row[1].file, row[1].line
    return file if not file or line is None else f"{file}:{line}"


_COUNTS = ("graphs", "graph_breaks", "recompiles", "cudagraph_captures", "cudagraph_skips", "cache_hits")
_REASONS = (
    Column[_Reason]("what", lambda row: row[2]),
    *columns(Recompile, "compile_id", "reason"),
    Column[_Reason]("where", _where),
)
_GRAPHS = (
    *columns(
        *(Record, "host_launches.before", "host_launches.after", "wall_ms.before", "wall_ms.after", "speedup"),
        *("capture_seconds", "pool_bytes"),
        at="graphs",
    ),
    *columns(Record, "held", "graph_breaks", "compiled_pieces", at="graphs", depth="report"),
)
_STEPS = (
    *columns(RecipeStep, "stage", "kind", "name", "seconds", "changed", "memory_bytes.before", "memory_bytes.after"),
    Column[tuple[Record, RecipeStep]]("notes", lambda row: "; ".join(row[1].notes) or None, wrap=40),
)
_PACKAGES = (
    *columns(Package, "file", "bytes", "export_s", "compile_s", "load_s", "cached"),
    Column[tuple[Record, Package]]("dynamic axes", lambda row: ", ".join(row[1].dynamic) or None),
)
_PASSES = (
    *columns(FxPass, "name", "replaced", "rel_l2", "replay_ms.before", "replay_ms.after", "speedup"),
    *columns(FxPass, "unmeasured", wrap=30),
)
