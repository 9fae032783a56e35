"""Memory by phase: one kind at a time, for one number called memory says nothing."""

from __future__ import annotations

from collections.abc import Sequence

from profiling.reporting.detail_tables import MEMORY_KINDS, memory_phases
from profiling.reporting.facts import by_component, number_at
from profiling.reporting.format import MIB
from profiling.reporting.html.figure import axis, cell_name, figure, plain, rounded
from profiling.reporting.html.material import Material
from profiling.reporting.html.section import Chart, Figure, Section, View
from profiling.results.records import Record


def memory_section(material: Material) -> Section:
    """Return a view for each component and kind of memory, and the tables of memory."""
    views = [
        View(f"{component}: {words.removesuffix(' MiB')}", drawn)
        for component, group in by_component(material.records).items()
        for kind, words in MEMORY_KINDS
        if (drawn := _figure(material, group, kind, words))
    ]
    chart = Chart("memory", "Memory by phase", views, "A phase in which a kind was not measured has no bar.")
    return Section("memory", "Memory", charts=(chart,) if views else (), tables=material.titled("Memory"))


def _figure(material: Material, group: Sequence[Record], kind: str, words: str) -> Figure | None:
    data = []
    for record in group:
        sizes = {phase: number_at(found, kind) for phase, found in memory_phases(record).items()}
        known = {phase: size / MIB for phase, size in sizes.items() if size is not None}
        if known:
            look = {"color": material.colours[record.variant]}
            bars = {"x": [plain(phase) for phase in known], "y": rounded(known.values())}
            data.append({"type": "bar", "name": cell_name(record), "marker": look, **bars})
    if len({phase for trace in data for phase in trace["x"]}) < 2:
        return None  # the table says as much as one lonely bar
    return figure(data, axis("phase", type="category"), axis(words.replace(" MiB", ", MiB"), rangemode="tozero"))
