"""What explains the times of calls: slow calls, drift of the error, the user's metrics, and a chart of their spread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from profiling.errors import printable
from profiling.report.charts import Chart, Row, Rows, Spread, View, envelope, frame_budgets, upper_end
from profiling.report.format import significant
from profiling.report.page import Section
from profiling.report.run_data import RunData, cell_table, cell_words
from profiling.report.slow import slow_table, summed_words
from profiling.report.table import Column, columns
from profiling.results.measured import Summary
from profiling.results.record import Record
from profiling.results.verdicts import by_component, summary_of

#: Most single times that are drawn for a cell.
_DOTS = 60


def latency_section(data: RunData) -> Section:
    """Return the tables of slow calls, drift and other metrics, and the chart of the spread."""
    drifts = [record for record in data.records if record.metrics.drift is not None]
    slow = [(record, calls) for record in data.timed if (calls := record.metrics.slow_calls) is not None]
    tables = (
        slow_table(slow, "call"),
        cell_table("Error against eager, over calls in a row", _DRIFT, drifts, depth="report"),
        cell_table("Other metrics", _OTHER, list(_other(data.records)), keys=3),
    )
    words = summed_words([calls for _, calls in slow], "call")
    lines = [printable(words)] if words else []
    return Section("latency", "Latency", lines, tables=tables, charts=(_spreads(data),))


_DRIFT = (
    Column[Record]("calls", lambda record: len(record.metrics.drift.rel_l2) if record.metrics.drift else None, "count"),
    *columns(Record, "max", at="metrics.drift"),
)

_Other = tuple[Record, str, str | None, Any]
_OTHER = (
    Column[_Other]("metric", lambda row: row[1]),
    Column[_Other]("of", lambda row: row[2]),
    Column[_Other]("value", lambda row: row[3], "number"),
)


def _other(records: Sequence[Record]) -> Iterator[_Other]:
    """Yield the numbers of metrics that the report does not know."""
    for record in records:
        for name, content in record.metrics.extra.items():
            values = content if isinstance(content, Mapping) else {None: content}
            for key, value in values.items():
                if isinstance(value, int | float) and not isinstance(value, bool):
                    yield record, str(name), None if key is None else str(key), value


def _spreads(data: RunData) -> Chart:
    """Return the spread of the times of each call, and of each frame of a loop, around their median."""
    measured = [(record, times) for record in data.records if record.check is None and (times := summary_of(record))]
    groups = by_component(record for record, _ in measured)
    of = {record.cell: times for record, times in measured}
    views = [View(component, _rows(group, of)) for component, group in groups.items()]
    note = (
        "Line: from the shortest to the longest. Thick: 95% of the times. Dark: the median. Diamond: p99. "
        "Dots: single times, of many the lowest and the highest. Thick grey mark: the roofline. Dashed: frame budgets. "
        "▸: some lie beyond the axis. Pale: failed or invalid."
    )
    return Chart("latency", "Spread of the wall time of a call, or of a frame", views, note)


def _rows(group: Sequence[Record], of: Mapping[tuple[str, str], Summary]) -> Rows:
    correct = [of[record.cell] for record in group if record.is_correct] or [of[record.cell] for record in group]
    end = upper_end([times.p50 for times in correct], [ms for times in correct for ms in (times.tail[1], times.max)])
    counts = {record.frames_per_call or 1 for record in group}
    levels = []
    if len(counts) == 1 and all(record.training is None for record in group):  # a training step makes no frames
        (frames,) = counts
        levels = [(frames * ms, label) for ms, label in frame_budgets(end / frames)]
    return Rows([_row(record, of[record.cell]) for record in group], end, levels)


def _row(record: Record, times: Summary) -> Row:
    samples = np.array(times.samples)
    least = record.roofline.roofline_ms if record.roofline is not None else None
    spread = Spread(
        low=times.min,
        p50=times.p50,
        p95=times.p95,
        high=times.max,
        p99=times.percentile("p99"),
        least=least or None,
        samples=samples[envelope(samples, _DOTS)].tolist(),
    )
    name, ms = times.tail
    words = f"{significant(times.p50)} ms, {name} {significant(ms)}"
    return Row(cell_words(record), words, spread=spread, counts=record.is_correct)
