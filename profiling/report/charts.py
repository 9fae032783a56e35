"""Charts for plotly, as plain data: axes with units, names that stay text, thinned series, intervals, frame budgets.

A `Chart` holds one or more `View`s, of which the reader of a page sees one at a time. An example, of one view:

    data = [
        bars("compile", x=["world_model"], y=[7.21], colour=palette(["compile"])["compile"], ends=[(7.16, 7.30)]),
        points("p99", x=["world_model"], y=[9.2], symbol="diamond-open"),
    ]
    drawn = figure(data, axis("component", type="category"), axis("wall time of a call, ms"), frame_budgets([9.2]))
    chart = Chart("latency", "Wall time of a call", [View("all components", drawn)], "Bars: medians.")
    Section("latency", "Latency", charts=(chart,))  # page.py
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import log10
from typing import Any

import numpy as np
from numpy.typing import NDArray

from profiling.report.format import one_line

#: A figure or a trace as plotly reads it. Every name in it has gone through `plain`.
Figure = Mapping[str, Any]
Trace = dict[str, Any]
#: A level across a figure: a value of its y axis, and the label in the margin.
Level = tuple[float, str]

#: The frame rates that real-time applications aim at.
FRAME_RATES = (24, 30, 60, 120)
#: Points of one chart together, all its views: about a dozen bytes each.
POINTS = 24_000
GREY, RED = "#888888", "#d9363e"

#: A series is never drawn with fewer points.
_LEAST = 60
#: The largest value is so many times the smallest: small ones would be flat on a linear axis.
_FAR = 20
#: A frame budget so many times the longest time is left out: it would flatten everything else.
_IN_SIGHT = 2.5
#: Told apart by people who see red and green alike, on white and on black.
_COLOURS = (
    *("#0284c7", "#e08700", "#0d9f6e", "#c2417c", "#7c6cf0"),
    *("#b45309", "#5f8ea0", "#9f9100", "#d65a5a", "#4f7a28"),
)


@dataclass(frozen=True)
class View:
    """One figure of a chart, and the label by which the reader chooses it."""

    label: str
    figure: Figure


@dataclass(frozen=True)
class Chart:
    """A figure, or several of which the reader sees one at a time. Without a view it is false, and is not shown."""

    key: str  # unique on the page
    title: str
    views: Sequence[View]
    note: str = ""

    def __bool__(self) -> bool:
        return bool(self.views)


def plain(text: object) -> str:
    """Return `text` as plotly shows it literally: it reads a few tags and entities in every name."""
    return escape(one_line(text), quote=False)


def palette(names: Iterable[str]) -> dict[str, str]:
    """Return a colour for each of `names`, in their order."""
    return {name: _COLOURS[place % len(_COLOURS)] for place, name in enumerate(dict.fromkeys(names))}


def axis(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis with its title, which names the unit; `more` is plotly's."""
    return {"title": {"text": title}, "automargin": True, **more}


def scale(values: Iterable[float]) -> dict[str, Any]:
    """Return what an axis of these `values` needs to show small and large ones alike: a log scale, or one from zero."""
    known = np.array(list(values), dtype=np.float64)
    known = known[np.isfinite(known)]
    if known.size and known.min() > 0 and known.max() > _FAR * known.min():
        return {"type": "log"}
    return {"rangemode": "tozero"}


def figure(
    data: Iterable[Trace], x: Mapping[str, Any], y: Mapping[str, Any], levels: Iterable[Level] = (), **more: Any
) -> Figure:
    """Return a figure of the traces `data` over two axes, with labelled lines across it at `levels`.

    `more` goes into plotly's layout.
    """
    lines, labels = [], []
    for value, label in levels:
        ends = {"xref": "paper", "x0": 0, "x1": 1, "y0": value, "y1": value}
        lines.append({"type": "line", **ends, "line": {"color": RED, "dash": "dash", "width": 1.5}})
        place = {"xref": "paper", "x": 1, "xanchor": "left", "y": log10(value) if y.get("type") == "log" else value}
        labels.append({"text": plain(label), "showarrow": False, "font": {"color": RED, "size": 11}, **place})
    layout = {"xaxis": x, "yaxis": y, "hoverlabel": {"namelength": -1}, "showlegend": True, "annotations": labels}
    return {"data": list(data), "layout": {**layout, **more, "shapes": [*lines, *more.get("shapes", ())]}}


def frame_budgets(times_ms: Iterable[float]) -> list[Level]:
    """Return the time between two frames at each usual frame rate, those that are in sight of `times_ms`."""
    highest = max(times_ms, default=0.0)
    return [(1000 / rate, f"{rate} FPS") for rate in FRAME_RATES if 1000 / rate <= _IN_SIGHT * highest]


def bars(
    name: object,
    x: Sequence[Any],
    y: Sequence[float | None],
    colour: str,
    ends: Sequence[Sequence[float] | None] | None = None,
    *,
    horizontal: bool = False,
    **more: Any,
) -> Trace:
    """Return a trace of bars at the places `x` with the intervals `ends` of their heights; absent heights have no bar.

    With `horizontal` the bars lie, `x` being their places along the y axis.
    """
    known = [place for place, value in enumerate(y) if value is not None]
    heights = [value for value in y if value is not None]
    places, values = [_place(x[place]) for place in known], rounded(heights)
    along = {"orientation": "h", "x": values, "y": places} if horizontal else {"x": places, "y": values}
    drawn: Trace = {"type": "bar", "name": plain(name), **along, "marker": {"color": colour}, **more}
    if ends is not None:
        drawn["error_x" if horizontal else "error_y"] = error_bars(heights, [ends[place] for place in known])
    return drawn


def error_bars(values: Sequence[float], ends: Sequence[Sequence[float] | None], colour: str = GREY) -> dict[str, Any]:
    """Return plotly's error bars for the 95% intervals `ends` (low, high) of `values`; None draws none."""
    spans = [pair if pair is not None else (value, value) for value, pair in zip(values, ends, strict=True)]
    # A bootstrap interval holds its median up to rounding; bars have no negative length.
    return {
        **{"type": "data", "symmetric": False, "color": colour},
        "array": rounded(max(0.0, pair[1] - value) for value, pair in zip(values, spans, strict=True)),
        "arrayminus": rounded(max(0.0, value - pair[0]) for value, pair in zip(values, spans, strict=True)),
    }


def points(
    name: object,
    x: Iterable[Any],
    y: Iterable[float],
    symbol: str = "circle",
    colour: str = GREY,
    size: int = 8,
    **more: Any,
) -> Trace:
    """Return a trace of markers; those of open symbols and lines are drawn two pixels wide."""
    look = {"symbol": symbol, "size": size, "color": colour, "line": {"width": 2}}
    drawn = {"x": [_place(value) for value in x], "y": rounded(y)}
    return {"type": "scatter", "mode": "markers", "name": plain(name), **drawn, "marker": look, **more}


def line(name: object, x: Iterable[Any], y: Iterable[float], colour: str, width: float = 1.5, **more: Any) -> Trace:
    """Return a trace of a line through the points."""
    drawn = {"x": [_place(value) for value in x], "y": rounded(y), "line": {"color": colour, "width": width}}
    return {"type": "scatter", "mode": "lines", "name": plain(name), **drawn, **more}


def tree(trace: Mapping[str, Any]) -> Figure:
    """Return a figure of one trace that has no axes; labels that would be too small to read are left out."""
    layout = {"hoverlabel": {"namelength": -1}, "uniformtext": {"minsize": 9, "mode": "hide"}, "annotations": []}
    return {"data": [dict(trace)], "layout": layout}


def band(axis_name: str, low: float, high: float, colour: str = GREY, opacity: float = 0.15) -> dict[str, Any]:
    """Return a shaded band for `figure(shapes=[...])`: between two values of the axis "x" or "y", along the other."""
    other = "y" if axis_name == "x" else "x"
    ends = {f"{axis_name}0": low, f"{axis_name}1": high, f"{other}ref": "paper", f"{other}0": 0, f"{other}1": 1}
    return {"type": "rect", **ends, "fillcolor": colour, "opacity": opacity, "line": {"width": 0}, "layer": "below"}


def rounded(values: Iterable[float]) -> list[float]:
    """Return `values` to six significant digits, which no screen tells from more."""
    return [float(f"{value:.6g}") for value in values]


def points_each(series: int) -> int:
    """Return how many points each of `series` may have."""
    return max(_LEAST, POINTS // max(1, series))


def ranks(size: int, most: int) -> NDArray[np.intp]:
    """Return at most `most` of `size` ranks, evenly spread, the first and the last among them."""
    return np.unique(np.linspace(0, size - 1, min(size, most)).round().astype(np.intp))


def envelope(values: NDArray[np.float64], most: int) -> NDArray[np.intp]:
    """Return which of `values` [n] to draw, at most `most`: the lowest and the highest of each stretch, in order.

    Values that are not finite are left out.
    """
    places = np.flatnonzero(np.isfinite(values))
    if places.size <= most:
        return places
    stretches = np.array_split(places, max(1, most // 2))
    ends = [(part[values[part].argmin()], part[values[part].argmax()]) for part in stretches]
    return np.unique(np.array(ends))


def _place(value: Any) -> Any:
    if isinstance(value, str):
        return plain(value)
    return int(value) if isinstance(value, int | np.integer) or float(value).is_integer() else float(value)
