"""The median of the best right variant over the runs, a view a component, with the interval of each median."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from profiling.comparison.timeline import Milestone, Timelines
from profiling.reporting.format import ABSENT, one_line, significant
from profiling.reporting.html.figure import GREY, axis, figure, plain, rounded
from profiling.reporting.html.material import palette
from profiling.reporting.html.section import Chart, Figure, View

_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "star", "cross", "hexagon")


def history_chart(lines: Timelines) -> Chart:
    """Return the chart; a variant has the same colour and symbol in every view."""
    colours = palette(stone.variant for line in lines.values() for stone in line)
    symbols = {name: _SYMBOLS[place % len(_SYMBOLS)] for place, name in enumerate(colours)}
    looks = {name: {"color": colour, "symbol": symbols[name], "size": 10} for name, colour in colours.items()}
    views = [View(one_line(title), _figure(line, looks)) for title, line in lines.items()]
    note = "Bars: the 95% interval of the median of that run. Where not every date is known, runs stand in their order."
    return Chart("history", "Median time of the best right variant", views, note)


def _figure(line: Sequence[Milestone], looks: Mapping[str, Mapping[str, Any]]) -> Figure:
    instants = _instants(line)
    # Runs that cannot be spread over time are told apart by their place.
    places = instants or [plain(f"{place}: {stone.date or 'undated'}") for place, stone in enumerate(line, 1)]
    through = {"type": "scatter", "mode": "lines", "line": {"color": GREY, "width": 1}, "hoverinfo": "skip"}
    data = [{**through, "name": "best", "x": places, "y": rounded(stone.p50_ms for stone in line), "showlegend": False}]
    for variant in dict.fromkeys(stone.variant for stone in line):
        chosen = [(place, stone) for place, stone in zip(places, line, strict=True) if stone.variant == variant]
        data.append(_trace(chosen, variant, looks[variant]))
    x = axis("when the run began, UTC", type="date") if instants else axis("run, in order", type="category")
    return figure(data, x, axis("p50, ms", rangemode="tozero"))


def _trace(chosen: Sequence[tuple[str, Milestone]], variant: str, look: Mapping[str, Any]) -> dict[str, Any]:
    ends = [stone.ci95 or (stone.p50_ms, stone.p50_ms) for _, stone in chosen]
    # A bootstrap interval holds its median up to rounding; bars have no negative length.
    error = {
        **{"type": "data", "symmetric": False, "color": look["color"]},
        "array": rounded(max(0.0, high - stone.p50_ms) for (_, high), (_, stone) in zip(ends, chosen, strict=True)),
        "arrayminus": rounded(max(0.0, stone.p50_ms - low) for (low, _), (_, stone) in zip(ends, chosen, strict=True)),
    }
    return {
        **{"type": "scatter", "mode": "markers", "name": plain(variant), "marker": dict(look), "error_y": error},
        **{"x": [place for place, _ in chosen], "y": rounded(stone.p50_ms for _, stone in chosen)},
        **{"text": [plain(_told(stone)) for _, stone in chosen], "hoverinfo": "text"},
    }


def _told(stone: Milestone) -> str:
    span = f" [{significant(stone.ci95[0])}, {significant(stone.ci95[1])}]" if stone.ci95 else ""
    where = f"{stone.date or 'undated'}, git {stone.revision or ABSENT}, {stone.run}"
    return f"{stone.variant}: {significant(stone.p50_ms)} ms{span}, {where}"


def _instants(line: Sequence[Milestone]) -> list[str] | None:
    """Return the dates in UTC as plotly reads them; None where one is no date, or all are the same."""
    found = [_instant(stone.date) for stone in line]
    known = [instant for instant in found if instant]
    return known if len(known) == len(found) and len(set(known)) > 1 else None


def _instant(date: str | None) -> str | None:
    try:
        when = datetime.fromisoformat(date or "")
        return (when.astimezone(UTC) if when.tzinfo else when).replace(tzinfo=None).isoformat()
    except (ValueError, OverflowError):  # no date, or one at the edge of the calendar
        return None
