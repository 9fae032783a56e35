"""Where the host waits for the device inside a call, and what crosses the bus: with the line of code that made it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from profiling.reporting.facts import at, items_at, number_at
from profiling.reporting.format import ABSENT, average_count, mebibytes, one_line, significant
from profiling.reporting.grid import grid, noted
from profiling.reporting.inside_sources import sources
from profiling.reporting.table import shown_times
from profiling.results.records import Record

_HEADERS = ("component", "variant", "what", "line", "code", "count", "ms", "MiB")


def wait_table(records: Sequence[Record]) -> str:
    """Return the Markdown table of waits and copies, the longest of each cell first; empty where there are none."""
    rows = {record.cell: tuple(_rows(record)) for record in records}
    table = grid(_HEADERS, [row for found in rows.values() for row in found], markdown=True, names=5)
    return noted(table, sources([r for r in records if rows[r.cell]], "Lines", "lines_from"))


def _rows(record: Record) -> Iterator[tuple[str, ...]]:
    for kind in ("waits", "copies"):
        for item in sorted(items_at(record.inside, kind), key=lambda item: -(number_at(item, "ms") or 0.0)):
            words = (one_line(at(item, key) or ABSENT) for key in ("what", "line", "code"))
            yield (
                *(record.component, record.variant, *words, average_count(number_at(item, "count"))),
                *shown_times(record, significant(number_at(item, "ms"))),
                mebibytes(number_at(item, "bytes")),
            )
