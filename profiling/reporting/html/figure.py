"""What the figures share: axes with their units, names that stay text, and series thin enough to draw."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from math import log10
from typing import Any

import numpy as np
from numpy.typing import NDArray

from profiling.reporting.facts import is_right
from profiling.reporting.format import one_line
from profiling.reporting.html.section import Figure
from profiling.results.records import Record

#: Points of one chart together, all its views: about a dozen bytes each.
POINTS = 24_000
#: A series is never drawn with fewer.
_LEAST = 60
#: The largest value is so many times the smallest: small ones would be flat on a linear axis.
_FAR = 20
GREY = "#888888"
RED = "#d9363e"


def plain(text: object) -> str:
    """Return `text` as plotly shows it literally: it reads a few tags and entities in every name."""
    return escape(one_line(text), quote=False)


def cell_words(record: Record, *, component: bool = False) -> str:
    """Return the variant (after its component), and whether its times count, as text."""
    name = f"{record.component}.{record.variant}" if component else record.variant
    if is_right(record):
        return one_line(name)
    return one_line(f"{name} ({'parity failed' if record.status == 'ok' else record.status}: does not count)")


def cell_name(record: Record, *, component: bool = False) -> str:
    """Return `cell_words` for a figure."""
    return plain(cell_words(record, component=component))


def axis(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis with its title, which names the unit."""
    return {"title": {"text": title}, "automargin": True, **more}


def figure(
    data: Iterable[Mapping[str, Any]],
    x: Mapping[str, Any],
    y: Mapping[str, Any],
    levels: Iterable[tuple[float, str]] = (),
    **more: Any,
) -> Figure:
    """Return a figure of the traces `data` over two axes.

    `levels` are lines across it, each at a value of `y` and with its label in the margin; `more` goes into the layout.
    """
    lines, labels = [], []
    for value, label in levels:
        ends = {"xref": "paper", "x0": 0, "x1": 1, "y0": value, "y1": value}
        lines.append({"type": "line", **ends, "line": {"color": RED, "dash": "dash", "width": 1.5}})
        place = {"xref": "paper", "x": 1, "xanchor": "left", "y": log10(value) if y.get("type") == "log" else value}
        labels.append({"text": plain(label), "showarrow": False, "font": {"color": RED, "size": 11}, **place})
    layout = {"xaxis": x, "yaxis": y, "hoverlabel": {"namelength": -1}, "showlegend": True, "annotations": labels}
    return {"data": list(data), "layout": {**layout, **more, "shapes": [*lines, *more.get("shapes", ())]}}


def tree_figure(trace: Mapping[str, Any]) -> Figure:
    """Return a figure of one trace that has no axes; labels that would be too small to read are left out."""
    layout = {"hoverlabel": {"namelength": -1}, "uniformtext": {"minsize": 9, "mode": "hide"}, "annotations": []}
    return {"data": [trace], "layout": layout}


def scale(values: Iterable[float]) -> dict[str, Any]:
    """Return what an axis of these `values` needs to show small and large ones alike."""
    known = np.array(list(values), dtype=np.float64)
    known = known[np.isfinite(known)]
    if known.size and known.min() > 0 and known.max() > _FAR * known.min():
        return {"type": "log"}
    return {"rangemode": "tozero"}


def rounded(values: Iterable[float]) -> list[float]:
    """Return `values` to six significant digits, which no screen tells from more."""
    return [float(f"{value:.6g}") for value in values]


def share(series: int) -> int:
    """Return how many points each of `series` may have."""
    return max(_LEAST, POINTS // max(1, series))


def ranks(count: int, most: int) -> NDArray[np.intp]:
    """Return at most `most` of `count` ranks, evenly spread, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.intp))
