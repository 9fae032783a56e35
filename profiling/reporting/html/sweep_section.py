"""Shape sweeps: total time over the number of calls; where the lines cross is where preparing pays."""

from __future__ import annotations

from collections.abc import Sequence

from profiling.reporting.facts import by_component, is_right
from profiling.reporting.html.figure import axis, cell_name, figure, rounded
from profiling.reporting.html.material import Material
from profiling.reporting.html.section import Chart, Figure, Section, View
from profiling.reporting.plot import total_points
from profiling.reporting.sweep import sweep_legend
from profiling.results.records import Record


def sweep_section(material: Material) -> Section:
    """Return the totals with preparation of each component and shape, and their tables."""
    rows = [record for record in material.records if is_right(record) and total_points(record)]
    views = [View(component, _figure(material, group)) for component, group in by_component(rows).items()]
    note = "Hollow: computed from the time of a call. What is failed or invalid is left out."
    chart = Chart("sweep", "Total time over calls, with preparation", views, note)
    tables = material.titled("Total time")
    return Section("sweep", "Calls in a row", sweep_legend(material.records), (chart,) if views else (), tables)


def _figure(material: Material, group: Sequence[Record]) -> Figure:
    data = []
    for record in group:
        points = total_points(record)
        look = {"symbol": ["circle" if measured else "circle-open" for _, _, measured in points], "size": 8}
        line = {"color": material.colours[record.variant], "width": 1.5}
        shown = {"x": [calls for calls, _, _ in points], "y": rounded(seconds for _, seconds, _ in points)}
        data.append({"type": "scatter", "mode": "lines+markers", "name": cell_name(record), "marker": look, **shown})
        data[-1] |= {"line": line}
    decades = {"type": "log", "dtick": 1}
    return figure(data, axis("calls in a row", **decades), axis("total time with preparation, s", **decades))
