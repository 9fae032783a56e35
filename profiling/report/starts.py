"""Preparation of each cell by phase, the cache that its compiler started from, and process starts (starts=true)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from profiling.errors import printable
from profiling.report.format import Computed, Value
from profiling.report.page import Section
from profiling.report.run_data import RunData, cell_table, first, itself
from profiling.report.table import Column, Table
from profiling.results.measured import Start
from profiling.results.record import Record

#: Title of the table of preparations.
PREPARATION = "Preparation by phase"
#: Title of the table of starts.
STARTS = "From the start of a process to its first output"
_KINDS = ("cold", "warm", "portable")
#: Phases in their order.
_PREPARING = ("transforms", "dynamo", "inductor", "autotune", "export", "package", "load package", "capture")
_PHASES = ("import", "artifacts", "load", *_PREPARING, "call")
_LEGEND = (
    "prepare: compile, warm-up and capture, from an empty cache. ~: computed for a cell that started from the cache of "
    "a variant with the same compiler: its own seconds, with that variant's seconds in inductor, autotune and package."
)


_STARTS_LEGEND = (
    "A start: a fresh process imports, builds, prepares and makes one call. cold: the compiler's cache is empty. warm: "
    "it holds what the cold start compiled, including a package. portable: it is empty, and artifacts that "
    "torch.compiler saved in the cold start are loaded into it. Files may be in the page cache of the host."
)
_Started = tuple[Record, str, Start]


def prepare_seconds(record: Record) -> Value | None:
    """Return the seconds of preparing from an empty cache; computed if the cell started from another one's cache.

    Those of a warm start if it is not known what it takes from an empty one (`compile_cache=shared`).
    """
    prepare = record.prepare
    if prepare is None:
        return None
    return prepare.seconds if prepare.cold_s is None else Computed(prepare.cold_s)


def starts_section(data: RunData) -> Section:
    """Return the tables of starts and of preparations, by phase."""
    rows = [record for record in data.records if record.prepare is not None and record.prepare.phases]
    phases = [name for name in _PHASES if any(name in r.prepare.phases for r in rows if r.prepare is not None)]
    columns = (
        Column[Record]("from an empty cache", _from_empty_cache, "s"),
        Column[Record]("this one", lambda record: record.prepare.seconds if record.prepare else None, "s"),
        Column[Record]("compiled from", _origin),
        *(Column[Record](printable(name), _phase(name), "s") for name in phases),
        Column[Record]("calls, waiting", _rest, "s"),
    )
    table = cell_table(PREPARATION, columns, rows, itself, depth="report")
    started = [each for record in data.records for each in _started(record)]
    legend = ([_STARTS_LEGEND] if started else []) + ([_LEGEND] if rows else [])
    summary = cell_table(STARTS, _SUMMARY, [r for r in data.records if r.starts is not None], itself)
    tables = (summary, _starts_table(started), table)
    return Section("starts", "Starts and preparation", legend=legend, tables=tables)


def _from_empty_cache(record: Record) -> Value | None:
    return None if record.prepare is None or record.prepare.is_cold_unknown else prepare_seconds(record)


def _started(record: Record) -> Iterator[_Started]:
    if record.starts is not None:
        for kind in _KINDS:
            start = getattr(record.starts, kind)
            if start is not None:
                yield record, kind, start


def _starts_table(rows: Sequence[_Started]) -> Table[_Started]:
    phases = dict.fromkeys(name for _, _, start in rows for name in start.phases)
    ordered = [name for name in _PHASES if name in phases] + [name for name in phases if name not in _PHASES]
    columns = (
        Column[_Started]("start", lambda row: row[1]),
        Column[_Started]("first output", lambda row: row[2].seconds, "s"),
        *(Column[_Started](printable(name), _of_start(name), "s", unit="") for name in ordered),
        Column[_Started]("unaccounted", lambda row: row[2].unaccounted, "s", unit=""),
        Column[_Started]("graphs", lambda row: row[2].graphs or None, "count"),
        Column[_Started]("found in a cache", lambda row: row[2].cache_hits or None, "count"),
    )
    return cell_table("Starts by phase", columns, rows, first, keys=3, depth="report")


def _of_start(name: str) -> Callable[[_Started], float | None]:
    return lambda row: row[2].phases.get(name)


def _seconds_of(kind: str) -> Callable[[Record], float | None]:
    return lambda record: start.seconds if (start := getattr(record.starts, kind, None)) is not None else None


_SUMMARY = (
    *(Column[Record](kind, _seconds_of(kind), "s") for kind in _KINDS),
    Column[Record]("artifacts", lambda record: record.starts.artifact_bytes if record.starts else None, "MiB"),
)


def _origin(record: Record) -> str | None:
    prepare = record.prepare
    if prepare is None or prepare.cache is None:
        return "a cache" if prepare is not None and prepare.is_warm else None
    return (
        "an empty cache"
        if prepare.cache == "cold"
        else printable(f"the cache of {prepare.cache.removeprefix('from ')}")
    )


def _phase(name: str) -> Callable[[Record], float | None]:
    return lambda record: record.prepare.phases.get(name) if record.prepare else None


def _rest(record: Record) -> float | None:
    """Return the seconds of preparing outside all phases."""
    prepare = record.prepare
    return None if prepare is None else max(0.0, prepare.seconds - sum(prepare.phases.values()))
