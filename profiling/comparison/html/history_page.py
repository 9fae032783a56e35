"""The page of a history: the chart and the table of each line of runs that may be compared."""

from __future__ import annotations

from pathlib import Path

from profiling.comparison.html.history_chart import history_chart
from profiling.comparison.html.rows import table_of_rows
from profiling.comparison.timeline import HEADERS, Timelines, milestone_rows
from profiling.reporting.format import count_of, one_line
from profiling.reporting.html.document import render_document
from profiling.reporting.html.section import Section

_LEGEND = (
    "vs first, vs previous: how many times as fast, above 1 is faster. What was measured on another device, or in "
    "another way, has a table of its own."
)


def render_history(lines: Timelines, folder: Path) -> str:
    """Return the page of the runs below `folder`; it says what the text says."""
    runs = {stone.run for line in lines.values() for stone in line}
    dates = sorted(stone.date for line in lines.values() for stone in line if stone.date)
    between = f", {dates[0]} to {dates[-1]}" if dates else ""
    heading = [one_line(f"{folder}: {count_of(len(runs), 'run')}{between}")]
    tables = tuple(
        table for title, line in lines.items() for table in table_of_rows(title, HEADERS, milestone_rows(line))
    )
    section = Section("history", "The best right variant, run by run", (_LEGEND,), (history_chart(lines),), tables)
    return render_document(f"history: {one_line(folder.resolve().name)}", heading, [section])
