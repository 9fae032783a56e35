"""Shape sweeps: total time by number of calls with preparation, and what is compiled at each new shape."""

from __future__ import annotations

from profiling.report.cells import pays_after
from profiling.report.format import Marked, Value, count_of
from profiling.report.page import Section
from profiling.report.run_data import RunData, cell_table
from profiling.report.table import Column, columns
from profiling.results.explained import ShapeCompile
from profiling.results.record import Record
from profiling.results.verdicts import by_component


def shape_sweep_section(data: RunData) -> Section:
    """Return what compiles at each new shape, and the totals with preparation."""
    compiled = [(r, shape) for r in data.records for step in r.recipe or () for shape in step.shapes or ()]
    shapes = columns(ShapeCompile, "inputs", wrap=34), columns(ShapeCompile, "seconds", "graphs", "recompiles")
    new_shapes = cell_table("Compiling shape after shape, in one process", sum(shapes, ()), compiled, keys=3)
    about_shapes = ["Shape after shape: 0 graphs if code compiled for an earlier shape was used."] if compiled else []
    rows = [record for record in data.records if record.call_points]
    if not rows:
        return Section("sweep", "Compiling for new shapes", legend=about_shapes, tables=(new_shapes,))
    groups = by_component(rows)
    numbers = sorted({number for record in rows for number in record.call_points})
    totals = (
        *(
            Column[Record](f"{count_of(number, 'call')},", lambda record, n=number: total_seconds(record, n), "s")
            for number in numbers
        ),
        Column[Record]("a call", _call_ms, "ms"),
        Column[Record](
            "pays after", lambda record: pays_after(record, groups[record.component]), "count", unit="calls"
        ),
    )
    legend = ["Total time: calls in a row with one wait at the end. Preparation: compiling, warm-up and capture."]
    points = [point for record in rows for point in record.call_points.values()]
    if not all(point.measured for point in points):
        legend.append("~: computed from the time of a call in the longest measured row of calls.")
    if any(record.point is not None and record.point.value == "all" for record in rows):
        legend.append("A range of values: all shapes prepared in one process, the largest one timed.")
    legend += about_shapes
    tables = (new_shapes, cell_table("Total time with preparation", totals, rows))
    return Section("sweep", "Calls in a row", legend=legend, tables=tables)


def total_seconds(record: Record, number: int) -> Value | None:
    """Return the seconds of `number` calls in a row with preparation; None where not known."""
    point, prepare = record.call_points.get(number), record.prepare
    if point is None or prepare is None:
        return None
    seconds = point.seconds + prepare.from_cold
    return seconds if point.measured and prepare.cold_s is None else Marked("~", seconds)


def _call_ms(record: Record) -> float | None:
    return 1e3 * record.metrics.calls.seconds_per_call if record.metrics.calls is not None else None
