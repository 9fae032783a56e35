"""The table of cells: times, frame rate, memory, error, energy and preparation of each call, training step and loop.

And the conditions under which a cell was timed, as facts with a number. They explain its times and do not judge it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from profiling.errors import printable
from profiling.report.format import TIMES, Estimate, Marked, Value, estimate, percent, significant, times
from profiling.report.page import Section
from profiling.report.run_data import RunData, cell_table, wrong_because
from profiling.report.table import Column, Table, columns
from profiling.results import verdicts
from profiling.results.judge import NAMED_SHARE, Pair
from profiling.results.loop import Realtime
from profiling.results.measured import FP32_EAGER, Summary
from profiling.results.record import Record

UNDECIDED = "undecided"
_SUMMARY = attrgetter("summary")
CELLS_LEGEND = (
    "Times: a call with the wait for the device; in a loop a frame. FPS: frames per call / mean time; in a loop frames "
    "delivered a second. Peak: the most memory that PyTorch holds in calls after the warm-up, with what CUDA graphs "
    "reserve; on a CPU the resident memory of the process. rel. L2: relative L2 distance from an fp32 eager reference. "
    "Struck out: failed or invalid, and not compared."
)
_IN_DETAIL = (
    "Device: by CUDA events. Host: until the call returns. rel. L2 allowed: twice that of eager in this dtype, more "
    "where an output has few values, or what a recipe's tolerance says."
)
COLD = "Cold: the last-level cache was flushed before each sample."
_LOOPS = (
    "Late: frames that miss their deadline. Underruns, N: frames that a player at the target rate misses if it starts "
    "with N frames in its buffer."
)
_ENERGY = (
    "Energy: of the whole GPU, without the host, over windows of frames that follow each other, each waited for, with "
    "95% intervals over the windows. Idle: power of the GPU before, while nothing ran. Above idle: without that power; "
    "its interval does not contain the error of the idle power."
)


def cells_table(records: Sequence[Record], groups: Mapping[str, Sequence[Record]]) -> Table[Record]:
    """Return the table of the records that were timed or compared with a reference; `groups`: all, by component."""
    rows = _shown(records)
    doubts = (  # first: the others may be cut off
        Column[Record]("status", lambda record: wrong_because(record) or None),
        Column[Record]("speedup vs baseline", lambda record: speedup_of(record, groups[record.component]), "ratio"),
        Column[Record]("conditions", conditions_text, wrap=22),
    )
    shown = (
        *columns(Summary, "mean", "std", "min", "max", of=_SUMMARY),
        Column[Record]("FPS", _fps, "fps"),
        Column[Record]("peak", lambda record: record.peak_memory[1] if record.peak_memory else None, "MiB"),
        Column[Record]("rel. L2", lambda record: _judged(record)[0], "error"),
        Column[Record]("prepare", prepare_seconds, "s"),
    )
    details = (
        *columns(Summary, "p50", of=_SUMMARY),
        Column[Record]("p99", lambda record: p99_of(record.summary), "ms"),
        Column[Record]("pays after", lambda r: pays_after(r, groups[r.component]), "count", unit="calls"),
    )
    doubts, details = ([replace(each, depth="report") for each in group] for group in (doubts, details))
    return cell_table("Cells", (*doubts, *shown, *details), rows)


def cells_section(data: RunData) -> Section:
    """Return what else is known of each cell: samples, error, clocks, memory, energy, frames of a loop, network."""
    rows = _shown(data.records)
    loops = [record.realtime for record in rows if record.realtime is not None]
    shown = (
        *columns(Summary, "n", of=_SUMMARY),
        *columns(Record, "device_ms.p50", "host_ms.p50", at="metrics"),
        Column[Record]("clocks limited by", _limits_text),
        Column[Record]("rel. L2 allowed", lambda record: _judged(record)[1], "error"),
        Column[Record]("against", lambda record: _judged(record)[2]),
        *columns(Record, "graph_pool", "prepare_peak_allocated", at="memory"),
        *columns(Record, "joules_per_frame", "above_idle_per_frame", "watts", "idle_w", at="energy"),
        *columns(Record, "metrics.drift.max"),
        *_loop_columns(loops),
        *columns(Record, "parameters", "weights"),
        Column[Record]("dtype", _dtype),
    )
    energy = any(record.energy is not None and record.energy.windows for record in rows)
    legend = [_IN_DETAIL, *([_LOOPS] if loops else []), *([_ENERGY] if energy else [])] if rows else []
    table = cell_table("Cells in detail", shown, rows)
    return Section("details", "Cells in detail", legend=legend, tables=(table,), depth="report")


def _shown(records: Sequence[Record]) -> list[Record]:
    return [r for r in records if r.status != "skipped" and (r.summary is not None or r.parity is not None)]


def _loop_columns(loops: Sequence[Realtime]) -> tuple[Column[Record], ...]:
    sources = dict.fromkeys(source for loop in loops for source in loop.input_age_ms)
    titled = {f"underruns.{n}": f"underruns, {n}" for n in range(4)}
    titled |= {f"input_age_ms.{source}.p50": f"age of {source}" for source in sources}
    renamed = zip(columns(Record, *titled, at="realtime"), titled.values(), strict=True)

    def settings(record: Record) -> str | None:
        work = record.realtime.work if record.realtime is not None else {}
        return ", ".join(f"{name} {value}" for name, value in work.items() if value is not None) or None

    return (
        *columns(Record, "late", "held_ms", "sustained_fps", "audio_rtf", at="realtime"),
        *columns(Record, "latency_ms.p50", at="realtime"),
        Column("latency p99", lambda record: p99_of(record.realtime and record.realtime.latency_ms), "ms"),
        *(replace(column, title=title) for column, title in renamed),
        *columns(Record, "steady.from_frame", at="realtime"),
        *columns(Record, "frames", "warmup_frames", "frames_per_tick", "schedule", "pace", "deliver", at="realtime"),
        Column("settings", settings, wrap=40),
    )


def p99_of(summary: Summary | None) -> Value | None:
    """Return the 99th percentile in ms, of few samples the longest in its place."""
    if summary is None:
        return None
    name, ms = summary.tail
    return Marked("max ", ms) if name == "max" else ms


def median_of(record: Record) -> Estimate | float | None:
    """Return the median wall time of a call, or frame time of a loop, in milliseconds with its interval."""
    return estimate(record.median_ms, verdicts.interval_of(record))


#: An undecided ratio whose interval spans more than this factor is shown as undecided alone.
_SAYS_NOTHING = 100.0


def ratio_value(pair: Pair | None) -> Value | None:
    """Return a ratio with its interval, beside other processes what it is at least, or between; None without one."""
    if pair is None:
        return None
    interval, is_open = pair.interval(), pair.answer() == UNDECIDED
    if interval is None or (is_open and interval[1] > _SAYS_NOTHING * interval[0]):
        return UNDECIDED
    if pair.taken > NAMED_SHARE:
        if interval[0] > 1:
            return f"≥ {times(interval[0])}"
        if interval[1] < 1:
            return f"≤ {times(interval[1])}"
        if is_open:
            return f"{significant(interval[0], 2)}-{significant(interval[1], 2)}{TIMES}"
    return estimate(pair.ratio, interval)


def speedup_of(record: Record, group: Sequence[Record]) -> Value | None:
    """Return the speedup over the baseline of `group`, 1 for the baseline; None for loops, and without a baseline."""
    if record.is_realtime or record.median_ms is None:
        return None
    if record is verdicts.correct_baseline(group):
        return 1.0
    return ratio_value(verdicts.speedup(record, group))


def pays_after(record: Record, group: Sequence[Record]) -> float | None:
    """Return after how many calls preparation has paid off; infinite where it never does, None where not known."""
    baseline = verdicts.correct_baseline(group)
    if baseline is None or baseline.cell == record.cell or not record.is_correct or record.speedup is None:
        return None
    prepared = [each.prepare for each in (record, baseline) if each.prepare is not None]
    answer, known = verdicts.answer_on(record, group), len(prepared) == 2
    if any(each.is_cold_unknown for each in prepared):
        return None
    if answer == "faster":
        return record.speedup.break_even_calls
    return math.inf if known and answer in ("same", "slower") else None


def prepare_seconds(record: Record) -> Value | None:
    """Return the seconds of preparing from an empty cache; marked if they are computed, or measured beside others.

    Those of a warm start are called so where it is not known what a cold one takes (`compile_cache=shared`).
    """
    prepare = record.prepare
    if prepare is None:
        return None
    if prepare.is_cold_unknown:
        return Marked("warm ", prepare.seconds)
    return Marked("~", prepare.from_cold) if prepare.beside or prepare.is_warm else prepare.seconds


def _fps(record: Record) -> float | None:
    if record.realtime is not None:
        return record.realtime.wall_fps
    return record.metrics.fps.mean if record.metrics.fps is not None else None


def _judged(record: Record) -> tuple[float | None, float | None, str | None]:
    """Return the judged error, its limit, and what it refers to unless that is fp32 eager, or eager's trained weights.

    The losses are judged of a training that is too chaotic for its weights.
    """
    parity = record.parity
    if parity is None:
        return None, None, None
    if parity.weights_judged is False:
        return parity.loss_error, parity.loss_tolerance, "eager's losses"
    usual = record.training or parity.reference == FP32_EAGER
    return parity.rel_l2, parity.tolerance, None if usual else parity.reference


def _dtype(record: Record) -> str | None:
    """Return the dtypes that the record's calls compute in: those of the weights, and that of autocast."""
    weights = " and ".join(record.parameter_dtypes) or record.dtype
    return f"{weights} under autocast {record.dtype}" if record.cast == "autocast" else weights


def conditions_of(record: Record) -> list[str]:
    """Return the conditions of one cell, those first that matter most."""
    others = (("", verdicts.taken(record.conditions)), ("calls in a row: ", verdicts.taken(record.metrics.calls)))
    found = [f"{of}{each.words}" for of, each in others if each is not None and each.is_named]
    found += drift_words(record)
    if by_call := record.metrics.by_call_ms:
        times = ", ".join(f"{name} {significant(ms, 3)}" for name, ms in by_call.items())
        found.append(f"after a reset of the state, calls take {times} ms")
    latency = record.metrics.latency
    if latency is not None and not latency.settled:
        found.append(f"the warm-up ended at its limit, after {significant(latency.warmup_seconds, 2)} s")
    return found


def drift_words(record: Record) -> list[str]:
    """Return how the times of a cell changed while it was timed; nothing where no change can be claimed."""
    drift = verdicts.drift_of(record)
    return [] if drift is None else [f"drifting: {significant(drift.begin, 3)} → {significant(drift.end, 3)} ms"]


def conditions_text(record: Record) -> str | None:
    """Return the conditions of a cell for a table; None where there is none."""
    return "; ".join(conditions_of(record)) or None


def _limits_text(record: Record) -> str | None:
    """Return why the GPU lowered its clocks during the timing, each reason with its share of the time if known."""
    shares = (record.conditions and record.conditions.limited_share) or {}
    return ", ".join(f"{printable(name)} {percent(share)}" for name, share in shares.items()) or None
