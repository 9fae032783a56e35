"""Charts as plain data, which `templates/chart.html` draws: the page needs no script for them.

A `Chart` holds drawings by title, shown below each other: a `Figure` of frame times; `Rows` of bars or of spreads; or a
tree of `Node`s. Every axis is one of milliseconds from 0 on, its end in words. Every place is a percentage of its box,
so the page can be of any width, and text keeps its size. An example:

    compiled = Series("compile", [(0, 7.21), (1, 7.19), (2, 9.24)], palette(["compile"])["compile"])
    drawn = Figure(compiled, [Series("slow", [(2, 9.24)], GREY)], level=(16.7, "60 FPS"))
    chart = Chart("frames", "Frame time over frames", {"loop.compile": drawn}, "Dashed: the budget.")
    Section("realtime", "Frames", charts=(chart,))  # page.py
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

import numpy as np
from numpy.typing import NDArray

from profiling.results.measured import Summary
from profiling.results.stats import COMMON_FPS

#: A line across a figure: (milliseconds, label).
Level = tuple[float, str]

#: Most points of a series of frames; a point takes about a dozen bytes.
POINTS = 4_000
GREY = "#888888"
#: An axis ends at this many times the highest of the values that must be readable; what is above it is cut off.
_IN_SIGHT = 2.5
#: A value above this many times the median of the others is an outlier, for which an axis is not made.
_OUTLIER = 8
#: Of two lines nearer to each other than this share of the axis (0 to 1) one is drawn: a label has no more room.
_LABEL = 0.05
#: Distinguishable with red-green colour blindness, on white and on black; black text is readable on each (4.5:1).
_COLOURS = (
    *("#0284c7", "#e08700", "#0d9f6e", "#c84a82", "#7c6cf0"),
    *("#bf590b", "#5f8ea0", "#9f9100", "#d65a5a", "#548330"),
)


@dataclass(frozen=True)
class Series:
    """Points (frame, milliseconds) of one name."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str


@dataclass(frozen=True)
class Figure:
    """Frame times as a line with marks on it, and a dashed level; `shaded_to`: where a band from frame 0 ends."""

    line: Series
    marks: Sequence[Series] = ()
    level: Level | None = None
    shaded_to: float = 0

    @cached_property
    def last(self) -> float:
        """The frame at the right end."""
        return max(1.0, self.shaded_to, *(frame for frame, _ in self.line.points))

    @cached_property
    def end(self) -> float:
        """The milliseconds at the upper end; a frame that takes longer stands at the edge."""
        times = [ms for _, ms in self.line.points] or [1.0]
        return upper_end([median(times), *([self.level[0]] if self.level else [])], times)

    def at(self, frame: float, ms: float) -> tuple[float, float]:
        """Return the percentages from the left and from the top."""
        return round(100 * frame / self.last, 2), round(100 - 100 * min(ms / self.end, 1.0), 2)

    @property
    def path(self) -> str:
        """The line through the points, in thousandths; one point is a line without length, a dot."""
        places = [f"{10 * left:.5g} {10 * top:.5g}" for left, top in (self.at(*point) for point in self.line.points)]
        return "M" + "L".join([*places[:1], *places])

    @property
    def legend(self) -> list[tuple[str, str, str]]:
        """The sign, colour and name of each series."""
        return [("━", self.line.colour, self.line.name), *(("○", each.colour, each.name) for each in self.marks)]


@dataclass(frozen=True)
class Part:
    """A stretch of a stacked bar."""

    label: str
    ms: float
    colour: str


@dataclass(frozen=True)
class Row:
    """A name, its stacked bar or the spread of its times, of which the samples are drawn, and what stands behind it."""

    name: str
    words: str
    parts: Sequence[Part] = ()
    spread: Summary | None = None
    roofline_ms: float | None = None
    counts: bool = True  # False: its times are not compared, and it is pale

    @property
    def ms(self) -> float:
        """Where it ends."""
        return sum(part.ms for part in self.parts) if self.spread is None else self.spread.max


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
class Chart:
    """One drawing or several. A chart without drawings is false, and is not shown."""

    key: str  # unique on the page
    title: str
    drawings: Mapping[str, Figure | Rows | Node]  # by the title that each has where there are several
    note: str = ""

    def __bool__(self) -> bool:
        return bool(self.drawings)

    @property
    def legend(self) -> list[tuple[str, str, str]]:
        """Mark, colour and label of each part of the bars, in the order of the palette."""
        rows = [row for drawn in self.drawings.values() if isinstance(drawn, Rows) for row in drawn.rows]
        parts = {part.label: part.colour for row in rows for part in row.parts}
        places = [*_COLOURS, GREY]
        return [("■", parts[label], label) for label in sorted(parts, key=lambda label: places.index(parts[label]))]


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
    """Return at most `most` indices of finite `values` [n] to draw: lowest and highest of each stretch, in order."""
    places = np.flatnonzero(np.isfinite(values))
    if places.size <= most:
        return places
    stretches = np.array_split(places, max(1, most // 2))
    ends = [(part[values[part].argmin()], part[values[part].argmax()]) for part in stretches]
    return np.unique(np.array(ends))
