"""Rows of text as the table of a page."""

from __future__ import annotations

from collections.abc import Sequence

from profiling.reporting.format import ABSENT, one_line
from profiling.reporting.html.section import Cell, Table


def table_of_rows(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[Table, ...]:
    """Return the table without the columns in which nothing stands; none without rows."""
    kept = [place for place in range(len(headers)) if any(row[place] != ABSENT for row in rows)]
    cells = tuple(tuple(Cell(one_line(row[place])) for place in kept) for row in rows)
    return (Table(one_line(title), tuple(headers[place] for place in kept), cells),) if rows else ()
