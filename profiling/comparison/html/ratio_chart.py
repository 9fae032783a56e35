"""How much slower or faster each cell is: B / A with its interval, against the band that counts as the same."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

from profiling.comparison.compared import Comparison
from profiling.comparison.judgement import Judged
from profiling.comparison.words import cell_row
from profiling.reporting.format import count_of, shortened
from profiling.reporting.html.figure import GREY, RED, axis, figure, plain, rounded, scale
from profiling.reporting.html.section import Chart, Figure, View

#: Colour and symbol of each verdict, so that neither is needed to tell them apart; the triangles point their way.
_LOOKS = {
    "faster": ("#0284c7", "triangle-left"),
    "same": (GREY, "circle"),
    "slower": (RED, "triangle-right"),
    "can't tell": ("#e08700", "diamond"),
}
#: Cells that one view has room for, and characters of a name beside it.
_MOST, _LONGEST = 20, 40
#: The band takes at least this part of what is seen of the axis to either side of 1.
_AROUND_BAND = 1.5


def ratio_chart(comparison: Comparison) -> tuple[Chart, ...]:
    """Return the chart: one view of all cells, or of each component where they are many; none without a ratio."""
    cells = [cell for cell in comparison.cells if _drawable(cell)]
    if not cells:
        return ()
    groups = {"all cells": cells}
    if len(cells) > _MOST:
        groups = {cell.component: [other for other in cells if other.component == cell.component] for cell in cells}
    views = [View(name, _figure(group, comparison.threshold)) for name, group in groups.items()]
    return (Chart("ratios", "B / A of the median time", views, _note(len(comparison.cells) - len(cells), comparison)),)


def _drawable(cell: Judged) -> bool:
    """Say whether the cell has a ratio, and all its numbers are ones that an axis has a place for."""
    numbers = (cell.ratio, *(cell.interval or ()))
    return all(number is not None and isfinite(number) and number > 0 for number in numbers)


def _note(left_out: int, comparison: Comparison) -> str:
    alone = f" In the table alone: {count_of(left_out, 'cell')} that could not be compared." * bool(left_out)
    return (
        "Left of 1 B is faster, right of it slower. Bars: the interval of the ratio. "
        f"Shaded: 1 ± {comparison.threshold:g}; an interval that lies in it is the same. "
        "Hollow: a ratio without an interval." + alone
    )


def _figure(cells: Sequence[Judged], threshold: float) -> Figure:
    data = []
    for verdict in _LOOKS:
        for known in (True, False):
            places = [i for i, c in enumerate(cells) if c.verdict == verdict and (c.interval is not None) is known]
            if places:
                data.append(_trace(cells, places, verdict, known=known))
    names = [plain(shortened(".".join(cell.cell), _LONGEST)) for cell in cells]
    # Places and not names along the axis: two names that are cut may be the same.
    ticks = {"tickmode": "array", "tickvals": list(range(len(cells))), "ticktext": names}
    y = axis("cell", range=[len(cells) - 0.5, -0.5], zeroline=False, **ticks)
    seen = [max(1 - _AROUND_BAND * threshold, 0.01), 1 + _AROUND_BAND * threshold]
    kind = {"type": "log"} if scale(cell.ratio or 1.0 for cell in cells).get("type") else {}
    x = axis("B / A, above 1 is slower", zeroline=False, autorangeoptions={"include": seen}, **kind)
    return figure(data, x, y, shapes=_band(threshold))


def _band(threshold: float) -> list[dict[str, Any]]:
    tall = {"yref": "paper", "y0": 0, "y1": 1, "layer": "below"}
    band = {"type": "rect", "x0": 1 - threshold, "x1": 1 + threshold, "fillcolor": GREY, "opacity": 0.2}
    line = {"type": "line", "x0": 1, "x1": 1, "line": {"color": GREY, "dash": "dash", "width": 1.5}}
    return [{**tall, **band, "line": {"width": 0}}, {**tall, **line}]


def _trace(cells: Sequence[Judged], places: Sequence[int], verdict: str, *, known: bool) -> dict[str, Any]:
    colour, symbol = _LOOKS[verdict]
    chosen = [cells[place] for place in places]
    ratios = [cell.ratio or 0.0 for cell in chosen]
    trace: dict[str, Any] = {
        **{"type": "scatter", "mode": "markers", "name": verdict if known else f"{verdict}, no interval"},
        "marker": {"color": colour, "symbol": symbol if known else f"{symbol}-open", "size": 11},
        **{"x": rounded(ratios), "y": list(places)},
        **{"text": [plain(_told(cell)) for cell in chosen], "hoverinfo": "text"},
    }
    if known:
        ends = [cell.interval or (ratio, ratio) for cell, ratio in zip(chosen, ratios, strict=True)]
        trace["error_x"] = {
            **{"type": "data", "symmetric": False, "color": colour},
            "array": rounded(high - ratio for (_, high), ratio in zip(ends, ratios, strict=True)),
            "arrayminus": rounded(ratio - low for (low, _), ratio in zip(ends, ratios, strict=True)),
        }
    return trace


def _told(cell: Judged) -> str:
    component, variant, before, after, ratio, span, verdict, _ = cell_row(cell)
    return f"{component}.{variant}: {verdict}, {ratio} {span}, {before} → {after} ms"
