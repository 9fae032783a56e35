"""All the samples: how they spread, and in which order they came."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from profiling.reporting.frame_plot import envelope
from profiling.reporting.html.figure import RED, axis, cell_name, figure, plain, ranks, rounded, scale, share
from profiling.reporting.html.material import Material
from profiling.reporting.html.samples import Sampled, call_samples, frame_samples
from profiling.reporting.html.section import Chart, Figure, Section, View

Group = Sequence[Sampled]


def distribution_section(material: Material) -> Section:
    """Return the cumulative distributions of calls and frames, and the samples of calls over time."""
    calls, frames = call_samples(material), frame_samples(material)
    spread = (
        ("ecdf-calls", "Distribution of the wall time of a call", "wall time of a call, ms", calls),
        ("ecdf-frames", "Distribution of the frame time", "frame time, ms", frames),
    )
    charts = [
        Chart(key, title, [View(name, _ecdf(material, group, x)) for name, group in _groups(found)], _thinned(found))
        for key, title, x, found in spread
        if found
    ]
    if calls:
        note = "Crosses: the record's outliers, further than 5 median absolute deviations from the median; none "
        note += f"was removed. {_thinned(calls)}".strip()
        views = [View(name, _over_time(material, group)) for name, group in _groups(calls)]
        charts.append(Chart("samples", "Samples in the order in which they were taken", views, note))
    return Section("distribution", "Distribution and samples", charts=tuple(charts))


def _groups(found: Group) -> list[tuple[str, Group]]:
    """Return (component, its series): what one view shows."""
    names = dict.fromkeys(item.record.component for item in found)
    return [(plain(name), [item for item in found if item.record.component == name]) for name in names]


def _thinned(found: Group) -> str:
    """Say what is not drawn; every series keeps its lowest and its highest value."""
    most = share(len(found))
    count = sum(item.values.size > most for item in found)
    if not count:
        return ""
    series = "Series" if count == len(found) else f"{count} of {len(found)} series"
    return f"{series} of more than {most} samples are thinned to {most} for drawing; the lowest and highest stay."


def _ecdf(material: Material, group: Group, title: str) -> Figure:
    data = []
    for item in group:
        ordered = np.sort(item.values)
        chosen = ranks(ordered.size, share(len(group)))
        shares = (chosen + 1) / ordered.size
        data.append({**_line(material, item), "x": rounded(ordered[chosen]), "y": rounded(shares)})
        data[-1]["line"] |= {"shape": "hv"}
    x = axis(title, **_without_zero(scale(value for item in group for value in item.values)))
    return figure(data, x, axis("share of samples at or below", range=[0, 1.02]))


def _over_time(material: Material, group: Group) -> Figure:
    data = []
    marks: list[dict[str, Any]] = []
    for item in group:
        places = np.union1d(envelope(item.values, share(len(group))), [])
        chosen = places.astype(np.intp)
        data.append({**_line(material, item), "x": (chosen + 1).tolist(), "y": rounded(item.values[chosen])})
        flagged = np.intersect1d(item.flagged(), chosen)
        look = {"symbol": "x-thin", "size": 8, "line": {"width": 1.5, "color": RED}}
        mark = {"type": "scatter", "mode": "markers", "name": f"{cell_name(item.record)}, flagged", "marker": look}
        mark |= {"legendgroup": plain(item.record.variant), "showlegend": False}
        if flagged.size:
            marks.append({**mark, "x": (flagged + 1).tolist(), "y": rounded(item.values[flagged])})
    y = axis("wall time of a call, ms", **scale(value for item in group for value in item.values))
    return figure([*data, *marks], axis("sample, in order"), y)


def _line(material: Material, item: Sampled) -> dict[str, Any]:
    variant = item.record.variant
    line = {"color": material.colours[variant], "width": 1.5}
    name = cell_name(item.record)
    return {"type": "scatter", "mode": "lines", "name": name, "legendgroup": plain(variant), "line": line}


def _without_zero(found: dict[str, Any]) -> dict[str, Any]:
    """Let an axis begin where its values do: a spread is what it is about."""
    return {key: value for key, value in found.items() if key != "rangemode"}
