"""Times of calls and training steps: the variants, how they were timed, and charts of medians and of all samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from profiling.errors import printable
from profiling.report.answer import CANNOT_TELL, PEAKS, VARIANTS, median_of, number_in, peak_bytes, speedup_of
from profiling.report.charts import (
    CUT_NOTE,
    RED,
    Chart,
    Figure,
    Trace,
    View,
    above,
    axis,
    bars,
    cut_bars,
    envelope,
    figure,
    frame_budgets,
    line,
    plain,
    points,
    points_each,
    ranks,
    series_scale,
    upper_end,
)
from profiling.report.doubts import limits_text, marks_of
from profiling.report.format import Value
from profiling.report.page import Section
from profiling.report.run_data import (
    RunData,
    Samples,
    cell_table,
    cell_words,
    first,
    itself,
    wrong_because,
)
from profiling.report.slow import slow_tables, summed_words
from profiling.report.starts import prepare_seconds
from profiling.report.table import Column
from profiling.results.judgement import baseline_name, by_component
from profiling.results.measured import FP32_EAGER, LatencyConditions, Summary
from profiling.results.record import Record
from profiling.results.stats import OUTLIER_MADS

#: Most components in one chart: with more, the bars are too thin to read.
_TOGETHER = 8
#: Calls of the drift table, counted from 1; the record holds all.
_DRIFT_CALLS = (1, 2, 10, 50, 100, 300, 1000)

Read = Callable[[Record], Value | None]
Place = Callable[[Record], str]


def latency_section(data: RunData) -> Section:
    """Return the tables of variants, timing, drift and other metrics, and the chart of medians."""
    rows = [record for record in data.timed if record.status != "skipped"]
    baselines = {baseline_name(data.groups[record.component]) for record in rows}
    # A sweep is about totals: the console leaves out the times of single calls.
    depth = "report" if any(record.call_points for record in rows) else "console"
    variants = cell_table(VARIANTS, _variants(data, baselines), rows, itself, depth=depth)
    timed = [record for record in rows if record.metrics.wall_ms is not None]
    timing = cell_table("How the times were taken", _TIMING, timed, itself, depth="report")
    drifts = [record for record in data.records if record.metrics.drift is not None]
    drift = cell_table("Error against eager by call", _DRIFT, drifts, itself, depth="report")
    slow = [(record, calls) for record in timed if (calls := record.metrics.slow_calls) is not None and calls.count]
    other = cell_table("Other metrics", _OTHER, list(_other(data.records)), first, keys=3)
    tables = (variants, timing, *slow_tables(slow, "call", "report"), drift, other)
    words = summed_words([calls for _, calls in slow], "call")
    lines = (printable(words),) if words else ()
    return Section("latency", "Latency", lines, _legend(rows), tables, (_medians(data),))


def distribution_section(data: RunData) -> Section:
    """Return the cumulative distributions of calls and frames, and the samples of calls over time."""
    calls = [Samples(record, np.array(wall.samples)) for record, wall in _walls(data.timed) if wall.samples]
    frames = [Samples(each.record, each.values[np.isfinite(each.values)]) for each in data.frame_times[0]]
    charts = [
        Chart(
            key,
            title,
            [View(name, _ecdf(data, group, x)) for name, group in _groups(series)],
            f"A line that ends below 1 has samples beyond the axis. {_thinned(series)}".rstrip(),
        )
        for key, title, x, series in (
            ("ecdf-calls", "Distribution of the wall time of a call", "wall time of a call, ms", calls),
            ("ecdf-frames", "Distribution of the frame time", "frame time, ms", frames),
        )
    ]
    note = (
        f"Crosses: outliers, further than {OUTLIER_MADS:g} median absolute deviations from the median; none is "
        f"removed. {CUT_NOTE}"
    )
    views = [View(name, _over_time(data, group)) for name, group in _groups(calls)]
    charts.append(Chart("samples", "Samples in the order in which they were taken", views, f"{note} {_thinned(calls)}"))
    return Section("distribution", "Distribution and samples", charts=charts, depth="page")


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
        Column("conditions", marks_of, "marks", wrap=22),
    )


def _speedup(record: Record, group: Sequence[Record]) -> Value | None:
    return speedup_of(record, group) if record.metrics.wall_ms is not None else None


def _pays_after(record: Record, group: Sequence[Record]) -> int | None:
    """Return the calls after which preparation has paid off; None where no speedup may be claimed."""
    if record.speedup is None or _speedup(record, group) in (None, CANNOT_TELL):
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


def _medians(data: RunData) -> Chart:
    groups = by_component(record for record in data.timed if record.wall_p50 is not None)
    views = [View(component, _bars(data, {component: group})) for component, group in groups.items()]
    if 1 < len(groups) <= _TOGETHER:
        views.insert(0, View("all components", _bars(data, groups)))
    cut = any(above(_marks_of(group), _top(group)) for group in (*groups.values(), sum(groups.values(), ())))
    note = (
        "Bars: median with its 95% interval. Diamonds: p99. Crosses: longest call. Thick grey lines: the roofline, "
        "where it is known. Dashed: budgets of calls that make one frame. Pale: failed or invalid; not compared."
    )
    return Chart("latency", "Wall time of a call by variant", views, f"{note} {CUT_NOTE}" if cut else note)


def _marks_of(records: Sequence[Record]) -> list[float]:
    return [ms for _, wall in _walls(records) for ms in (wall.p50, wall.tail[1], wall.max)]


def _top(records: Sequence[Record]) -> float:
    """Return the upper end of the axis of these records' bars; wrong times do not set it."""
    correct = [record for record in records if record.is_correct] or records
    return upper_end([wall.p50 for _, wall in _walls(correct)], _marks_of(correct))


def _bars(data: RunData, groups: Mapping[str, Sequence[Record]]) -> Figure:
    """Draw one component with a bar a variant, or several with a group of bars a component."""
    records = [record for group in groups.values() for record in group]
    top = _top(records)
    if len(groups) == 1:
        traces = [trace for record in records for trace in _bar(data, [record], cell_words, top)]
        title, modes = "variant", {"barmode": "overlay", "scattermode": "overlay"}
    else:
        variants = dict.fromkeys(record.variant for record in records)
        chosen = [[record for record in records if record.variant == variant] for variant in variants]
        traces = [trace for rows in chosen for trace in _bar(data, rows, lambda record: record.component, top)]
        title, modes = "component", {"barmode": "group", "scattermode": "group"}
        # A group holds its bars side by side; alone, a bar stands in the middle above its label.
        traces = [{**trace, "offsetgroup": trace["legendgroup"]} for trace in traces]
    budgets = [] if any(record.training is not None for record in records) else frame_budgets(top)
    return figure(
        traces, axis(title, type="category"), axis("wall time of a call, ms", range=[0, top]), budgets, **modes
    )


def _bar(data: RunData, records: Sequence[Record], place: Place, top: float) -> list[Trace]:
    """Return the bars of one variant's medians, and the marks of its p99, its longest call and its roofline."""
    name, walls = records[0].variant, [wall for _, wall in _walls(records)]
    places, medians = list(map(place, records)), [wall.p50 for wall in walls]
    drawn = bars(name, places, medians, data.colours[name], [wall.ci95 for wall in walls])
    tails = [(x, p99) for x, wall in zip(places, walls, strict=True) if (p99 := wall.percentile("p99")) is not None]
    drawn["marker"]["opacity"] = [1.0 if record.is_correct else 0.25 for record in records]
    traces = [
        drawn,
        points(f"{name}, p99", [x for x, _ in tails], [ms for _, ms in tails], "diamond-open", top=top),
        points(f"{name}, longest", places, [wall.max for wall in walls], "x-thin-open", top=top),
        *cut_bars(places, medians, top),
    ]
    least = [(place(r), r.roofline.roofline_ms) for r in records if r.roofline is not None and r.roofline.roofline_ms]
    if least:
        traces.append(
            points(f"{name}, roofline", [x for x, _ in least], [ms for _, ms in least], "line-ew-open", size=24)
        )
    shared = {"legendgroup": plain(name)}
    return [{**trace, **shared, **({"showlegend": False} if trace is not drawn else {})} for trace in traces]


def _walls(records: Sequence[Record]) -> list[tuple[Record, Summary]]:
    return [(record, record.metrics.wall_ms) for record in records if record.metrics.wall_ms is not None]


def _groups(series: Sequence[Samples]) -> list[tuple[str, list[Samples]]]:
    """Return (component, its series): what one view shows."""
    names = dict.fromkeys(each.record.component for each in series)
    return [(printable(name), [each for each in series if each.record.component == name]) for name in names]


def _thinned(series: Sequence[Samples]) -> str:
    """Return a note on thinned series; every series keeps its lowest and its highest value."""
    most = points_each(len(series))
    long = any(each.values.size > most for each in series)
    return f"Series of more than {most} samples are thinned to {most}; the lowest and highest stay." if long else ""


def _ecdf(data: RunData, group: Sequence[Samples], title: str) -> Figure:
    traces = []
    for each in group:
        ordered = np.sort(each.values)
        chosen = ranks(ordered.size, points_each(len(group)))
        traces.append(_line(data, each, ordered[chosen], (chosen + 1) / ordered.size))
        traces[-1]["line"]["shape"] = "hv"
    # The axis begins where the values do: their spread is what the chart is about.
    ends, top = series_scale([each.values for each in group])
    least = min(float(each.values.min()) for each in group)
    x = axis(title, **(ends if "type" in ends else {"range": [least - 0.02 * (top - least), top]}))
    return figure(traces, x, axis("share of samples at or below", range=[0, 1.02]))


def _over_time(data: RunData, group: Sequence[Samples]) -> Figure:
    traces, marks = [], []
    ends, top = series_scale([each.values for each in group])
    for each in group:
        chosen = envelope(each.values, points_each(len(group)))
        traces.append(_line(data, each, chosen + 1, each.values[chosen]))
        outliers = np.intersect1d(_outliers(each.values), chosen)
        if outliers.size:
            name = f"{cell_words(each.record)}, outliers"
            shared = {"legendgroup": plain(each.record.variant), "showlegend": False}
            marks.append(points(name, outliers + 1, each.values[outliers], "x-thin", RED, top=top, **shared))
            marks[-1]["marker"]["line"]["color"] = RED
    return figure([*traces, *marks], axis("sample, in order"), axis("wall time of a call, ms", **ends))


def _outliers(values: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return the indices of the samples that a record counts as outliers."""
    distance = np.abs(values - np.median(values))
    return np.flatnonzero(distance > OUTLIER_MADS * np.median(distance))


def _line(data: RunData, each: Samples, x: Any, y: Any) -> Trace:
    variant = each.record.variant
    return line(cell_words(each.record), x, y, data.colours[variant], legendgroup=plain(variant))
