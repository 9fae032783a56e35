"""Shape sweeps: total time by number of calls, with and without preparation, which pays off where lines cross."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from profiling.errors import printable
from profiling.report.answer import CANNOT_TELL
from profiling.report.charts import Chart, Figure, View, axis, figure, line
from profiling.report.doubts import marks_of
from profiling.report.format import Computed, Value, count_of
from profiling.report.page import Section
from profiling.report.run_data import RunData, cell_table, cell_words, first, itself
from profiling.report.table import Column
from profiling.results.explained import ShapeCompile
from profiling.results.judgement import by_component, can_be_ranked, claimed_speedup, correct_baseline, lost_in_calls
from profiling.results.record import Record

Read = Callable[[Record], Value | None]


def shape_sweep_section(data: RunData) -> Section:
    """Return what compiles at each new shape, the totals with and without preparation, and the memory held."""
    compiled = [(r, shape) for r in data.records for step in r.recipe or () for shape in step.shapes or ()]
    new_shapes = cell_table("Compiling shape after shape, in one process", _SHAPES, compiled, first, keys=3)
    about_shapes = ["Shape after shape: 0 graphs if code compiled for an earlier shape was used."] if compiled else []
    rows = [record for record in data.records if record.call_points]
    if not rows:
        return Section("sweep", "Compiling for new shapes", legend=about_shapes, tables=(new_shapes,))
    groups = by_component(rows)
    numbers = sorted({number for record in rows for number in record.call_points})
    totals = {built: [_total_column(number, built=built) for number in numbers] for built in (True, False)}
    compared = (
        Column[Record]("a call", lambda record: _call_ms(record), "ms", measured=True),
        Column[Record]("speedup", lambda record: _speedup(record, groups[record.component]), "ratio"),
        Column[Record]("pays after", lambda record: _pays(record, groups[record.component]), "count", unit="calls"),
        Column[Record]("conditions", marks_of, "marks", wrap=22),
    )
    legend = ["Total time: calls in a row with one wait at the end. Preparation: compiling, warm-up and capture."]
    points = [point for record in rows for point in record.call_points.values()]
    if not all(point.measured for point in points):
        legend.append("~: computed from the time of a call in the longest measured row of calls.")
    if any(record.point is not None and record.point.value == "all" for record in rows):
        legend.append("A range of values: all shapes prepared in one process, the largest one timed.")
    correct = by_component(record for record in rows if record.is_correct and record.prepare is not None)
    views = [View(component, _figure(data, group)) for component, group in correct.items()]
    note = "Hollow: computed from the time of a call. Failed and invalid cells are left out."
    legend += about_shapes
    tables = (
        new_shapes,
        cell_table("Total time with preparation", (*totals[True], *compared), rows, itself),
        cell_table("Total time without preparation", totals[False], rows, itself, depth="report"),
        cell_table("Memory held", _MEMORY, rows, itself, depth="report"),
    )
    chart = Chart("sweep", "Total time over calls, with preparation", views, note)
    return Section("sweep", "Calls in a row", legend=legend, tables=tables, charts=(chart,))


def total_seconds(record: Record, number: int, *, built: bool) -> Value | None:
    """Return the seconds of `number` calls in a row, with preparation if `built`; None where not known."""
    point, prepare = record.call_points.get(number), record.prepare
    if point is None or (built and prepare is None):
        return None
    seconds = point.seconds + (prepare.from_cold if built and prepare is not None else 0.0)
    computed = not point.measured or (built and prepare is not None and prepare.cold_s is not None)
    return Computed(seconds) if computed else seconds


def _total_column(number: int, *, built: bool) -> Column[Record]:
    return Column(f"{count_of(number, 'call')},", lambda r: total_seconds(r, number, built=built), "s", measured=True)


def _call_ms(record: Record) -> float | None:
    return 1e3 * record.metrics.calls.seconds_per_call if record.metrics.calls is not None else None


def _speedup(record: Record, group: Sequence[Record]) -> Value | None:
    baseline = correct_baseline(group)
    if baseline is None or baseline.cell == record.cell or not record.is_correct:
        return None
    if not _can_be_compared(record, baseline):
        return CANNOT_TELL
    eager, own = _call_ms(baseline), _call_ms(record)
    return eager / own if eager and own else None


def _can_be_compared(one: Record, other: Record) -> bool:
    """Return whether the totals of two records say more about them than about other processes."""
    disturbed = any((taken := lost_in_calls(record)) is not None and taken.disturbs for record in (one, other))
    return can_be_ranked(one, other) and not disturbed


def _pays(record: Record, group: Sequence[Record]) -> float | None:
    """Return after how many calls preparation has paid off; infinite where it never does."""
    baseline = correct_baseline(group)
    if baseline is None or baseline.cell == record.cell or not record.is_correct or record.speedup is None:
        return None
    if not _can_be_compared(record, baseline):
        return None
    if record.speedup.break_even_calls is not None:
        return record.speedup.break_even_calls
    known = record.prepare is not None and baseline.prepare is not None
    return math.inf if known and claimed_speedup(record, group) is not None else None


def _phase(kind: str) -> Read:
    def read(record: Record) -> float | None:
        phase = record.memory.phases.get("steady") if record.memory is not None else None
        return getattr(phase, kind, None)

    return read


def _graphs_held(record: Record) -> float | None:
    """Return how many CUDA graphs the variant holds: captured by itself, or by the compiler."""
    held = record.graphs.held if record.graphs is not None else None
    if held is not None or record.passes:
        return held
    return record.prepare.cudagraph_captures if record.prepare is not None else None


_Shape = tuple[Record, ShapeCompile]
_SHAPES = (
    Column[_Shape]("new shape", lambda row: printable(row[1].inputs), wrap=34),
    Column[_Shape]("first call", lambda row: row[1].seconds, "s"),
    Column[_Shape]("graphs", lambda row: row[1].graphs, "count"),
    Column[_Shape]("recompiles", lambda row: row[1].recompiles, "count"),
)

_MEMORY = (
    Column[Record]("allocated", _phase("allocated"), "MiB"),
    Column[Record]("reserved", _phase("reserved"), "MiB"),
    Column[Record]("peak held", lambda record: record.memory.peak_held if record.memory else None, "MiB"),
    Column[Record]("device used", _phase("device_used"), "MiB"),
    Column[Record]("host RSS peak", lambda record: record.memory.peak_host_rss if record.memory else None, "MiB"),
    Column[Record]("host RSS settled", _phase("host_rss"), "MiB"),
    Column[Record]("graphs held", _graphs_held, "count"),
)


def _figure(data: RunData, group: Sequence[Record]) -> Figure:
    traces = []
    for record in group:
        seconds = record.prepare.from_cold if record.prepare is not None else 0.0
        known = record.call_points
        symbols = ["circle" if point.measured else "circle-open" for point in known.values()]
        totals = [seconds + point.seconds for point in known.values()]
        trace = line(cell_words(record), list(known), totals, data.colours[record.variant], mode="lines+markers")
        traces.append({**trace, "marker": {"symbol": symbols, "size": 8}})
    decades = {"type": "log", "dtick": 1}
    return figure(traces, axis("calls in a row", **decades), axis("total time with preparation, s", **decades))
