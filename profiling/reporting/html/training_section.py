"""Training runs: the loss against eager's over the same steps, and what a step took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from profiling.reporting.facts import by_component, items_at, number_at
from profiling.reporting.html.figure import axis, cell_name, figure, rounded, scale
from profiling.reporting.html.material import Material
from profiling.reporting.html.section import Chart, Figure, Section, View
from profiling.results.records import Record


def training_section(material: Material) -> Section:
    """Return the loss and the time of the logged steps, and their tables."""
    groups = by_component(record for record in material.records if record.training)
    kinds = (
        ("loss", "Loss over steps", "loss", "Dotted: eager over the same steps and data."),
        ("step_ms", "Time of the logged steps", "time of a step, ms", "The first step may prepare what others reuse."),
    )
    charts = [
        Chart(key, title, [View(name, _figure(material, group, key, y)) for name, group in groups.items()], note)
        for key, title, y, note in kinds
        if groups
    ]
    return Section("training", "Training", charts=tuple(charts), tables=material.titled("Steps"))


def _figure(material: Material, group: Sequence[Record], key: str, title: str) -> Figure:
    data = []
    for record in group:
        logs = [("log", "solid", cell_name(record))]
        if key == "loss":
            logs.append(("eager_log", "dot", f"{cell_name(record)}: eager"))
        for log, dash, name in logs:
            line = {"color": material.colours[record.variant], "width": 1.5, "dash": dash}
            data.append(
                {"type": "scatter", "mode": "lines+markers", "name": name, "line": line, **_steps(record, log, key)}
            )
    values = [value for trace in data for value in trace["y"]]
    return figure([trace for trace in data if trace["x"]], axis("step"), axis(title, **scale(values)))


def _steps(record: Record, log: str, key: str) -> dict[str, Any]:
    found = [(number_at(item, "step"), number_at(item, key)) for item in items_at(record.training, log)]
    known = [(step, value) for step, value in found if step is not None and value is not None]
    return {"x": [int(step) for step, _ in known], "y": rounded(value for _, value in known)}
