"""What the tracing left in the run's folder: compile reports, kernel files and profiler traces, as links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from profiling.reporting.details import compile_phases
from profiling.reporting.facts import at, items_at, number_at
from profiling.reporting.format import ABSENT, one_line, significant, whole
from profiling.reporting.html.material import Material
from profiling.reporting.html.section import Cell, Section, Table
from profiling.results.records import Record

_COUNTS = (
    ("graphs", "graphs"),
    ("graph_breaks", "graph breaks"),
    ("recompiles", "recompiles"),
    ("cudagraph_captures", "CUDA graphs captured"),
    ("cudagraph_skips", "CUDA graphs skipped"),
    ("cache_hits", "cache hits"),
)
_REASONS = (("graph_breaks", "graph break"), ("recompiles", "recompile"), ("cudagraph_skips", "CUDA graph skipped"))
_PERFETTO = (
    "To open a trace, drop its file onto ui.perfetto.dev in a browser (Open trace file); it takes .json.gz as it is "
    "and keeps it in the browser. Operator tables are text."
)

Row = tuple[Cell, ...]


def compile_section(material: Material) -> Section:
    """Return what compiling came to in each cell that compiled, and each reason that the compiler gave."""
    compiled = [r for r in material.records if r.compile or number_at(r.prepare, "compiles")]
    headers = ("component", "variant", "compiled in s", *(words for _, words in _COUNTS), "report")
    summary = _table("What was compiled", headers, [_compiled(material, record) for record in compiled])
    names = list(dict.fromkeys(name for record in compiled for name in compile_phases(record)))
    phases = _table(
        "Seconds of compiling by phase",
        ("component", "variant", *map(one_line, names)),
        [row for record in compiled if (row := _phases(record, names))],
    )
    reasons = _table(
        "What the compiler reported",
        ("component", "variant", "what", "id", "reason", "where"),
        [row for record in compiled for row in _reported(record)],
    )
    kernels = _table(
        "Kernel files",
        ("component", "variant", "kernel", "kind", "file"),
        [row for record in material.records for row in _kernels(material, record)],
    )
    tables = tuple(table for table in (summary, phases, reasons, kernels) if table.rows)
    return Section("compile", "Compiling", tables=tables)


def trace_section(material: Material) -> Section:
    """Return the links to traces and operator tables, and how they are opened."""
    rows = [
        (*_names(record), _file(material, at(record.trace, "trace")), _file(material, at(record.trace, "operators")))
        for record in material.records
        if record.trace
    ]
    table = _table("Traces of the profiler", ("component", "variant", "trace", "operator tables"), rows)
    return Section("traces", "Traces", (_PERFETTO,) if rows else (), tables=(table,) if rows else ())


def _names(record: Record) -> Row:
    return Cell(one_line(record.component)), Cell(one_line(record.variant))


def _file(material: Material, path: object) -> Cell:
    """Return the link to a file of the run; its name alone where it is not there (traces are often left behind)."""
    return Cell(one_line(path), href=material.link(path)) if isinstance(path, str) else Cell(ABSENT)


def _compiled(material: Material, record: Record) -> Row:
    seconds = significant(number_at(record.compile, "compile_seconds"), 3)
    counts = [Cell(whole(number_at(record.prepare, key))) for key, _ in _COUNTS]
    return (*_names(record), Cell(seconds), *counts, _file(material, at(record.compile, "index")))


def _phases(record: Record, names: Sequence[str]) -> Row:
    """Return the row of phases; empty where none is known."""
    phases = compile_phases(record)
    return (*_names(record), *(Cell(significant(phases.get(name), 3)) for name in names)) if phases else ()


def _reported(record: Record) -> Iterator[Row]:
    for key, words in _REASONS:
        for item in items_at(record.compile, key):
            reason = item if isinstance(item, str) else at(item, "reason") or "no reason given"
            file, line = at(item, "file"), at(item, "line")
            where = ABSENT if not file else f"{file}{'' if line is None else f':{line}'}"
            shown = (words, at(item, "compile_id") or ABSENT, reason, where)
            yield (*_names(record), *(Cell(one_line(text)) for text in shown))


def _kernels(material: Material, record: Record) -> Iterator[Row]:
    for kernel in record.kernels or ():
        shown = (Cell(one_line(at(kernel, key) or ABSENT)) for key in ("name", "kind"))
        yield (*_names(record), *shown, _file(material, at(kernel, "file")))


def _table(title: str, headers: Sequence[str], rows: Sequence[Row]) -> Table:
    """Return the table without the columns in which nothing stands."""
    kept = [place for place in range(len(headers)) if any(row[place].text != ABSENT for row in rows)]
    return Table(title, tuple(headers[i] for i in kept), tuple(tuple(row[i] for i in kept) for row in rows))
