"""What explains the times of calls: slow ones by cause, the user's metrics, training steps, a chart of the spread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from profiling.errors import printable
from profiling.report.charts import Chart, Row, Rows, Series, envelope, frame_budgets, palette, upper_end
from profiling.report.format import count_of, few, listed, significant
from profiling.report.page import Section
from profiling.report.run_data import RunData, cell_table, cell_words
from profiling.report.table import AnyTable, Column, columns
from profiling.results.loop import Realtime
from profiling.results.measured import SlowFrames, Summary, TrainingStepRow
from profiling.results.record import Record
from profiling.results.verdicts import by_component

#: Most single times that are drawn for a cell.
_DOTS = 60
_SLOW = (
    "Slow: above the median, or the steady one of a loop, by 20% and by 5 median absolute deviations. A cause is named "
    "where it took half of the time beyond the median or more; a slow call or frame may have several."
)

_Cause = tuple[Record, SlowFrames, str]


def latency_section(data: RunData) -> Section:
    """Return the tables of slow calls and other metrics, and the chart of the spread."""
    trained = [(record, each) for record in data.records if (each := record.training) is not None]
    logged = [(record, step, each.eager_losses.get(step.step)) for record, each in trained for step in each.log]
    slow = [(record, calls) for record in data.timed if (calls := record.metrics.slow_calls) is not None]
    tables = (
        slow_table(slow, "call"),
        cell_table("Other metrics", _OTHER, list(_other(data.records)), keys=3),
        cell_table("Logged steps of training", _LOGGED, logged, keys=3, depth="report"),
    )
    words = summed_words(slow, "call")
    lines = [printable(words)] if words else []
    return Section("latency", "Latency", lines, tables=tables, charts=(_spreads(data),), depth="report")


_LOGGED = (
    *columns(TrainingStepRow, "step", "loss"),
    Column[tuple[Record, TrainingStepRow, float | None]]("loss of eager", lambda row: row[2], "number"),
    *columns(TrainingStepRow, "step_ms", "data_ms"),
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
    groups = by_component(record for record in data.records if record.check is None and record.summary is not None)
    drawings = {component: _rows(group) for component, group in groups.items()}
    note = (
        "Line: from the shortest to the longest. Thick: 95% of the times. Dark: the median. Diamond: p99. "
        "Dots: single times, of many the lowest and the highest. Thick grey mark: the roofline. Dashed: frame budgets. "
        "▸: some lie beyond the axis. Pale: failed or invalid."
    )
    return Chart("latency", "Spread of the wall time of a call, or of a frame", drawings, note)


def _rows(group: Sequence[Record]) -> Rows:
    timed = [(record, times) for record in group if (times := record.summary) is not None]
    correct = [times for record, times in timed if record.is_correct] or [times for _, times in timed]
    end = upper_end([times.p50 for times in correct], [ms for times in correct for ms in (times.tail[1], times.max)])
    counts = {1 if record.frames_per_call is None else record.frames_per_call for record in group}
    frames = counts.pop() if len(counts) == 1 else 0
    has_budget = frames and all(record.training is None for record in group)  # a training step makes no frames
    levels = [(frames * ms, label) for ms, label in frame_budgets(end / frames)] if has_budget else []
    return Rows([_row(*each) for each in timed], end, levels)


def _row(record: Record, times: Summary) -> Row:
    samples = np.array(times.samples)
    drawn = replace(times, samples=tuple(samples[envelope(samples, _DOTS)].tolist()))
    roofline_ms = (record.roofline and record.roofline.roofline_ms) or None
    name, ms = times.tail
    words = f"{significant(times.p50)} ms, {name} {significant(ms)}"
    return Row(cell_words(record), words, spread=drawn, roofline_ms=roofline_ms, counts=record.is_correct)


def _kind(cause: str) -> str:
    """Return the cause without the id that tells one recompile from another."""
    return printable("recompile" if cause.startswith("recompile") else cause)


def summed_words(found: Sequence[tuple[Record, SlowFrames]], noun: str) -> str:
    """Return the time of all slow calls or frames of a run, and its sum by cause; empty where there are none."""
    total_ms: dict[str, float] = {}
    sections = [section for _, section in found]
    for section in sections:
        for cause, ms in section.cause_ms.items():
            total_ms[_kind(cause)] = total_ms.get(_kind(cause), 0.0) + ms
    number, whole_ms = sum(section.count for section in sections), sum(total_ms.values())
    if not number or not whole_ms:
        return ""
    parts = [f"{cause} {significant(ms, 3)} ms" for cause, ms in sorted(total_ms.items(), key=lambda item: -item[1])]
    slow = f"{count_of(number, f'slow {noun}')} of {few([record.name for record, each in found if each.count])}"
    return f"{slow} took {significant(whole_ms, 3)} ms beyond the usual: {listed(parts)}."


def slow_table(sections: Sequence[tuple[Record, SlowFrames]], noun: str) -> AnyTable:
    """Return the table of causes, whose times add up to those of the slow calls or frames."""
    causes = [
        (record, slow, cause)
        for record, slow in sections
        for cause in sorted({**slow.causes, **slow.cause_ms}, key=lambda cause: -slow.causes.get(cause, 0))
    ]
    by_cause = (
        Column[_Cause]("cause", lambda row: row[2]),
        Column[_Cause](f"{noun}s", lambda row: row[1].causes.get(row[2], 0), "count"),
        Column[_Cause](f"of slow {noun}s", lambda row: row[1].count, "count"),
        Column[_Cause]("time", lambda row: row[1].cause_ms.get(row[2]), "ms"),
        *columns(SlowFrames, "threshold_ms"),
    )
    return cell_table(f"Slow {noun}s by cause", by_cause, causes, (_SLOW,), 3, "report")


def slow_marks(loop: Realtime) -> list[Series]:
    """Mark each slow frame once for each kind of cause; hollow, so that one does not hide another."""
    by_cause: dict[str, list[tuple[float, float]]] = {}
    for frame in loop.slow.frames if loop.slow is not None else ():
        for cause in dict.fromkeys(map(_kind, frame.causes)):
            by_cause.setdefault(cause, []).append((frame.frame, frame.ms))
    colours = palette(by_cause)
    return [Series(f"slow: {printable(cause, 60)}", points, colours[cause]) for cause, points in by_cause.items()]
