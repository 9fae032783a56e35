"""Charts as plain data, which `templates/chart.html` draws: the page needs no script for them.

A `Chart` holds `View`s, shown below each other. A view is a `Figure` of series over two axes; `Rows` of bars or of
spreads over one axis of milliseconds; or a tree of `Node`s. Every place in a figure is a percentage of its box, so the
page can be of any width, and text keeps its size. An example:

    series = [
        Series("compile", [(0, 7.21), (1, 7.19), (2, 9.24)], palette(["compile"])["compile"]),
        Series("slow", [(2, 9.24)], GREY, MARKS),
    ]
    drawn = Figure("frame", "frame time, ms", series, level=(16.7, "60 FPS"))
    chart = Chart("frames", "Frame time over frames", [View("loop.compile", drawn)], "Dashed: the budget.")
    Section("realtime", "Frames", charts=(chart,))  # page.py
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, floor, log10

import numpy as np
from numpy.typing import NDArray

from profiling.results.stats import COMMON_FPS

#: A line across a figure: (value in the unit of the axis, label).
Level = tuple[float, str]

#: Most points of a series of frames; a point takes about a dozen bytes.
POINTS = 4_000
GREY = "#888888"
#: How a series is drawn: as the sign that stands for it in the legend.
LINE, MARKS = "━", "○"
#: Ticks of an axis, at most; and free space at the end of an axis, as a share of it.
_TICKS, _MARGIN = 7, 0.04
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
class Series:
    """Points (x, y) of one name: a line through them (`LINE`), or a mark at each (`MARKS`)."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str
    drawn: str = LINE


@dataclass(frozen=True)
class Axis:
    """A scale from values to percentages; `low` and `high` are powers of ten where it is logarithmic."""

    title: str
    low: float
    high: float
    is_log: bool = False

    @classmethod
    def of(cls, title: str, values: Sequence[float], *, may_be_log: bool = False) -> Axis:
        """Return the axis for `values`: from zero, or logarithmic where they are positive and far apart."""
        low, high = min(values, default=0.0), max(values, default=1.0)
        if may_be_log and 0 < low < high / _FAR:
            space = _MARGIN * (log10(high) - log10(low))
            return cls(title, log10(low) - space, log10(high) + space, is_log=True)
        return cls(title, min(low, 0.0), high + (_MARGIN * (high - low) or 0.05 * abs(high) or 1.0))

    def place(self, value: float) -> float:
        """Return where a value stands, in percent from the low end."""
        return round(100 * ((log10(value) if self.is_log else value) - self.low) / (self.high - self.low), 2)

    @cached_property
    def ticks(self) -> list[tuple[float, str]]:
        """(Place, number) of round values."""
        if self.is_log:
            factors = (1, 2, 5) if self.high - self.low < 2 else (1,)
            powers = [10.0**power for power in range(floor(self.low), ceil(self.high) + 1)]
            values = [f * power for power in powers for f in factors if self.low <= log10(f * power) <= self.high]
        else:
            power = 10.0 ** floor(log10((self.high - self.low) / _TICKS))
            step = next(f * power for f in (1, 2, 5, 10) if (self.high - self.low) / (f * power) <= _TICKS)
            values = [step * n for n in range(ceil(self.low / step - 1e-9), floor(self.high / step + 1e-9) + 1)]
        return [(self.place(value), f"{value:,.6g}") for value in values]


@dataclass(frozen=True)
class Figure:
    """Series over two axes, with a dashed level across them; `shaded_to`: where a band from 0 of the x axis ends."""

    x_title: str
    y_title: str
    series: Sequence[Series]
    level: Level | None = None
    shaded_to: float = 0

    @cached_property
    def x(self) -> Axis:
        """The axis to the right."""
        ends = [x for series in self.series for x, _ in series.points]
        return Axis.of(self.x_title, [*ends, self.shaded_to])

    @cached_property
    def y(self) -> Axis:
        """The axis upwards."""
        ends = [y for series in self.series for _, y in series.points]
        return Axis.of(self.y_title, [*ends, *([self.level[0]] if self.level and ends else [])], may_be_log=True)

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the percentages from the left and from the top."""
        return self.x.place(x), round(100 - self.y.place(y), 2)

    def path(self, series: Series) -> str:
        """Return the line through the points, in thousandths; one point is a line without length, a dot."""
        places = [f"{10 * left:.5g} {10 * top:.5g}" for left, top in (self.at(*point) for point in series.points)]
        return "M" + "L".join([*places[:1], *places])

    @property
    def legend(self) -> list[tuple[str, str, str]]:
        """The sign, colour and name of each series."""
        return [(series.drawn, series.colour, series.name) for series in self.series]


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


def palette(names: Iterable[str]) -> dict[str, str]:
    """Return a colour for each of `names`; those beyond the tenth are grey, and told by their labels."""
    return {name: _COLOURS[place] if place < len(_COLOURS) else GREY for place, name in enumerate(dict.fromkeys(names))}


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


def frame_budgets(top: float) -> list[Level]:
    """Return the frame budget (ms) of each common frame rate on an axis from 0 to `top`, but for lines too close."""
    levels: list[Level] = []
    for rate in COMMON_FPS:
        if 1000 / rate <= top and (not levels or levels[-1][0] - 1000 / rate >= _LABEL * top):
            levels.append((1000 / rate, f"{rate:g} FPS"))
    return levels


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
