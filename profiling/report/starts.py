"""Preparation of each cell (what was compiled, from which cache, seconds by phase), and process starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from profiling.report.format import Marked, Value
from profiling.report.page import Section
from profiling.report.run_data import RunData, cell_table
from profiling.report.table import Column, columns
from profiling.results.field import described
from profiling.results.measured import Start, Starts
from profiling.results.record import Record

_COUNTS = ("graphs", "graph_breaks", "recompiles", "cudagraph_captures", "cudagraph_skips", "cache_hits")
_KINDS = ("cold", "warm", "portable")
#: Phases in their order.
_PREPARING = ("transforms", "dynamo", "inductor", "autotune", "export", "package", "load package", "capture")
_PHASES = ("import", "artifacts", "load", *_PREPARING, "call")
_NOTE = (
    "prepare: compile, warm-up and capture, from an empty cache. ~: computed for a cell that started from the cache of "
    "a variant with the same compiler: its own seconds, with that variant's seconds in inductor, autotune and package."
)
_STARTS_NOTE = ". ".join(
    (
        "A start: a fresh process imports, builds, prepares and makes one call",
        *(f"{kind}: {described(Starts, kind).meaning}" for kind in _KINDS),
        "Files may be in the page cache of the host.",
    )
)
_Started = tuple[Record, Start, str]


def prepare_seconds(record: Record) -> Value | None:
    """Return the seconds of preparing; marked if they are not measured from an empty cache, or beside others.

    Those of a warm start if it is not known what it takes from an empty one (`compile_cache=shared`).
    """
    prepare = record.prepare
    if prepare is None:
        return None
    return Marked("~", prepare.from_cold) if prepare.beside or prepare.is_warm else prepare.seconds


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
        Column[_Started](
            "artifacts",
            lambda row: row[0].starts.artifact_bytes if row[0].starts and row[2] == "portable" else None,
            "MiB",
        ),
    )
    tables = (
        cell_table("From the start of a process to its first output", starting, started, [_STARTS_NOTE], keys=3),
        cell_table("Preparation by phase", preparing, rows, [_NOTE], depth="report"),
    )
    return Section("starts", "Starts and preparation", tables=tables)


def _phases(measured: Iterable[Mapping[str, float]]) -> list[str]:
    """Return the phases of any of these, in their order."""
    names = {name for phases in measured for name in phases}
    return sorted(names, key=lambda name: _PHASES.index(name) if name in _PHASES else len(_PHASES))
