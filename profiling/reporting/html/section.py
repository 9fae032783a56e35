"""What a page is made of: sections of text, charts, tables and links. What they look like is the templates' matter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: A figure as plotly reads it: "data", a list of traces, and "layout". Every name in it has gone through `plain`.
Figure = Mapping[str, Any]


@dataclass(frozen=True)
class View:
    """One figure of a chart, and what the reader chooses it by."""

    label: str
    figure: Figure


@dataclass(frozen=True)
class Chart:
    """A figure, or several of which the reader sees one at a time."""

    key: str  # unique on the page
    title: str
    views: Sequence[View]
    note: str = ""


@dataclass(frozen=True)
class Cell:
    """What stands in a table: its text, and a link that stays inside the run."""

    text: str
    struck: bool = False
    href: str | None = None


@dataclass(frozen=True)
class Table:
    """Rows under headers, and the lines that belong to them."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Section:
    """A part of the page under a heading; one that holds nothing is left out."""

    key: str  # unique on the page
    title: str
    lines: tuple[str, ...] = ()
    charts: tuple[Chart, ...] = ()
    tables: tuple[Table, ...] = ()
    text: str = ""  # shown as it is, line by line

    def __bool__(self) -> bool:
        """Say whether there is anything to show."""
        return bool(self.lines or any(chart.views for chart in self.charts) or self.tables or self.text)
