"""Total time over the number of calls, log-log, a line a variant: where the lines cross is where preparing pays."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any

from profiling.reporting.facts import at, by_component, call_points, is_right, number_at
from profiling.reporting.figure import blank_figure, plain
from profiling.results.records import Record

PLOT_FILE = "sweep.svg"
_COLUMNS = 3


def plot_sweep(records: Sequence[Record], path: Path) -> bool:
    """Write the plot, a panel for each component and shape; False where there are no rows of calls.

    Computed points are hollow. Cells that are not right are left out.

    Raises:
        MissingExtraError: matplotlib is not installed.

    """
    rows = [record for record in records if is_right(record) and total_points(record)]
    groups = by_component(rows)
    if not groups:
        return False
    columns = min(_COLUMNS, len(groups))
    lines = ceil(len(groups) / columns)
    figure, panels = blank_figure(lines, columns, width=4.2, height=3.2)
    colours = {name: f"C{i % 10}" for i, name in enumerate(dict.fromkeys(record.variant for record in rows))}
    for (component, group), panel in zip(groups.items(), panels, strict=False):
        for record in group:
            _line(panel, record, colours[record.variant])
        panel.set(
            title=plain(component), xscale="log", yscale="log", xlabel="calls", ylabel="seconds, with preparation"
        )
        panel.grid(visible=True, which="major", alpha=0.3)
    for panel in panels[len(groups) :]:  # the places that are left over
        panel.set_axis_off()
    handles = [_handle(name, colour) for name, colour in colours.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    figure.savefig(path, metadata={"Date": None})
    return True


def total_points(record: Record) -> list[tuple[int, float, bool]]:
    """Return (calls, seconds with preparation, measured) of each total that is known."""
    prepare = number_at(record.prepare, "seconds")
    totals = [(calls, number_at(point, "seconds"), point) for calls, point in call_points(record).items()]
    if prepare is None:
        return []
    return [(calls, prepare + s, bool(at(point, "measured"))) for calls, s, point in totals if s is not None]


def _line(panel: Any, record: Record, colour: str) -> None:
    points = total_points(record)
    panel.plot([x for x, _, _ in points], [y for _, y, _ in points], color=colour, linewidth=1)
    for x, y, measured in points:
        panel.plot(x, y, "o", color=colour, markersize=4, fillstyle="full" if measured else "none")


def _handle(name: str, colour: str) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=colour, marker="o", markersize=4, linewidth=1, label=plain(name))
