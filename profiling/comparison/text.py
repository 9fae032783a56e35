"""A comparison as text: what could explain it first, then the cells, then what else changed in them."""

from __future__ import annotations

from collections.abc import Sequence

from profiling.comparison.compared import Comparison
from profiling.comparison.words import AROUND, CELLS, CHANGED, NOTHING_AROUND, cell_row, conclusion, legend, titled
from profiling.reporting.format import escaped, one_line
from profiling.reporting.grid import grid


def render(comparison: Comparison, *, markdown: bool) -> str:
    """Return the whole text; numbers are times, so a ratio above 1 is slower."""
    shown = escaped if markdown else one_line  # a reason and a changed fact are words, though they stand behind numbers
    cells = [(*row[:-1], shown(row[-1])) for row in map(cell_row, comparison.cells)]
    changed = [(*row[:-2], *map(shown, row[-2:])) for row in comparison.changed]
    parts = [
        "\n".join(titled(name, side) for name, side in comparison.sides),
        "\n".join(map(one_line, comparison.unknown)),
        _table("What differs around them", AROUND, comparison.around, names=3, markdown=markdown) or NOTHING_AROUND,
        _table("Cells", CELLS, cells, names=2, markdown=markdown),
        "\n".join(legend(comparison)),
        _table("What else changed", CHANGED, changed, names=3, markdown=markdown),
        conclusion(comparison.cells, comparison.threshold),
    ]
    return "\n\n".join(part for part in parts if part)


def _table(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]], *, names: int, markdown: bool) -> str:
    shown = grid(headers, rows, markdown=markdown, names=names)
    return f"{'### ' if markdown else ''}{title}\n\n{shown}" if shown else ""
