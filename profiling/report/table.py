"""A table is data: columns that read typed values from rows, and three renderings of the same cells.

Markdown is laid out by tabulate, HTML by `templates/table.html`; each value becomes text once, in `format.show`.
A column in which no row has a value is left out. A field of a record's struct has its title, unit and
meaning from the struct; only what is computed has a function. An example, with a row for each (record, kernel):

    table = Table(
        "Kernels",
        (
            Column("variant", lambda row: row[0].variant),
            *columns(Kernel, "name", "count", "ms"),                        # headers "kernel", "count", "total ms"
            Column("of the bandwidth", lambda row: share_of(*row), "percent"),
        ),
        rows,
        strike=lambda row: not row[0].is_correct,       # strikes out times and rates; not on the console
    )
    print(console(table)), print(markdown(table)); Section("kernels", "Kernels", tables=(table,))  # page.py
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Any, Generic, Literal, TypeVar, get_args, get_origin

from msgspec import Struct
from tabulate import tabulate

from profiling.errors import printable
from profiling.report.format import ABSENT, UNITS, Kind, Link, Value, escaped, estimate, number_of, show, struck
from profiling.results.field import described

#: The first rendering that has room for something: the console, else `report.md`, else `report.html`.
Depth = Literal["console", "report", "page"]
_DEPTHS: tuple[Depth, ...] = ("console", "report", "page")
#: Characters of a console line; and those of a word, a path for example, after which a wrapped column breaks it.
WIDTH, LONG_WORD = 100, 50
#: Most rows of a table in any rendering.
MOST_ROWS = 4_000

Row = TypeVar("Row")


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column: its title without the unit, how a row's value is read, and what kind of value that is."""

    title: str
    read: Callable[[Row], Value | None]
    kind: Kind = "text"
    unit: str | None = None  # the kind's own unit, unless it is named here
    wrap: int | None = None  # characters of a line in the cell where the table is wider than the console
    depth: Depth = "console"  # the first rendering that has room for the column
    meaning: str = ""  # shown by the page where the pointer rests on the header

    @property
    def header(self) -> str:
        """The title with the unit."""
        return printable(f"{self.title} {self.shown_unit}")

    @property
    def shown_unit(self) -> str:
        """The unit that the header shows; empty for none."""
        return UNITS.get(self.kind, "") if self.unit is None else self.unit

    @property
    def numeric(self) -> bool:
        """Whether the column is aligned to the right and sorted by number."""
        return self.kind not in ("text", "flag")


#: How numbers of a unit are shown. Those of other units have the unit in the header; if they are whole, as counts.
_UNITS: Mapping[str | None, Kind] = {
    **{"ms": "ms", "s": "s", "us": "us", "bytes": "MiB", "frames/s": "fps"},
    **{"ratio": "ratio", "relative": "error", "count": "count", "0 to 1": "percent"},
}
#: Kinds of times and rates, which do not count where a cell is wrong: its error does, and so does its memory.
_TIMES: frozenset[Kind] = frozenset({"ms", "us", "s", "fps", "ratio"})


def columns(
    struct: type[Struct], *paths: str, at: str = "", of: Callable[[Any], object] | None = None, **changes: Any
) -> tuple[Column[Any], ...]:
    """Return the columns of the fields of `struct` at these dotted paths ("ms", "idle.host_ms", "phases.dynamo").

    `at` is a path that they begin with. A row is the struct, or a tuple whose second element is; else `of` returns it.
    What any struct on the way lacks is absent. A median, or an X with an X_ci95, has its 95% interval. `changes` are
    fields of `Column`, the same for all of these.

    Raises:
        TypeError: there is no such field, or its type (a mapping, a tuple) is no column.

    """
    return tuple(_column(struct, f"{at}.{path}" if at else path, of or _part, changes) for path in paths)


def _part(row: object) -> object:
    return row[1] if isinstance(row, tuple) else row


def _column(struct: type[Struct], path: str, of: Callable[[Any], object], changes: Mapping[str, Any]) -> Column[Any]:
    title, unit, meaning, kind, names = described(struct, path)
    kind = type(get_args(kind)[0]) if get_origin(kind) is Literal else kind
    if {"p50", "ci95"} <= set(getattr(kind, "__struct_fields__", ())):
        kind = float
    if kind not in (str, bool, int, float):
        raise TypeError(f"the field {path} of {struct.__name__} cannot be a column: it is a {kind}")
    by_type: dict[Any, Kind] = {str: "text", bool: "flag", int: "count", float: "number"}
    shown = _UNITS.get(unit) or by_type[kind]

    def read(row: object) -> Value | None:
        parent: Any = None
        value: Any = of(row)
        for name in names:
            parent, value = value, value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
        if hasattr(value, "ci95"):
            return estimate(value.p50, value.ci95)
        return estimate(value, getattr(parent, f"{names[-1]}_ci95", None))

    return Column(title, read, shown, **{"unit": None if unit in _UNITS else unit, "meaning": meaning, **changes})


@dataclass(frozen=True)
class Cell:
    """A value as every rendering shows it; `sort` is the number that the page sorts by, if it is one."""

    text: str
    sort: float | None = None
    struck: bool = False
    href: str | None = None


@dataclass(frozen=True)
class Table(Generic[Row]):
    """Columns over rows under a title. Without rows the table is false, and no rendering shows it."""

    title: str
    columns: Sequence[Column[Row]]
    rows: Sequence[Row]
    notes: Sequence[str] = ()
    strike: Callable[[Row], bool] | None = None
    keys: int = 2  # columns that name the row; repeated where the console breaks a wide table
    depth: Depth = "console"
    few: int | None = None  # rows that the console shows, where it does not show all

    def __bool__(self) -> bool:
        return bool(self.rows)

    def shown(self, depth: Depth = "page") -> tuple[tuple[Column[Row], ...], tuple[tuple[Cell, ...], ...]]:
        """Return the columns that `depth` shows and that hold a value, and the cells of its rows in them.

        The console leaves out the rows that others strike out, and shows the first `few` of the others.
        """
        rows = self._cells
        if depth == "console":
            rows = [cells for cells, row in zip(rows, self.rows, strict=False) if not self._is_struck(row)][: self.few]
        chosen = [
            place
            for place, column in enumerate(self.columns)
            if fits(column.depth, depth) and any(row[place].text != ABSENT for row in rows)
        ]
        columns = tuple(self.columns[place] for place in chosen)
        return columns, tuple(tuple(row[place] for place in chosen) for row in rows)

    def notes_at(self, depth: Depth = "page") -> list[str]:
        """Return the notes, and how many rows `depth` has no room for."""
        count = sum(depth != "console" or not self._is_struck(row) for row in self.rows)
        left = count - len(self.shown(depth)[1])
        return [*self.notes, *([f"{left:,} of {count:,} rows are left out here."] if left > 0 else [])]

    def _is_struck(self, row: Row) -> bool:
        return self.strike is not None and self.strike(row)

    @cached_property
    def _cells(self) -> list[list[Cell]]:
        return [[self._cell(column, row) for column in self.columns] for row in self.rows[:MOST_ROWS]]

    def _cell(self, column: Column[Row], row: Row) -> Cell:
        value = column.read(row)
        text = show(value, column.kind)
        strike = column.kind in _TIMES and text != ABSENT and self._is_struck(row)
        sort = number_of(value) if column.numeric and text != ABSENT else None
        return Cell(text, sort, strike, value.href if isinstance(value, Link) else None)


AnyTable = Table[Any]


def fits(depth: Depth, rendering: Depth) -> bool:
    """Return whether `rendering` shows content whose first rendering is `depth`."""
    return _DEPTHS.index(depth) <= _DEPTHS.index(rendering)


def console(table: AnyTable, width: int = WIDTH, depth: Depth = "console") -> str:
    """Return the table for a terminal, its columns broken into parts that are at most `width` characters wide.

    A part wider than that remains only where the names of the rows leave no room for a single column.
    """
    columns, rows = table.shown(depth)
    if not rows:
        return ""
    whole = texts = [[struck(cell.text) if cell.struck else cell.text for cell in row] for row in rows]
    for share in (1.0, 0.8, 0.65, 0.5):  # of the width that a column asks for when it is wrapped
        if sum(_widths(columns, texts)) + 2 * (len(columns) - 1) <= width:
            break
        most = [column.wrap and round(share * column.wrap) for column in columns]
        texts = [
            [("" if _is_long(text, n) else _wrapped(text, n)) if n else text for text, n in zip(row, most, strict=True)]
            for row in whole
        ]
    widths = _widths(columns, texts)
    for place, column in enumerate(columns):  # where there is room, a header stands on one line
        more = len(column.header) - widths[place]
        if 0 < more <= width - sum(widths) - 2 * (len(columns) - 1):
            widths[place] += more
    headers = [_wrapped(column.header, space) for column, space in zip(columns, widths, strict=True)]
    if any("\n" in header for header in headers):  # then every unit stands below its title
        headers = [
            f"{_wrapped(printable(column.title), space)}\n{column.shown_unit}".strip("\n")
            for column, space in zip(columns, widths, strict=True)
        ]
    parts = []
    keys = sum(column in columns for column in table.columns[: table.keys])
    for places in _parts(widths, keys, width):
        cells = [[row[place] for place in places] for row in (headers, *texts)]
        long = [
            {at: row[place] for at, place in enumerate(places) if row[place] and not shown[place]}
            for row, shown in zip(whole, texts, strict=True)
        ]
        parts.append("\n".join(_lines(cells, [columns[place].numeric for place in places], long, width)))
    notes = table.notes_at(depth)
    return "\n\n".join((*parts, *(["\n".join(wrapped_line(note, width) for note in notes)] if notes else [])))


def markdown(table: AnyTable, depth: Depth = "report") -> str:
    """Return the table as Markdown, its notes as a list below it; every text is escaped."""
    columns, rows = table.shown(depth)
    if not rows:
        return ""
    body = tabulate(
        [[_cell_markdown(cell) for cell in row] for row in rows],
        headers=[escaped(column.header) for column in columns],
        tablefmt="github",
        colalign=["right" if column.numeric else "left" for column in columns],
        disable_numparse=True,
    )
    notes = table.notes_at(depth)
    return "\n".join((body, *(("", *(f"- {escaped(note)}" for note in notes)) if notes else ())))


def _cell_markdown(cell: Cell) -> str:
    # What the number formats print needs no escapes but for the tilde of a computed value.
    text = escaped(cell.text) if cell.sort is None else cell.text.replace("~", "\\~")
    return struck(text) if cell.struck else text


#: Where a line may be broken: at blanks, between the steps of recipes, or after the underscores of names.
_BETWEEN_STEPS, _IN_NAMES = re.compile(r"(\s+)|(?<=\+)(?!\s)"), re.compile(r"(\s+)|(?<=_)(?![_\s])")


def wrapped_line(text: str, width: int = WIDTH) -> str:
    """Return a line broken to at most `width` characters, its continuation lines indented.

    Where the name of a recipe is longer than a line, lines are also broken between steps.
    """
    wrapper = textwrap.TextWrapper(width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    if max(map(len, text.split()), default=0) > width - len(wrapper.subsequent_indent):
        wrapper.wordsep_simple_re = _BETWEEN_STEPS
    return "\n".join(wrapper.wrap(printable(text)))


def _is_long(text: str, most: int) -> bool:
    """Return whether a text is the name of a recipe for which a column has no room: it stands on a line of its own."""
    return len(text) > most and "+" in text and " " not in text


def _lines(
    rows: Sequence[Sequence[str]], numeric: Sequence[bool], long: Sequence[Mapping[int, str]], width: int
) -> Iterator[str]:
    """Yield the lines of a table, the headers first.

    `long` maps, for each row, a column to a name that is too long for it. Such a name is printed in full, and the cells
    to the right of it begin on the line below.
    """
    widths = [max(len(line) for text in texts for line in text.split("\n")) for texts in zip(*rows, strict=True)]
    pads = [str.rjust if right else str.ljust for right in numeric]
    rules = ["-" * n for n in widths]
    for row, names in zip((rows[0], rules, *rows[1:]), ({}, {}, *long), strict=True):
        texts = list(row)
        for place, name in names.items():
            whole = _wrapped(name, width - sum(widths[:place]) - 2 * place)
            below = "\n" * (texts[place] + whole).count("\n") + "\n"
            texts[place:] = [texts[place] + whole, *(below + text for text in row[place + 1 :])]
        for line in zip_longest(*(text.split("\n") for text in texts), fillvalue=""):
            padded = "  ".join(pad(text, n) for pad, text, n in zip(pads, line, widths, strict=True))
            if padded.strip():
                yield padded.rstrip()


def _wrapped(text: str, most: int) -> str:
    """Break a text into lines of at most `most` characters; words of up to `LONG_WORD` stay whole.

    It may break at blanks, between the steps of recipes, and in other texts after the underscores of names.
    """
    wrapper = textwrap.TextWrapper(most, break_long_words=False)
    wrapper.wordsep_re = _BETWEEN_STEPS if "+" in text else _IN_NAMES
    lines, most = wrapper.wrap(text), max(most, LONG_WORD)
    return "\n".join(line[start : start + most] for line in lines for start in range(0, len(line), most))


def _widths(columns: Sequence[Column[Any]], rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the characters that each column needs, its header broken into words."""
    texts = ((*column.header.split(), *(row[place] for row in rows)) for place, column in enumerate(columns))
    return [max(len(line) for text in column for line in text.splitlines() or [""]) for column in texts]


def _parts(widths: Sequence[int], keys: int, most: int) -> Iterator[list[int]]:
    """Yield parts that hold as many columns as fit into `most` characters; at least one beside the keys."""
    part = list(range(keys))
    for place in range(keys, len(widths)):
        if len(part) > keys and sum(widths[i] + 2 for i in (*part, place)) - 2 > most:
            yield part
            part = list(range(keys))
        part.append(place)
    yield part
