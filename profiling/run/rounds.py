"""Merges the rounds of a cell into one record, and compares it with the baseline."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from msgspec.structs import replace

from profiling.results.judge import Cell, compare
from profiling.results.measured import (
    Deadline,
    FrameRate,
    LatencyConditions,
    Metrics,
    Round,
    RoundPrepare,
    RoundSummary,
    SlowFrames,
    Speedup,
    Summary,
)
from profiling.results.record import BASELINE, Record
from profiling.results.stats import summarize
from profiling.results.verdicts import interval_of, placements_of, spread_of

CLOCKS = ("wall_ms", "device_ms", "host_ms")


def rounds_done(record: Record) -> int:
    """Return the number of rounds in `record`; it is 1 for a cell that is not repeated."""
    return len(record.rounds) if record.rounds else 1


def with_round(before: Record | None, new: Record, number: int, total: int) -> Record:
    """Return the cell's record after round `number` of `total`; `new` is the record of that round alone.

    Samples and conditions of the timed window are merged over all rounds; every other section is from the newest round.
    A round that is not ok replaces the cell's record.
    """
    if new.status != "ok":
        return new.with_status(new.status, f"round {number} of {total}: {new.reason}")
    if before is None:
        return replace(new, rounds=(_round(new),))
    merged = replace(
        new,
        metrics=_merged_metrics(before.metrics, new.metrics, number),
        rounds=(*(before.rounds or ()), _round(new)),
        notes=tuple(dict.fromkeys((*before.notes, *new.notes))),
    )
    wall = merged.metrics.wall_ms
    if wall is None:
        return merged
    return replace(merged, metrics=replace(merged.metrics, wall_ms=replace(wall, ci95=interval_of(merged))))


def with_speedup(record: Record, baseline: Record | None) -> Record:
    """Add the speedup, the wall time of the baseline over that of `record`, if both are ok and timed above 0."""
    if record.variant == BASELINE or baseline is None or baseline.status != "ok" or record.status != "ok":
        return record
    one, other = (placements_of(each) for each in (baseline, record))
    if not one or not other or record.is_realtime:
        return record
    pair = compare(Cell(one, spread_of(baseline)), Cell(other, spread_of(record)))
    calls = break_even_calls(record, baseline)
    ratio = Speedup(vs=BASELINE, wall=pair.ratio, ci95=pair.interval(), break_even_calls=calls)
    return replace(record, speedup=ratio)


def break_even_calls(record: Record, baseline: Record) -> int | None:
    """Return the number of calls after which the variant's longer preparation has paid off; None if it never does.

    A call takes the time of calls in a row if that was measured, else the median wall time.
    """
    if record.prepare is None or baseline.prepare is None:
        return None
    call_s, baseline_call_s = _call_seconds(record), _call_seconds(baseline)
    if call_s is None or baseline_call_s is None or call_s >= baseline_call_s:
        return None
    return max(0, math.ceil((record.prepare.from_cold - baseline.prepare.from_cold) / (baseline_call_s - call_s)))


def _call_seconds(record: Record) -> float | None:
    if record.metrics.calls is not None:
        return record.metrics.calls.seconds_per_call
    return None if record.wall_p50 is None else record.wall_p50 / 1e3


def _round(record: Record) -> Round:
    """Return the summary of a round; its samples are in the merged record, or in a file of the round's frames."""
    metrics, loop = record.metrics, record.realtime
    return Round(
        wall_ms=_short(metrics.wall_ms),
        device_ms=_short(metrics.device_ms),
        host_ms=_short(metrics.host_ms),
        frame_ms=None if loop is None else _short(loop.frame_ms),
        latency_ms=None if loop is None else _short(loop.latency_ms),
        prepare=None if record.prepare is None else RoundPrepare(seconds=record.prepare.seconds),
    )


def _short(summary: Summary | None) -> RoundSummary | None:
    if summary is None:
        return None
    return RoundSummary(n=summary.n, mean=summary.mean, p50=summary.p50, stopped_by=summary.stopped_by)


def _merged_metrics(before: Metrics, new: Metrics, number: int) -> Metrics:
    merged = {clock: _merged_summary(getattr(before, clock), getattr(new, clock)) for clock in CLOCKS}
    fps, wall = new.fps, merged["wall_ms"]
    if fps is not None and new.wall_ms is not None and wall is not None and wall.min > 0:
        frames = fps.mean * new.wall_ms.mean  # frames of a call, times 1000 ms
        fps = FrameRate(mean=frames / wall.mean, min=frames / wall.max, max=frames / wall.min)
    latency = _merged_conditions(before.latency, new.latency, number)
    calls = before.wall_ms.n if before.wall_ms is not None else 0
    slow = _merged_slow(before, new, calls)
    rates = tuple(_merged_rate(*pair) for pair in zip(before.rates, new.rates, strict=True))
    return replace(new, **merged, fps=fps, rates=rates, latency=latency, slow_calls=slow)


def _merged_rate(before: Deadline, new: Deadline) -> Deadline:
    return replace(
        new,
        misses=before.misses + new.misses,
        bursts=(before.bursts or 0) + (new.bursts or 0),
        longest_run=max(before.longest_run, new.longest_run),
        longest_stall_ms=max(before.longest_stall_ms, new.longest_stall_ms),
    )


def _merged_slow(before: Metrics, new: Metrics, calls: int) -> SlowFrames | None:
    """Return the slow calls of all rounds, each above the threshold of its round; `calls` were timed before `new`."""
    one, other = before.slow_calls, new.slow_calls
    if one is None or other is None:
        return other
    later = (replace(each, frame=each.frame + calls) for each in other.frames)
    slowest, listed = sorted((*one.frames, *later), key=lambda each: -each.ms), max(len(one.frames), len(other.frames))
    return replace(
        other,
        count=one.count + other.count,
        causes=dict((Counter(one.causes) + Counter(other.causes)).most_common()),
        cause_ms={
            cause: one.cause_ms.get(cause, 0.0) + other.cause_ms.get(cause, 0.0)
            for cause in dict.fromkeys((*one.cause_ms, *other.cause_ms))
        },
        frames=tuple(slowest[:listed]),
    )


def _merged_summary(before: Summary | None, new: Summary | None) -> Summary | None:
    if before is None or new is None:
        return new
    return replace(summarize((*before.samples, *new.samples)), stopped_by=new.stopped_by)


def _merged_conditions(
    before: LatencyConditions | None, new: LatencyConditions | None, number: int
) -> LatencyConditions | None:
    """Return the conditions of all rounds: counts and waits are added, clocks are the range over all rounds."""
    if before is None or new is None:
        return new
    return replace(
        new,
        settled=before.settled and new.settled,
        descheduled=_sum(before.descheduled, new.descheduled),
        run_queue_wait_ms=_sum(before.run_queue_wait_ms, new.run_queue_wait_ms),
        cpu_lost_share=_mean(before.cpu_lost_share, new.cpu_lost_share, number),
        gpu_lost_share=_mean(before.gpu_lost_share, new.gpu_lost_share, number),
        limited_share=_mean_shares(before.limited_share, new.limited_share, number),
        sm_clock_min_mhz=min(_known(before.sm_clock_min_mhz, new.sm_clock_min_mhz), default=None),
        sm_clock_median_mhz=_mean(before.sm_clock_median_mhz, new.sm_clock_median_mhz, number),
        sm_clock_max_mhz=max(_known(before.sm_clock_max_mhz, new.sm_clock_max_mhz), default=None),
    )


def _sum(before: float | None, new: float | None) -> float | None:
    """Return the sum over all rounds; None if a round did not measure it."""
    return None if before is None or new is None else before + new


def _known(*values: int | None) -> list[int]:
    return [value for value in values if value is not None]


def _mean(before: float | None, new: float | None, number: int) -> float | None:
    """Return the mean over rounds 1 to `number`; `before` is that of the rounds before the last."""
    return None if before is None or new is None else before + (new - before) / number


def _mean_shares(
    before: Mapping[str, float] | None, new: Mapping[str, float] | None, number: int
) -> dict[str, float] | None:
    """Return the mean share by reason over rounds 1 to `number`; `before` is the mean of the rounds before the last."""
    if before is None or new is None:
        return None
    return {
        reason: before.get(reason, 0.0) + (new.get(reason, 0.0) - before.get(reason, 0.0)) / number
        for reason in dict.fromkeys((*before, *new))
    }
