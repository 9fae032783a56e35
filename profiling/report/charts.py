"""Charts for plotly, as plain data: axes with units, names that stay text, thinned series, intervals, frame budgets.

A `Chart` holds one or more `View`s, of which the page shows one at a time. An example with one view:

    data = [
        bars("compile", x=["world_model"], y=[7.21], colour=palette(["compile"])["compile"], ends=[(7.16, 7.30)]),
        points("p99", x=["world_model"], y=[9.2], symbol="diamond-open"),
    ]
    top = upper_end([7.21], [9.2])
    y = axis("wall time of a call, ms", range=[0, top])
    drawn = figure(data, axis("component", type="category"), y, frame_budgets(top))
    chart = Chart("latency", "Wall time of a call", [View("all components", drawn)], "Bars: medians.")
    Section("latency", "Latency", charts=(chart,))  # page.py
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import inf, log10
from typing import Any

import numpy as np
from numpy.typing import NDArray

from profiling.errors import printable

#: A figure or a trace as plotly reads it. Every name in it has gone through `plain`.
Figure = Mapping[str, Any]
Trace = dict[str, Any]
#: A horizontal line across a figure: (value on the y axis, label in the margin).
Level = tuple[float, str]

#: The frame rates that real-time applications aim at.
FRAME_RATES = (24, 30, 60, 120)
#: Most points in one chart, over all its views; a point takes about a dozen bytes.
POINTS = 24_000
GREY, RED = "#888888", "#d9363e"

#: A series is never thinned to fewer points.
_LEAST = 60
#: Ratio of largest to smallest value above which an axis is logarithmic: small values would be flat otherwise.
_FAR = 20
#: An axis ends at this many times the highest of the values that must be readable; what is above it is cut off.
_IN_SIGHT = 2.5
#: A value above this many times the median of the others is an outlier, for which an axis is not made.
_OUTLIER = 8
#: Lines nearer to each other than this share of the axis (0 to 1) have one label.
_LABEL = 0.05
#: What a mark of a cut-off value looks like, and the note that explains it.
_CUT = "triangle-up"
CUT_NOTE = "Triangles at the upper edge: values above the axis; point at one for the number."
#: Distinguishable with red-green colour blindness, on white and on black.
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
    """One figure, or several that are shown one at a time. A chart without views is false, and is not shown."""

    key: str  # unique on the page
    title: str
    views: Sequence[View]
    note: str = ""

    def __bool__(self) -> bool:
        return bool(self.views)


def plain(text: object) -> str:
    """Return `text` escaped, because plotly interprets some HTML tags and entities in names."""
    return escape(printable(text), quote=False)


def palette(names: Iterable[str]) -> dict[str, str]:
    """Return a colour for each of `names`, in their order."""
    return {name: _COLOURS[place % len(_COLOURS)] for place, name in enumerate(dict.fromkeys(names))}


def axis(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis with its title, which names the unit; `more` is plotly's."""
    return {"title": {"text": title}, "automargin": True, **more}


def scale(values: Iterable[float]) -> dict[str, Any]:
    """Return the scale of an axis for `values`: logarithmic where they are positive and far apart, else from zero."""
    known = np.array(list(values), dtype=np.float64)
    known = known[np.isfinite(known)]
    if known.size and known.min() > 0 and known.max() > _FAR * known.min():
        return {"type": "log"}
    return {"rangemode": "tozero"}


def upper_end(readable: Iterable[float], values: Iterable[float]) -> float:
    """Return the upper end of an axis from 0 on which one outlier cannot flatten the rest.

    It shows all of `readable` (medians, say), outliers among them aside, and of `values` (p99, maxima) those that leave
    the readable ones at least two fifths of the axis.
    """
    bulk = np.array(sorted(readable), dtype=np.float64)
    if not bulk.size:
        return 1.0
    bulk = bulk[bulk <= _OUTLIER * np.median(bulk)]
    limit = _IN_SIGHT * float(bulk.max())
    return 1.06 * max(float(bulk.max()), *(value for value in values if value <= limit), 1e-9)


def series_scale(series: Sequence[NDArray[np.float64]]) -> tuple[dict[str, Any], float]:
    """Return (the scale of an axis for series of times, where it ends): an outlier of a series cannot flatten the rest.

    The axis is logarithmic, without an end, where the series themselves are far apart.
    """
    known = [values[np.isfinite(values)] for values in series]
    high = [float(np.percentile(values, 99)) for values in known if values.size]
    ends = scale([*high, *(float(np.median(values)) for values in known if values.size)])
    if "type" in ends:
        return ends, inf
    top = upper_end(high, [float(values.max()) for values in known if values.size])
    return {"range": [0, top]}, top


def above(values: Iterable[float], top: float) -> bool:
    """Return whether an axis that ends at `top` cuts off one of `values`."""
    return any(value > top for value in values)


def figure(
    data: Iterable[Trace], x: Mapping[str, Any], y: Mapping[str, Any], levels: Iterable[Level] = (), **more: Any
) -> Figure:
    """Return a figure of the traces `data` over two axes, with lines across it at `levels`, labelled where they say so.

    `more` goes into plotly's layout.
    """
    lines, labels = [], []
    for value, label in levels:
        ends = {"xref": "paper", "x0": 0, "x1": 1, "y0": value, "y1": value}
        lines.append({"type": "line", **ends, "line": {"color": RED, "dash": "dash", "width": 1.5}})
        if label:
            place = {"xref": "paper", "x": 1, "xanchor": "left", "y": log10(value) if y.get("type") == "log" else value}
            labels.append({"text": plain(label), "showarrow": False, "font": {"color": RED, "size": 11}, **place})
    layout = {"xaxis": x, "yaxis": y, "hoverlabel": {"namelength": -1}, "showlegend": True, "annotations": labels}
    return {"data": list(data), "layout": {**layout, **more, "shapes": [*lines, *more.get("shapes", ())]}}


def frame_budgets(top: float) -> list[Level]:
    """Return the frame budget (ms) of each common frame rate on an axis from 0 to `top`; close lines share a label."""
    levels: list[Level] = []
    rates: list[int] = []
    for rate in sorted(FRAME_RATES, reverse=True):
        if 1000 / rate > top:
            break
        if levels and 1000 / rate - levels[-1][0] < _LABEL * top:
            levels[-1] = (levels[-1][0], "")
        else:
            rates = []
        rates.insert(0, rate)
        levels.append((1000 / rate, f"{', '.join(map(str, rates))} FPS"))
    return levels


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
    """Return a trace of bars: positions `x`, heights `y` (None: no bar) and 95% intervals `ends` of the heights.

    With `horizontal`, `x` are positions on the y axis.
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
    # A median may lie outside its bootstrap interval by rounding; an error bar must not be negative.
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
    top: float | None = None,
    **more: Any,
) -> Trace:
    """Return a trace of markers; the outlines of open symbols are two pixels wide.

    Values above `top`, where the axis ends, become triangles at its edge, which show the value to the pointer.
    """
    look: dict[str, Any] = {"symbol": symbol, "size": size, "color": colour, "line": {"width": 2}}
    values = rounded(y)
    drawn: dict[str, Any] = {"x": [_place(value) for value in x], "y": values}
    if top is not None and above(values, top):
        look["symbol"] = [_CUT if value > top else symbol for value in values]
        drawn |= {"y": [min(value, top) for value in values], "cliponaxis": False}
        drawn |= {"text": [f"{value:.4g}" for value in values], "hovertemplate": "%{text}"}
    return {"type": "scatter", "mode": "markers", "name": plain(name), **drawn, "marker": look, **more}


def cut_bars(x: Sequence[Any], y: Sequence[float], top: float, **more: Any) -> list[Trace]:
    """Return the labels of bars that are higher than `top`, where the axis ends; empty where none is."""
    cut = [place for place, value in enumerate(y) if value > top]
    if not cut:
        return []
    labels = points("cut off", [x[place] for place in cut], [y[place] for place in cut], top=top, **more)
    return [{**labels, "mode": "markers+text", "textposition": "bottom center", "showlegend": False}]


def line(name: object, x: Iterable[Any], y: Iterable[float], colour: str, width: float = 1.5, **more: Any) -> Trace:
    """Return a trace of a line through the points."""
    drawn = {"x": [_place(value) for value in x], "y": rounded(y), "line": {"color": colour, "width": width}}
    return {"type": "scatter", "mode": "lines", "name": plain(name), **drawn, **more}


def tree(trace: Mapping[str, Any]) -> Figure:
    """Return a figure of a trace without axes; labels that would be too small to read are hidden."""
    layout = {"hoverlabel": {"namelength": -1}, "uniformtext": {"minsize": 9, "mode": "hide"}, "annotations": []}
    return {"data": [dict(trace)], "layout": layout}


def band(axis_name: str, low: float, high: float, colour: str = GREY, opacity: float = 0.15) -> dict[str, Any]:
    """Return a shaded band for `figure(shapes=[...])`: from `low` to `high` on axis "x" or "y"."""
    other = "y" if axis_name == "x" else "x"
    ends = {f"{axis_name}0": low, f"{axis_name}1": high, f"{other}ref": "paper", f"{other}0": 0, f"{other}1": 1}
    return {"type": "rect", **ends, "fillcolor": colour, "opacity": opacity, "line": {"width": 0}, "layer": "below"}


def rounded(values: Iterable[float]) -> list[float]:
    """Return `values` rounded to six significant digits, which is more than a screen can show."""
    return [float(f"{value:.6g}") for value in values]


def points_each(series: int) -> int:
    """Return the most points that each of `series` series may have."""
    return max(_LEAST, POINTS // max(1, series))


def ranks(size: int, most: int) -> NDArray[np.intp]:
    """Return at most `most` of the indices 0 to `size` - 1, evenly spread, with the first and the last."""
    return np.unique(np.linspace(0, size - 1, min(size, most)).round().astype(np.intp))


def envelope(values: NDArray[np.float64], most: int) -> NDArray[np.intp]:
    """Return at most `most` indices of `values` [n] to draw: the lowest and the highest of each stretch, in order.

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
