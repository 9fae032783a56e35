"""Charts as plain data: axes with units, names that stay text, thinned series, intervals, frame budgets.

A `Chart` holds `View`s, shown one at a time or below each other. A view is a figure over two axes, which `plot.py` lays
out as SVG; `Rows` of bars or of spreads over one axis of milliseconds; or a tree of `Node`s. An example:

    data = [
        line("compile", x=[0, 1, 2], y=[7.21, 7.19, 7.24], colour=palette(["compile"])["compile"]),
        points("slow", x=[2], y=[9.2], symbol="diamond-open"),
    ]
    drawn = figure(data, axis("frame"), axis("frame time, ms", rangemode="tozero"), [(16.7, "60 FPS")])
    chart = Chart("frames", "Frame time over frames", [View("loop.compile", drawn)], "Dashed: the budget.")
    Section("realtime", "Frames", charts=(chart,))  # page.py
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from profiling.errors import printable

#: A figure or a series, in the keys that `plot.py` reads.
Figure = Mapping[str, Any]
Trace = dict[str, Any]
#: A line across a figure: (value in the unit of the axis, label).
Level = tuple[float, str]

#: The frame rates that real-time applications aim at.
FRAME_RATES = (24, 30, 60, 120)
#: Most points in one chart, over all its views; a point takes about a dozen bytes.
POINTS = 12_000
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
class Part:
    """A stretch of a stacked bar."""

    label: str
    ms: float
    colour: str


@dataclass(frozen=True)
class Spread:
    """How times are spread around their median, in milliseconds; None where not known."""

    low: float
    p50: float
    p95: float
    high: float
    p99: float | None = None
    least: float | None = None  # the roofline
    samples: Sequence[float] = ()


@dataclass(frozen=True)
class Row:
    """A name, its stacked bar or its spread, and what stands behind it."""

    name: str
    words: str
    parts: Sequence[Part] = ()
    spread: Spread | None = None
    counts: bool = True  # False: its times are not compared, and it is pale

    @property
    def ms(self) -> float:
        """Where it ends."""
        return sum(part.ms for part in self.parts) if self.spread is None else self.spread.high


@dataclass(frozen=True)
class Rows:
    """Rows over one axis from 0 to `end` milliseconds, with lines across them at `levels`."""

    rows: Sequence[Row]
    end: float
    levels: Sequence[Level] = ()


@dataclass(frozen=True)
class Node:
    """A part of a whole, its own milliseconds, and the parts within it."""

    label: str
    words: str
    own_ms: float
    nodes: Sequence[Node] = ()

    @property
    def ms(self) -> float:
        """Its own time and that of all within it."""
        return self.own_ms + sum(node.ms for node in self.nodes)


@dataclass(frozen=True)
class View:
    """What is drawn, and the label by which the reader chooses it."""

    label: str
    figure: Figure | Rows | Node


@dataclass(frozen=True)
class Chart:
    """One drawing or several. A chart without views is false, and is not shown."""

    key: str  # unique on the page
    title: str
    views: Sequence[View]
    note: str = ""
    together: bool = False  # all views below each other instead of one at a time

    def __bool__(self) -> bool:
        return bool(self.views)

    @property
    def legend(self) -> list[tuple[str, str, str]]:
        """The parts of its bars: a mark, its colour, and the label."""
        rows = [row for view in self.views if isinstance(view.figure, Rows) for row in view.figure.rows]
        return [
            ("■", colour, label) for label, colour in {p.label: p.colour for row in rows for p in row.parts}.items()
        ]


def plain(text: object) -> str:
    """Return `text` on one line, without characters that a screen cannot show; the templates escape it."""
    return printable(text)


def palette(names: Iterable[str]) -> dict[str, str]:
    """Return a colour for each of `names`; those beyond the tenth are grey, and told by their labels."""
    return {name: _COLOURS[place] if place < len(_COLOURS) else GREY for place, name in enumerate(dict.fromkeys(names))}


def axis(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis with its title, which names the unit.

    `more`: type (log, category, date), range, rangemode (tozero), tickvals with ticktext.
    """
    return {"title": {"text": title}, **more}


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
    data: Iterable[Trace],
    x: Mapping[str, Any],
    y: Mapping[str, Any],
    levels: Iterable[Level] = (),
    shapes: Iterable[Mapping[str, Any]] = (),
) -> Figure:
    """Return a figure of the series `data` over two axes, with lines across it at `levels` of the y axis."""
    layout = {"xaxis": x, "yaxis": y, "levels": list(levels), "shapes": list(shapes)}
    return {"data": list(data), "layout": layout}


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


def error_bars(values: Sequence[float], ends: Sequence[Sequence[float] | None], colour: str = GREY) -> dict[str, Any]:
    """Return error bars for the 95% intervals `ends` (low, high) of `values`; None draws none."""
    spans = [pair if pair is not None else (value, value) for value, pair in zip(values, ends, strict=True)]
    # A median may lie outside its bootstrap interval by rounding; an error bar must not be negative.
    return {
        "color": colour,
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
    """Return a series of markers; `-open` symbols are hollow.

    Values above `top`, where the axis ends, become triangles at its edge, which show the value to the pointer.
    """
    look: dict[str, Any] = {"symbol": symbol, "size": size, "color": colour}
    values = rounded(y)
    drawn: dict[str, Any] = {"x": [_place(value) for value in x], "y": values}
    if top is not None and above(values, top):
        look["symbol"] = [_CUT if value > top else symbol for value in values]
        drawn |= {"y": [min(value, top) for value in values], "text": [f"{value:.4g}" for value in values]}
    return {"mode": "markers", "name": plain(name), **drawn, "marker": look, **more}


def line(name: object, x: Iterable[Any], y: Iterable[float], colour: str, width: float = 1.5, **more: Any) -> Trace:
    """Return a series of a line through the points; `mode="lines+markers"` marks them too."""
    drawn = {"x": [_place(value) for value in x], "y": rounded(y), "line": {"color": colour, "width": width}}
    return {"mode": "lines", "name": plain(name), **drawn, **more}


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
