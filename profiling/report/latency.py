"""Times of calls and training steps: the variants, how they were timed, and a chart of their spread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from profiling.errors import printable
from profiling.report.answer import PEAKS, VARIANTS, median_of, number_in, peak_bytes, speedup_of
from profiling.report.charts import Chart, Row, Rows, Spread, View, envelope, frame_budgets, upper_end
from profiling.report.conditions import conditions_text, limits_text
from profiling.report.format import Value, significant
from profiling.report.page import Section
from profiling.report.run_data import (
    RunData,
    cell_table,
    cell_words,
    wrong_because,
)
from profiling.report.slow import slow_tables, summed_words
from profiling.report.starts import prepare_seconds
from profiling.report.table import Column
from profiling.results.measured import FP32_EAGER, LatencyConditions, Summary
from profiling.results.record import Record
from profiling.results.verdicts import answer_on, baseline_name, by_component

#: Most single times that are drawn for a cell.
_DOTS = 60
#: Calls of the drift table, counted from 1; the record holds all.
_DRIFT_CALLS = (1, 2, 10, 50, 100, 300, 1000)

Read = Callable[[Record], Value | None]


def latency_section(data: RunData) -> Section:
    """Return the tables of variants, timing, drift and other metrics, and the chart of their spread."""
    rows = [record for record in data.timed if record.status != "skipped"]
    baselines = {baseline_name(data.groups[record.component]) for record in rows}
    # A sweep is about totals: the console leaves out the times of single calls.
    depth = "report" if any(record.call_points for record in rows) else "console"
    variants = cell_table(VARIANTS, _variants(data, baselines), rows, depth=depth)
    timed = [record for record in rows if record.metrics.wall_ms is not None]
    timing = cell_table("How the times were taken", _TIMING, timed, depth="report")
    drifts = [record for record in data.records if record.metrics.drift is not None]
    drift = cell_table("Error against eager by call", _DRIFT, drifts, depth="report")
    slow = [(record, calls) for record in timed if (calls := record.metrics.slow_calls) is not None and calls.count]
    other = cell_table("Other metrics", _OTHER, list(_other(data.records)), keys=3)
    tables = (variants, timing, *slow_tables(slow, "call", "report"), drift, other)
    words = summed_words([calls for _, calls in slow], "call")
    lines = (printable(words),) if words else ()
    return Section("latency", "Latency", lines, _legend(rows), tables, (_spreads(data),))


def _variants(data: RunData, baselines: set[str]) -> tuple[Column[Record], ...]:
    against = f"speedup vs {baselines.pop()}" if len(baselines) == 1 else "speedup vs its baseline"
    return (
        Column("status", lambda record: wrong_because(record) or None),
        _clock("wall_ms", "p50", "p50"),
        _clock("wall_ms", "p99", "p99"),
        Column("FPS", lambda record: record.metrics.fps.mean if record.metrics.fps else None, "fps", measured=True),
        Column(against, lambda record: _speedup(record, data.groups[record.component]), "ratio"),
        *COST_COLUMNS,
        Column(
            "pays after",
            lambda record: _pays_after(record, data.groups[record.component]),
            "count",
            unit="calls",
            depth="report",
        ),
        Column("conditions", conditions_text, wrap=22),
    )


def _speedup(record: Record, group: Sequence[Record]) -> Value | None:
    return speedup_of(record, group) if record.metrics.wall_ms is not None else None


def _pays_after(record: Record, group: Sequence[Record]) -> int | None:
    """Return the calls after which preparation has paid off; None where no speedup may be claimed."""
    if record.speedup is None or answer_on(record, group) != "faster":
        return None
    return record.speedup.break_even_calls


def _clock(clock: str, key: str, title: str) -> Column[Record]:
    def read(record: Record) -> Value | None:
        return number_in(getattr(record.metrics, clock), key)

    return Column(title, read, "ms", measured=True)


def _peak(kind: str) -> Read:
    return lambda record: peak_bytes(record, kind)


def _error(record: Record) -> float | None:
    """Return the judged error: relative L2, or the loss error of a training too chaotic to judge its weights."""
    parity = record.parity
    if parity is None:
        return None
    return parity.loss_error if parity.weights_judged is False else parity.rel_l2


def _reference(record: Record) -> str | None:
    """Return the reference of a forward pass or a loop where it is not the module in float32."""
    parity = record.parity
    return None if parity is None or record.training or parity.reference == FP32_EAGER else parity.reference


def _tolerance(record: Record) -> float | None:
    parity = record.parity
    if parity is None:
        return None
    return parity.loss_tolerance if parity.weights_judged is False else parity.tolerance


def _of_parity(field: str) -> Read:
    return lambda record: getattr(record.parity, field) if record.parity is not None else None


def _angle(record: Record) -> float | None:
    parity = record.parity
    return None if parity is None or parity.cosine is None else max(0.0, 1 - parity.cosine)


#: Costs of a variant besides its time: memory, preparation, accuracy.
COST_COLUMNS = (
    Column[Record]("rel. L2 error", _error, "error"),
    Column[Record]("against", _reference),
    *(Column[Record](kind, _peak(kind), "MiB") for kind in PEAKS),
    Column[Record]("prepare", prepare_seconds, "s"),
    Column[Record](
        "warm-up inputs", lambda record: record.prepare.warmup_inputs_s if record.prepare else None, "s", depth="report"
    ),
    Column[Record]("allowed error", _tolerance, "error", depth="report"),
    Column[Record]("max. abs. error", _of_parity("max_abs"), "error", depth="report"),
    Column[Record]("PSNR", _of_parity("psnr_db"), "number", unit="dB", depth="report"),
    Column[Record]("SNR", _of_parity("snr_db"), "number", unit="dB", depth="report"),
    Column[Record]("1 − cosine", _angle, "error", depth="report"),
    Column[Record](
        "judged by",
        lambda record: "losses" if record.parity and record.parity.weights_judged is False else None,
        depth="report",
    ),
    Column[Record](
        "frames/call",
        lambda record: record.frames_per_call if record.frames_per_call != 1 else None,
        "count",
        depth="report",
    ),
)


def _conditions(read: Callable[[LatencyConditions], Value | None]) -> Read:
    return lambda record: read(record.metrics.latency) if record.metrics.latency else None


def _wall(read: Callable[[Summary], Value | None]) -> Read:
    return lambda record: read(record.metrics.wall_ms) if record.metrics.wall_ms else None


_TIMING = (
    Column[Record]("samples", _wall(lambda wall: wall.n), "count"),
    Column[Record]("stopped by", _wall(lambda wall: wall.stopped_by)),
    Column[Record]("outliers (kept)", _wall(lambda wall: wall.outliers), "count"),
    *(_clock("wall_ms", key, key) for key in ("mean", "std", "min")),
    Column[Record]("p50", median_of, "ms", measured=True),
    *(_clock("wall_ms", key, key) for key in ("p90", "p95", "max")),
    *(_clock("device_ms", key, f"GPU {key}") for key in ("p50", "p99")),
    _clock("host_ms", "p50", "host p50"),
    Column[Record]("warm-up", _conditions(lambda latency: latency.warmup_iterations), "count", unit="calls"),
    Column[Record]("warm-up", _conditions(lambda latency: latency.warmup_seconds), "s"),
    Column[Record]("settled", _conditions(lambda latency: latency.settled), "flag"),
    Column[Record]("caches", _conditions(lambda latency: "cold" if latency.cold else "hot")),
    Column[Record]("interrupted", _conditions(lambda latency: latency.descheduled), "count", unit="times"),
    Column[Record]("waited for a CPU", _conditions(lambda latency: latency.run_queue_wait_ms), "ms"),
    Column[Record]("lowest SM clock", _conditions(lambda latency: latency.sm_clock_min_mhz), "count", unit="MHz"),
    Column[Record]("median SM clock", _conditions(lambda latency: latency.sm_clock_median_mhz), "count", unit="MHz"),
    Column[Record]("highest SM clock", _conditions(lambda latency: latency.sm_clock_max_mhz), "count", unit="MHz"),
    Column[Record]("clocks limited by", limits_text),
)


def _drift(call: int) -> Read:
    def read(record: Record) -> float | None:
        errors = record.metrics.drift.rel_l2 if record.metrics.drift else ()
        return errors[call - 1] if call <= len(errors) else None

    return read


_DRIFT = (
    *(Column[Record](f"call {call}", _drift(call), "error") for call in _DRIFT_CALLS),
    Column[Record]("worst", lambda record: record.metrics.drift.max if record.metrics.drift else None, "error"),
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


def _legend(rows: Sequence[Record]) -> tuple[str, ...]:
    """Return the legend: definitions of the numbers in the tables."""
    if not rows:
        return ()
    rounds = max(len(record.rounds or ()) for record in rows)
    drift = f"including drift between {rounds} rounds" if rounds > 1 else "which does not cover drift between cells"
    if any(record.turns is not None for record in rows):
        drift = "that of a speedup by windows in which the variants took turns"
    lines = [f"Wall clock: call plus wait. FPS = frames per call / mean wall time. Brackets: 95% interval, {drift}."]
    if any(record.scale == "tiny" for record in rows):
        lines.append("Scale tiny: small networks, whose times say nothing about the full ones.")
    if any(record.memory is not None and record.memory.peak_held is not None for record in rows):
        lines.append("Held: allocated, plus free memory in pools of CUDA graphs, which nothing else can use.")
    lines.append(
        "Error: relative L2 distance from an fp32 eager reference; allowed: twice that of eager in this dtype."
    )
    if any(wrong_because(record) and record.wall_p50 is not None for record in rows):
        lines.append("Struck out: failed or invalid; these times are not compared.")
    if any(record.metrics.slow_calls is not None and record.metrics.slow_calls.count for record in rows):
        lines.append(
            "Slow: above the median by 20% and by 5 median absolute deviations. A cause is named where it took half of "
            "the time beyond the median or more; all causes and what is not attributed add up to that time."
        )
    if any(record.metrics.latency is not None and record.metrics.latency.cold for record in rows):
        lines.append("Cold: the last-level cache was flushed before each sample.")
    return tuple(lines)


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
    return Chart("latency", "Spread of the wall time of a call, or of a frame", views, note, together=True)


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
