"""Times of calls and training steps: the variants, their slow calls, and a chart of their spread."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from profiling.errors import printable
from profiling.report.answer import PEAKS, VARIANTS, number_in, peak_bytes, speedup_of
from profiling.report.charts import Chart, Row, Rows, Spread, View, envelope, frame_budgets, upper_end
from profiling.report.conditions import conditions_text, limits_text
from profiling.report.format import Value, significant
from profiling.report.page import Section
from profiling.report.run_data import RunData, cell_table, cell_words, wrong_because
from profiling.report.slow import slow_table, summed_words
from profiling.report.starts import prepare_seconds
from profiling.report.table import Column, columns
from profiling.results.measured import FP32_EAGER, Summary
from profiling.results.record import Record
from profiling.results.verdicts import answer_on, baseline_name, by_component, correct_baseline

#: Most single times that are drawn for a cell.
_DOTS = 60
_LEGEND = (
    "Wall clock: call plus wait. FPS = frames per call / mean wall time. Device: by CUDA events. Host: until the call "
    "returns. Error: relative L2 distance from an fp32 eager reference; allowed: twice that of eager in this dtype. "
    "Held: allocated, plus free memory in pools of CUDA graphs, which nothing else can use. Struck out: failed or "
    "invalid; these times are not compared."
)
_COLD = "Cold: the last-level cache was flushed before each sample."


def latency_section(data: RunData) -> Section:
    """Return the tables of variants, slow calls, drift and other metrics, and the chart of their spread."""
    rows = [record for record in data.timed if record.status != "skipped"]
    baselines = {baseline_name(data.groups[record.component]) for record in rows}
    drifts = [record for record in data.records if record.metrics.drift is not None]
    slow = [(record, calls) for record in rows if (calls := record.metrics.slow_calls) is not None and calls.count]
    tables = (
        cell_table(VARIANTS, _variants(data, baselines), rows),
        slow_table(slow, "call"),
        cell_table("Error against eager, over calls in a row", _DRIFT, drifts, depth="report"),
        cell_table("Other metrics", _OTHER, list(_other(data.records)), keys=3),
    )
    words = summed_words([calls for _, calls in slow], "call")
    is_cold = any(record.metrics.latency is not None and record.metrics.latency.cold for record in rows)
    legend = [_LEGEND, *([_COLD] if is_cold else [])]
    return Section("latency", "Latency", [printable(words)] if words else [], legend, tables, (_spreads(data),))


def _variants(data: RunData, baselines: set[str]) -> tuple[Column[Record], ...]:
    against = f"speedup vs {baselines.pop()}" if len(baselines) == 1 else "speedup vs its baseline"

    def pays(record: Record) -> float | None:
        return pays_after(record, data.groups[record.component])

    def speedup(record: Record) -> Value | None:
        return speedup_of(record, data.groups[record.component]) if record.metrics.wall_ms is not None else None

    return (
        Column("status", lambda record: wrong_because(record) or None),
        _clock("wall_ms", "p50", "p50"),
        _clock("wall_ms", "p99", "p99"),
        Column("FPS", lambda record: record.metrics.fps.mean if record.metrics.fps else None, "fps", measured=True),
        Column(against, speedup, "ratio"),
        Column("rel. L2 error", lambda record: _judged(record)[0], "error"),
        Column("allowed error", lambda record: _judged(record)[1], "error", depth="report"),
        Column("against", _reference),
        *(Column[Record](kind, partial(peak_bytes, kind=kind), "MiB") for kind in PEAKS),
        Column("prepare", prepare_seconds, "s"),
        Column("pays after", pays, "count", unit="calls", depth="report"),
        Column("conditions", conditions_text, wrap=22),
        Column("samples", lambda row: row.metrics.wall_ms.n if row.metrics.wall_ms else None, "count", depth="report"),
        *columns(Record, "device_ms.p50", "host_ms.p50", at="metrics", depth="report"),
        Column("clocks limited by", limits_text, depth="report"),
    )


def pays_after(record: Record, group: Sequence[Record]) -> float | None:
    """Return after how many calls preparation has paid off; infinite where it never does, None where not known."""
    baseline = correct_baseline(group)
    if baseline is None or baseline.cell == record.cell or not record.is_correct or record.speedup is None:
        return None
    answer, known = answer_on(record, group), record.prepare is not None and baseline.prepare is not None
    if answer == "faster":
        return record.speedup.break_even_calls
    return math.inf if known and answer in ("same", "slower") else None


def _clock(clock: str, key: str, title: str) -> Column[Record]:
    return Column(title, lambda record: number_in(getattr(record.metrics, clock), key), "ms", measured=True)


def _judged(record: Record) -> tuple[float | None, float | None]:
    """Return the judged error and its limit: of outputs, or of the losses of a training too chaotic for its weights."""
    parity = record.parity
    if parity is None:
        return None, None
    of_losses = parity.weights_judged is False
    return (parity.loss_error, parity.loss_tolerance) if of_losses else (parity.rel_l2, parity.tolerance)


def _reference(record: Record) -> str | None:
    """Return what the error refers to where it is not fp32 eager, or eager's weights after a training."""
    parity = record.parity
    if parity is not None and parity.weights_judged is False:
        return "eager's losses"
    return None if parity is None or record.training or parity.reference == FP32_EAGER else parity.reference


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
    measured = [(record, times) for record in data.records if record.check is None and (times := _times(record))]
    groups = by_component(record for record, _ in measured)
    of = {record.cell: times for record, times in measured}
    views = [View(component, _rows(group, of)) for component, group in groups.items()]
    note = (
        "Line: from the shortest to the longest. Thick: 95% of the times. Dark: the median. Diamond: p99. "
        "Dots: single times, of many the lowest and the highest. Thick grey mark: the roofline. Dashed: frame budgets. "
        "▸: some lie beyond the axis. Pale: failed or invalid."
    )
    return Chart("latency", "Spread of the wall time of a call, or of a frame", views, note)


def _times(record: Record) -> Summary | None:
    return record.realtime.frame_ms if record.realtime is not None else record.metrics.wall_ms


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
