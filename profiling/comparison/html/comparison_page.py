"""The page of a comparison: the verdict, what could explain it, the cells, what else changed, and the commands."""

from __future__ import annotations

from profiling.comparison.compared import Comparison
from profiling.comparison.html.ratio_chart import ratio_chart
from profiling.comparison.html.rows import table_of_rows
from profiling.comparison.side import Side
from profiling.comparison.words import (
    AROUND,
    CELLS,
    CHANGED,
    EXIT_CODES,
    NOTHING_AROUND,
    cell_row,
    conclusion,
    legend,
    titled,
)
from profiling.reporting.format import one_line
from profiling.reporting.heading import command_line
from profiling.reporting.html.document import render_document
from profiling.reporting.html.section import Section
from profiling.results.records import RESULTS_FILE


def render_comparison(comparison: Comparison) -> str:
    """Return the page; it says what the text says."""
    title = f"{_name(comparison.b)} compared with {_name(comparison.a)}"
    heading = [titled(name, side) for name, side in comparison.sides]
    return render_document(title, heading, _sections(comparison))


def _sections(comparison: Comparison) -> list[Section]:
    lines = tuple(map(one_line, comparison.unknown))
    around = table_of_rows("Facts and options", AROUND, comparison.around)
    cells = table_of_rows("Every cell", CELLS, [cell_row(cell) for cell in comparison.cells])
    changed = table_of_rows("Cell by cell", CHANGED, comparison.changed)
    said = (conclusion(comparison.cells, comparison.threshold), f"{EXIT_CODES[0].upper()}{EXIT_CODES[1:]}.")
    return [
        Section("verdict", "Verdict", said),
        Section("around", "What differs around them", lines if around else (*lines, NOTHING_AROUND), tables=around),
        Section("cells", "Cells", tuple(legend(comparison)), ratio_chart(comparison), cells),
        Section("changed", "What else changed", tables=changed),
        Section("commands", "The commands of both", text="\n\n".join(_command(*side) for side in comparison.sides)),
    ]


def _name(side: Side) -> str:
    """Return what a side is called: a run by its folder, a file that was kept by its own name."""
    path = side.path if side.path.is_file() and side.path.name != RESULTS_FILE else side.folder
    return one_line(path.resolve().name)


def _command(name: str, side: Side) -> str:
    """Return the command under a comment, so that both together can be pasted."""
    command = command_line(side.environment)
    return f"# {name}\n{command}" if command else f"# {name}: not known, for no environment.json beside it tells it"
