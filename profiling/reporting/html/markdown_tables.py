"""The tables of `report.md`, taken apart again: the page shows the same ones, and what they say is decided once."""

from __future__ import annotations

import re
from collections.abc import Sequence

from profiling.reporting.grid import Titled
from profiling.reporting.html.section import Cell, Table

_BAR = re.compile(r"(?<!\\)\|")
_ESCAPE = re.compile(r"\\([\\`*|<>~\[\]_])")
_STRUCK = re.compile(r"~~(.*?)~~")
_RULE = re.compile(r"\|[-:|]+\|")


def tables_of(titled: Sequence[Titled]) -> tuple[Table, ...]:
    """Return the tables under each title; lines between tables become notes of the one before them."""
    return tuple(table for title, text in titled for table in _tables(unescaped(title), text))


def unescaped(text: str) -> str:
    """Undo `profiling.reporting.format.escaped`."""
    return _ESCAPE.sub(r"\1", text)


def _tables(title: str, text: str) -> list[Table]:
    tables: list[Table] = []
    lines = text.splitlines()
    for place, line in enumerate(lines):
        if not line.startswith("|"):
            if line.strip() and tables:
                tables[-1] = _noted(tables[-1], unescaped(line.removeprefix("- ").strip()))
        elif place + 1 < len(lines) and _RULE.fullmatch(lines[place + 1]):
            tables.append(Table(title, tuple(cell.text for cell in _cells(line)), ()))
        elif tables and not _RULE.fullmatch(line):
            before = tables[-1]
            tables[-1] = Table(title, before.headers, (*before.rows, _cells(line)), before.notes)
    return tables


def _noted(table: Table, note: str) -> Table:
    return Table(table.title, table.headers, table.rows, (*table.notes, note))


def _cells(line: str) -> tuple[Cell, ...]:
    return tuple(_cell(text.strip()) for text in _BAR.split(line)[1:-1])


def _cell(text: str) -> Cell:
    """Read one cell; only times are struck out, and `escaped` leaves no bare tilde in a name."""
    struck = _STRUCK.search(text) is not None
    return Cell(unescaped(_STRUCK.sub(r"\1", text)), struck=struck)
