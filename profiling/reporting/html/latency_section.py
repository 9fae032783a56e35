"""How long a call takes, variant by variant, with the interval of its median and the frame budgets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from profiling.reporting.details import legend
from profiling.reporting.facts import by_component, interval_at, is_right, number_at, wall_p50
from profiling.reporting.html.figure import GREY, axis, cell_name, figure, plain, rounded
from profiling.reporting.html.markdown_tables import tables_of
from profiling.reporting.html.material import Material
from profiling.reporting.html.section import Chart, Figure, Section, View
from profiling.reporting.table import render_table
from profiling.reporting.verdict import FRAME_RATES
from profiling.results.records import Record

#: With more components than this the bars of all of them together are too thin to read.
_TOGETHER = 8
#: A budget so many times the longest call is left out: it would flatten every bar.
_IN_SIGHT = 2.5


def latency_section(material: Material) -> Section:
    """Return the chart of medians and the table of a run's calls."""
    groups = by_component(record for record in material.timed if wall_p50(record) is not None)
    views = [View(component, _figure(material, {component: group})) for component, group in groups.items()]
    if 1 < len(groups) <= _TOGETHER:
        views.insert(0, View("all components", _figure(material, groups)))
    chart = Chart(
        "latency",
        "Wall time of a call by variant",
        views,
        "Bars: median with its 95% interval. Diamonds: p99. Thick grey lines: the floor, where it is known. "
        "Dashed: the time between two frames. "
        "Pale: failed or invalid, so this time counts for nothing.",
    )
    charts = (chart,) if views else ()
    judged = material.titled("How the times", "Floor of a call", "What bounds a call", "Predicted")
    if not material.timed:
        return Section("latency", "Latency", (), charts, judged)
    lines = tuple(line.replace("~~", "") for line in legend(material.timed))
    calls = tables_of((("Calls", render_table(material.timed, markdown=True)),))
    return Section("latency", "Latency", lines, charts, (*calls, *judged))


def _figure(material: Material, groups: dict[str, tuple[Record, ...]]) -> Figure:
    """Draw one component with a bar a variant, or several with a group of bars a component."""
    records = [record for group in groups.values() for record in group]
    data = []
    if len(groups) == 1:
        for record in records:
            data += _traces(material, [record], [cell_name(record)])
        title, modes = "variant", {"barmode": "overlay", "scattermode": "overlay"}
    else:
        for variant in dict.fromkeys(record.variant for record in records):
            chosen = [record for record in records if record.variant == variant]
            data += _traces(material, chosen, [plain(record.component) for record in chosen])
        title, modes = "component", {"barmode": "group", "scattermode": "group"}
    budgets = [] if any(record.training for record in records) else _budgets(records)
    y = axis("wall time of a call, ms", rangemode="tozero")
    return figure(data, axis(title, type="category"), y, budgets, **modes)


def _traces(material: Material, records: Sequence[Record], places: list[str]) -> list[dict[str, Any]]:
    """Return the bars of one variant's medians, and the markers of its p99 and its floor."""
    name = plain(records[0].variant)
    medians = [wall_p50(record) or 0.0 for record in records]
    ends = [interval_at(r.metrics, "wall_ms", "ci95") or (p50, p50) for r, p50 in zip(records, medians, strict=True)]
    error = {
        **{"type": "data", "symmetric": False, "color": GREY},
        "array": rounded(high - p50 for (_, high), p50 in zip(ends, medians, strict=True)),
        "arrayminus": rounded(p50 - low for (low, _), p50 in zip(ends, medians, strict=True)),
    }
    opacity = [1.0 if is_right(record) else 0.25 for record in records]
    look = {"color": material.colours[records[0].variant], "opacity": opacity}
    shared = {"offsetgroup": name, "legendgroup": name}
    bars = {"type": "bar", "name": name, "x": places, "y": rounded(medians), "error_y": error, "marker": look}
    marks = (
        ("p99", {"symbol": "diamond-open", "size": 8}, [number_at(r.metrics, "wall_ms", "p99") for r in records]),
        ("floor", {"symbol": "line-ew-open", "size": 24}, [number_at(r.limits, "floor_ms") for r in records]),
    )
    traces = [bars]
    for words, symbol, values in marks:
        known = [(place, ms) for place, ms in zip(places, values, strict=True) if ms is not None]
        trace = {"type": "scatter", "mode": "markers", "showlegend": False, "name": f"{name}, {words}"}
        drawn = {"x": [place for place, _ in known], "y": rounded(ms for _, ms in known)}
        traces += [{**trace, **drawn, "marker": {**symbol, "color": GREY, "line": {"width": 2}}}] if known else []
    return [{**shared, **trace} for trace in traces]


def _budgets(records: Sequence[Record]) -> list[tuple[float, str]]:
    highest = max(max(wall_p50(r) or 0.0, number_at(r.metrics, "wall_ms", "p99") or 0.0) for r in records)
    return [(1000 / fps, f"{fps} FPS") for fps in FRAME_RATES if 1000 / fps <= _IN_SIGHT * highest]
