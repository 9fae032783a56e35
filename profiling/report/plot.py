"""Lays out a figure over two axes for `templates/plot.html`: every place is a percentage of the plot's box.

So the page can be of any width without a script, and text keeps its size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import ceil, floor, log10
from typing import Any

from profiling.report.charts import GREY, RED, Figure, Trace
from profiling.report.format import significant

#: The marks of symbols, full and hollow.
_GLYPHS = {
    **{"circle": "●○", "diamond": "◆◇", "square": "■□", "star": "★☆"},
    **{"triangle-up": "▲△", "triangle-down": "▼▽"},
}
_LINE, _DOTTED = "━", "┄"
#: Ticks of an axis, at most; categories beyond `_CATEGORIES` are thinned.
_TICKS, _CATEGORIES = 7, 12
#: Free space at the ends of an axis that does not begin at zero, as a share of it.
_MARGIN = 0.04


@dataclass(frozen=True)
class Mark:
    """A symbol at a place; `words` are shown to the pointer."""

    x: float
    y: float
    glyph: str
    colour: str
    size: float
    words: str


@dataclass(frozen=True)
class Rule:
    """A straight line between two places."""

    x1: float
    y1: float
    x2: float
    y2: float
    colour: str
    dashed: bool = False


@dataclass
class Plot:
    """A laid-out figure."""

    x_title: str
    y_title: str
    x_ticks: Sequence[tuple[float, str]]
    y_ticks: Sequence[tuple[float, str]]
    bands: list[tuple[float, float, float, float, str, float]] = field(default_factory=list)  # x, y, width, height, …
    rules: list[Rule] = field(default_factory=list)
    paths: list[tuple[str, str, float, bool, str]] = field(default_factory=list)  # thousandths; colour, width, dotted
    marks: list[Mark] = field(default_factory=list)
    notes: list[tuple[float, str, str]] = field(default_factory=list)  # y, text, colour: right of the plot
    labels: list[tuple[float, float, str, str]] = field(default_factory=list)  # x, y, text, colour: at a point
    key: list[tuple[str, str, str]] = field(default_factory=list)  # mark, colour, name

    @property
    def left_em(self) -> float:
        """The width of the labels left of the plot."""
        return 1 + 0.58 * max((len(text) for _, text in self.y_ticks), default=1)


class _Axis:
    """A scale from values to percentages, 0 at the low end."""

    def __init__(self, spec: Mapping[str, Any], values: Sequence[Any]) -> None:
        self.kind = spec.get("type", "linear")
        self.names = list(dict.fromkeys(map(str, values))) if self.kind == "category" else []
        numbers = [self._number(value) for value in values]
        numbers += [self._number(value) for value in spec.get("autorangeoptions", {}).get("include", ())]
        if "range" in spec:
            self.low, self.high = map(float, spec["range"])
        elif self.names:
            self.low, self.high = -0.5, len(self.names) - 0.5
        else:
            self.low, self.high = min(numbers, default=0.0), max(numbers, default=1.0)
            space = _MARGIN * (self.high - self.low) or 0.05 * abs(self.high) or 1.0
            from_zero = spec.get("rangemode") == "tozero" and self.low >= 0
            self.low, self.high = 0.0 if from_zero else self.low - space, self.high + space
        self.ticks = list(self._ticks(spec))

    def place(self, value: Any) -> float:
        """Return where a value stands, in percent of the axis."""
        return round(100 * (self._number(value) - self.low) / (self.high - self.low), 2)

    def _number(self, value: Any) -> float:
        if self.kind == "category":
            return float(self.names.index(str(value)))
        if self.kind == "date":
            return datetime.fromisoformat(value).replace(tzinfo=UTC).timestamp()
        return log10(max(float(value), 1e-12)) if self.kind == "log" else float(value)

    def _ticks(self, spec: Mapping[str, Any]) -> Iterable[tuple[float, str]]:
        if "tickvals" in spec:
            values = spec["tickvals"]
            yield from zip(map(self.place, values), spec.get("ticktext") or map(_short, values), strict=True)
        elif self.names:
            step = ceil(len(self.names) / _CATEGORIES)
            yield from ((self.place(name), name) for name in self.names[::step])
        elif self.kind == "date":
            for share in (0.1, 0.37, 0.63, 0.9):
                moment = datetime.fromtimestamp(self.low + share * (self.high - self.low), UTC)
                yield (
                    100 * share,
                    f"{moment:%Y-%m-%d %H:%M}" if self.high - self.low < 5 * 86400 else f"{moment:%Y-%m-%d}",
                )
        elif self.kind == "log":
            decades = range(floor(self.low), ceil(self.high) + 1)
            factors = (1, 2, 5) if self.high - self.low < 2 else (1,)
            shown = [f * 10.0**power for power in decades for f in factors]
            yield from ((self.place(each), _short(each)) for each in shown if self.low <= log10(each) <= self.high)
        else:
            step = _step(abs(self.high - self.low))
            first = ceil(min(self.low, self.high) / step - 1e-9)
            last = floor(max(self.low, self.high) / step + 1e-9)
            yield from ((self.place(step * n), _short(step * n)) for n in range(first, last + 1))


def plot_of(figure: Figure) -> Plot:
    """Return the figure laid out."""
    data, layout = figure["data"], figure["layout"]
    ends = {key: [end for each in data for end in _ends(each, key)] for key in "xy"}
    ends["y"] += [value for value, _ in layout["levels"] if ends["y"] and "range" not in layout["yaxis"]]
    x, y = (_Axis(layout[f"{key}axis"], ends[key]) for key in "xy")
    x_title, y_title = (layout[f"{key}axis"]["title"]["text"] for key in "xy")
    plot = Plot(x_title, y_title, x.ticks, [(100 - place, text) for place, text in y.ticks])
    for shape in layout["shapes"]:
        left, right = sorted(_at(shape, "x", end, x) for end in "01")
        top, bottom = sorted(100 - _at(shape, "y", end, y) for end in "01")
        if shape["type"] == "rect":
            colour, opacity = shape["fillcolor"], shape["opacity"]
            plot.bands.append((left, top, right - left, bottom - top, colour, opacity))
        else:
            plot.rules.append(Rule(left, top, right, bottom, shape["line"]["color"], dashed=True))
    for value, label in layout["levels"]:
        place = 100 - y.place(value)
        plot.rules.append(Rule(0, place, 100, place, RED, dashed=True))
        plot.notes.append((place, label, RED))
    for series in data:
        _add(plot, series, x, y)
    shown = [series for series in data if series.get("showlegend", True) and len(series["x"])]
    key = list(dict.fromkeys(_key(series) for series in shown))
    if len({(mark, colour) for mark, colour, _ in key}) == len(key):
        plot.key += key
    else:  # colours do not tell them apart
        for series, (_, colour, name) in zip(shown, map(_key, shown), strict=True):
            plot.labels.append((x.place(series["x"][-1]), 100 - y.place(series["y"][-1]), name, colour))
    return plot


def _ends(series: Trace, key: str) -> list[Any]:
    """Return the values of a series along an axis, with the ends of their error bars."""
    values, bars = list(series[key]), series.get(f"error_{key}")
    if bars is None:
        return values
    lows = [value - size for value, size in zip(values, bars["arrayminus"], strict=True) if value > size]
    return [*values, *lows, *(value + size for value, size in zip(values, bars["array"], strict=True))]


def _at(shape: Mapping[str, Any], key: str, end: str, axis: _Axis) -> float:
    value = shape[f"{key}{end}"]
    return 100.0 * value if shape.get(f"{key}ref") == "paper" else axis.place(value)


def _add(plot: Plot, series: Trace, x: _Axis, y: _Axis) -> None:
    """Add the line, the error bars and the marks of a series to a plot."""
    places = [(x.place(a), 100 - y.place(b)) for a, b in zip(series["x"], series["y"], strict=True)]
    mode, look = series["mode"], series.get("marker", {})
    if "lines" in mode:
        stroke = series["line"]
        path = "M" + "L".join(f"{10 * a:.5g} {10 * b:.5g}" for a, b in places)
        plot.paths.append((path, stroke["color"], stroke["width"], stroke.get("dash") == "dot", series["name"]))
    for key, axis in (("x", x), ("y", y)):
        if bars := series.get(f"error_{key}"):
            for (left, top), value, less, more in zip(
                places, series[key], bars["arrayminus"], bars["array"], strict=True
            ):
                low, high = axis.place(value - less), axis.place(value + more)
                line = (low, top, high, top) if key == "x" else (left, 100 - low, left, 100 - high)
                plot.rules.append(Rule(*line, bars["color"]))
    if "markers" not in mode:
        return
    symbols = look.get("symbol", "circle")
    colour = look.get("color") or series.get("line", {}).get("color", GREY)
    texts = series.get("text") or [
        f"{series['name']}: {_text(a)}, {_text(b)}" for a, b in zip(series["x"], series["y"], strict=True)
    ]
    for place, (left, top) in enumerate(places):
        glyph = _glyph(symbols if isinstance(symbols, str) else symbols[place])
        plot.marks.append(Mark(left, top, glyph, colour, 1.7 * look.get("size", 8), texts[place]))


def _glyph(symbol: str) -> str:
    return _GLYPHS[symbol.removesuffix("-open")][symbol.endswith("-open")]


def _key(series: Trace) -> tuple[str, str, str]:
    """Return mark, colour and name of a series as the legend shows them."""
    look, stroke = series.get("marker", {}), series.get("line", {})
    if "lines" in series["mode"]:
        return _DOTTED if stroke.get("dash") == "dot" else _LINE, stroke["color"], series["name"]
    symbol = look.get("symbol", "circle")
    return _glyph(symbol if isinstance(symbol, str) else symbol[0]), look.get("color", GREY), series["name"]


def _step(length: float) -> float:
    """Return the step of 1, 2 or 5 times a power of ten that makes at most `_TICKS` of them."""
    power = 10.0 ** floor(log10(length / _TICKS))
    return next(factor * power for factor in (1, 2, 5, 10) if length / (factor * power) <= _TICKS)


def _short(value: float) -> str:
    """Return a number of an axis: `0.5`, `1,000`, `1e-05`."""
    return f"{value:,.0f}" if abs(value) >= 1000 and float(value).is_integer() else f"{value:.6g}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else significant(value)
