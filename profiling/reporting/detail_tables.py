"""The tables that only `report.md` has room for: how the times were taken, memory by phase, other metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tabulate import tabulate

from profiling.reporting.facts import at, is_right, mapping_at, number_at
from profiling.reporting.format import ABSENT, escaped, mebibytes, significant, struck, whole
from profiling.reporting.limits import limit_tables
from profiling.results.records import Record

#: Metrics that have columns of their own; what else a record holds is some component's own metric.
KNOWN_METRICS = frozenset({"wall_ms", "device_ms", "host_ms", "fps", "latency", "calls", "drift"})

MEMORY_KINDS = (
    ("allocated", "allocated MiB"),
    ("reserved", "reserved MiB"),
    ("held", "held MiB"),
    ("graph_pool", "graph pools MiB"),
    ("device_used", "device used MiB"),
    ("host_rss", "host RSS MiB"),
)

Row = Sequence[str]


def detail_tables(records: Sequence[Record]) -> tuple[tuple[str, str], ...]:
    """Return (title, Markdown table) of each table that has something in it."""
    tables = (
        ("How the times were taken", _grid(_TIMING_HEADERS, [row for record in records for row in _timing(record)])),
        ("Memory by phase", _grid(_memory_headers(), [row for record in records for row in _memory(record)])),
        (
            "Other metrics",
            _grid(("metric", "of", "value"), [row for record in records for row in _other(record)]),
        ),
    )
    return (*limit_tables(records), *((title, table) for title, table in tables if table))


def _grid(headers: Row, rows: Sequence[Row]) -> str:
    """Lay out rows that begin with a component and a variant; a column in which nothing was measured is left out."""
    headers = ("component", "variant", *headers)
    kept = [index for index in range(len(headers)) if any(row[index] != ABSENT for row in rows)]
    if not rows:
        return ""
    return tabulate(
        [[row[index] for index in kept] for row in rows],
        headers=[headers[index] for index in kept],
        tablefmt="github",
        disable_numparse=True,
    )


def _name(record: Record) -> tuple[str, str]:
    return escaped(record.component), escaped(record.variant)


_TIMING_HEADERS = (
    "samples",
    "stopped by",
    "outliers kept",
    "wall p90 ms",
    "wall p95 ms",
    "device p50 ms",
    "device p99 ms",
    "host p50 ms",
    "warm-up calls",
    "warm-up s",
    "settled",
    "L2",
)


def _timing(record: Record) -> Iterator[Row]:
    wall, latency = at(record.metrics, "wall_ms"), at(record.metrics, "latency")
    if wall is None:
        return
    clocks = (("wall_ms", "p90"), ("wall_ms", "p95"), ("device_ms", "p50"), ("device_ms", "p99"), ("host_ms", "p50"))
    times = [significant(number_at(record.metrics, *keys)) for keys in clocks]
    yield (
        *_name(record),
        whole(number_at(wall, "n")),
        _text(at(wall, "stopped_by")),
        whole(number_at(wall, "outliers")),
        *(times if is_right(record) else [struck(time) for time in times]),
        whole(number_at(latency, "warmup_iterations")),
        significant(number_at(latency, "warmup_seconds"), 3),
        _either(at(latency, "settled"), "yes", "no"),
        _either(at(latency, "cold"), "cold", "hot"),
    )


def _memory_headers() -> Row:
    return ("phase", *(header for _, header in MEMORY_KINDS))


def memory_phases(record: Record) -> Mapping[str, Any]:
    """Return the bytes of each kind by phase, the peaks of preparing and of the timed part behind all others."""
    memory = mapping_at(record.memory)
    phases: dict[str, Any] = dict(mapping_at(memory, "phases"))
    phases["prepare peak"] = {"allocated": memory.get("prepare_peak_allocated")}
    phases["steady peak"] = {
        "allocated": memory.get("peak_allocated"),
        "held": memory.get("peak_held"),
        "reserved": memory.get("peak_reserved"),
        "graph_pool": memory.get("graph_pool"),
        "host_rss": memory.get("peak_host_rss"),
    }
    return phases


def _memory(record: Record) -> Iterator[Row]:
    for phase, sizes in memory_phases(record).items():
        cells = [mebibytes(number_at(sizes, key)) for key, _ in MEMORY_KINDS]
        if any(cell != ABSENT for cell in cells):
            yield (*_name(record), escaped(phase), *cells)


def _other(record: Record) -> Iterator[Row]:
    for name, content in record.metrics.items():
        if name in KNOWN_METRICS:
            continue
        values = content if isinstance(content, Mapping) else {"value": content}
        for key in values:
            value = number_at(values, key)
            if value is not None:
                shown = significant(value)
                yield (*_name(record), escaped(name), escaped(key), shown if is_right(record) else struck(shown))


def _text(value: object) -> str:
    return ABSENT if value is None else escaped(value)


def _either(value: object, yes: str, no: str) -> str:
    return ABSENT if not isinstance(value, bool) else yes if value else no
