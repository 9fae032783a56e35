"""Inside a call: where the time of the device goes by class, by kernel and by submodule, and where nothing runs."""

from __future__ import annotations

from profiling.reporting.html.inside_charts import module_views, split_views
from profiling.reporting.html.markdown_tables import tables_of
from profiling.reporting.html.material import Material
from profiling.reporting.html.section import Chart, Section
from profiling.reporting.inside import KERNELS, MODULES, inside_lines, inside_tables

#: Rows of kernels and of submodules that all cells may have together; a row is about a kilobyte.
_ROWS = 450


def inside_section(material: Material) -> Section:
    """Return the split of each cell's span, its submodules, and the tables; the traces are a section of their own."""
    traced = [record for record in material.records if record.inside]
    charts = (
        Chart(
            "inside-split",
            "Device time of a call by class, and idle",
            split_views(traced),
            "Red: the device has nothing to do, for the host has not handed over what comes next. Pale red: between "
            "kernels that were handed over already. Grey marks: the span from the first kernel to the end of the "
            "last; where kernels run side by side their bars reach beyond it.",
        ),
        Chart(
            "inside-modules",
            "Time by submodule",
            module_views(traced),
            "From the whole call on the left to its submodules on the right, as tall as their share; a click goes "
            "into one, and the bar on top comes back out.",
        ),
    )
    share = _ROWS // max(1, len(traced))
    tables = inside_tables(
        material.records, material.environment, kernels=max(KERNELS, share), modules=max(MODULES, share)
    )
    return Section(
        "inside",
        "Inside a call",
        inside_lines(material.records),
        tuple(chart for chart in charts if chart.views),
        tables_of(tables),
    )
