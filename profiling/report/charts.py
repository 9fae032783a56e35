"""Charts as plain data: axes with units, names that stay text, thinned series, intervals, frame budgets.

A `Chart` holds `View`s, shown below each other. A view is a figure over two axes, which `plot.py` lays
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
#: Most points of a series of frames; a point takes about a dozen bytes.
POINTS = 4_000
GREY, RED = "#888888", "#d9363e"

#: Ratio of largest to smallest value above which an axis is logarithmic: small values would be flat otherwise.
_FAR = 20
#: An axis ends at this many times the highest of the values that must be readable; what is above it is cut off.
_IN_SIGHT = 2.5
#: A value above this many times the median of the others is an outlier, for which an axis is not made.
_OUTLIER = 8
#: Of two lines nearer to each other than this share of the axis (0 to 1) one is drawn: a label has no more room.
_LABEL = 0.05
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
    """What is drawn, and its title where a chart has several."""

    label: str
    figure: Figure | Rows | Node


@dataclass(frozen=True)
class Chart:
    """One drawing or several. A chart without views is false, and is not shown."""

    key: str  # unique on the page
    title: str
    views: Sequence[View]
    note: str = ""

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
    """Return the frame budget (ms) of each common frame rate on an axis from 0 to `top`, but for lines too close."""
    levels: list[Level] = []
    for rate in FRAME_RATES:
        if 1000 / rate <= top and (not levels or levels[-1][0] - 1000 / rate >= _LABEL * top):
            levels.append((1000 / rate, f"{rate} FPS"))
    return levels


def error_bars(values: Sequence[float], ends: Sequence[Sequence[float] | None], colour: str = GREY) -> dict[str, Any]:
    """Return error bars for the 95% intervals `ends` (low, high) of `values`; None draws none."""
    spans = [pair if pair is not None else (value, value) for value, pair in zip(values, ends, strict=True)]
    # A median may lie outside its bootstrap interval by rounding; an error bar must not be negative.
    return {
        "color": colour,
        "array": [max(0.0, pair[1] - value) for value, pair in zip(values, spans, strict=True)],
        "arrayminus": [max(0.0, value - pair[0]) for value, pair in zip(values, spans, strict=True)],
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
    """Return a series of markers; `-open` symbols are hollow."""
    look = {"symbol": symbol, "size": size, "color": colour}
    return {"mode": "markers", "name": plain(name), "x": list(x), "y": list(y), "marker": look, **more}


def line(name: object, x: Iterable[Any], y: Iterable[float], colour: str, width: float = 1.5, **more: Any) -> Trace:
    """Return a series of a line through the points; `mode="lines+markers"` marks them too."""
    drawn = {"x": list(x), "y": list(y), "line": {"color": colour, "width": width}}
    return {"mode": "lines", "name": plain(name), **drawn, **more}


def band(axis_name: str, low: float, high: float, colour: str = GREY, opacity: float = 0.15) -> dict[str, Any]:
    """Return a shaded band for `figure(shapes=[...])`: from `low` to `high` on axis "x" or "y"."""
    other = "y" if axis_name == "x" else "x"
    ends = {f"{axis_name}0": low, f"{axis_name}1": high, f"{other}ref": "paper", f"{other}0": 0, f"{other}1": 1}
    return {"type": "rect", **ends, "fillcolor": colour, "opacity": opacity, "line": {"width": 0}, "layer": "below"}


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
