"""Merges the rounds of a cell into one record, and compares it with the baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from profiling.results.measured import (
    LatencyConditions,
    Metrics,
    Round,
    RoundSummary,
    SlowFrames,
    Speedup,
    Summary,
)
from profiling.results.record import BASELINE, Record
from profiling.results.stats import frame_rate, rates_of_calls, summarize
from profiling.results.verdicts import compare_records, interval_of

CLOCKS = ("wall_ms", "device_ms", "host_ms")


def rounds_done(record: Record) -> int:
    """Return the number of rounds in `record`; it is 1 for a cell that is not repeated."""
    return len(record.rounds) if record.rounds else 1


def with_round(before: Record | None, new: Record, number: int, total: int) -> Record:
    """Return the cell's record after round `number` of `total`; `new` is the record of that round alone.

    Samples, slow calls and conditions are those of all rounds; every other section is from the newest round. A round
    that is not ok replaces the cell's record.
    """
    if new.status != "ok":
        return new.with_status(new.status, f"round {number} of {total}: {new.reason}")
    if before is None:
        return replace(new, rounds=(_round(new),))
    rounds = (*(before.rounds or ()), _round(new))
    clocks = {clock: _all_samples(getattr(before.metrics, clock), getattr(new.metrics, clock)) for clock in CLOCKS}
    metrics = replace(
        new.metrics,
        **clocks,
        latency=_conditions(before.metrics.latency, new.metrics.latency, rounds_done(before)),
        slow_calls=_all_slow_calls(before.metrics, new.metrics),
    )
    notes = tuple(dict.fromkeys((*before.notes, *new.notes)))
    merged = replace(new, metrics=metrics, rounds=rounds, notes=notes)
    wall = metrics.wall_ms
    if wall is None:
        return merged
    frames = merged.frames_per_call or 1
    fps = frame_rate(wall, frames) if metrics.fps is not None else None
    rates = rates_of_calls(wall.samples, frames) if metrics.rates else ()
    wall = replace(wall, ci95=interval_of(merged))
    return replace(merged, metrics=replace(metrics, wall_ms=wall, fps=fps, rates=rates))


def with_speedup(record: Record, baseline: Record | None) -> Record:
    """Add the speedup, the wall time of the baseline over that of `record`, if both are correct and timed above 0."""
    if baseline is None or record.variant == BASELINE or record.is_realtime:
        return record
    pair = compare_records(baseline, record)
    if pair is None:
        return record
    calls = break_even_calls(record, baseline) if pair.answer() == "slower" else None
    ratio = Speedup(vs=BASELINE, wall=pair.ratio, break_even_calls=calls)
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
        frame_ms=None if loop is None else _short(loop.frame_ms),
    )


def _short(summary: Summary | None) -> RoundSummary | None:
    return None if summary is None else RoundSummary(n=summary.n, p50=summary.p50)


def _all_samples(before: Summary | None, new: Summary | None) -> Summary | None:
    if before is None or new is None:
        return new
    return replace(summarize((*before.samples, *new.samples)), stopped_by=new.stopped_by)


def _all_slow_calls(before: Metrics, new: Metrics) -> SlowFrames | None:
    """Return the slow calls of all rounds, each above the threshold of its round, numbered from the first round on."""
    one, other, wall = before.slow_calls, new.slow_calls, before.wall_ms
    if one is None or other is None or wall is None:
        return other
    later = (replace(each, frame=each.frame + wall.n) for each in other.frames)
    slowest, listed = sorted((*one.frames, *later), key=lambda each: -each.ms), max(len(one.frames), len(other.frames))
    return replace(
        other,
        count=one.count + other.count,
        causes=_sums([one.causes, other.causes]),
        cause_ms=_sums([one.cause_ms, other.cause_ms]),
        frames=tuple(slowest[:listed]),
    )


def _conditions(
    before: LatencyConditions | None, new: LatencyConditions | None, rounds: int
) -> LatencyConditions | None:
    """Return the mean conditions of `rounds` rounds and a new one; None: what one of them did not measure."""
    if before is None or new is None:
        return new

    def mean(one: float | None, other: float | None) -> float | None:
        return None if one is None or other is None else (rounds * one + other) / (rounds + 1)

    limited = None
    if before.limited_share is not None and new.limited_share is not None:
        known = {**before.limited_share, **new.limited_share}
        shares = {name: (before.limited_share.get(name, 0.0), new.limited_share.get(name, 0.0)) for name in known}
        limited = {name: (rounds * one + other) / (rounds + 1) for name, (one, other) in shares.items()}
    return replace(
        new,
        settled=before.settled and new.settled,
        cpu_lost_share=mean(before.cpu_lost_share, new.cpu_lost_share),
        gpu_lost_share=mean(before.gpu_lost_share, new.gpu_lost_share),
        limited_share=limited,
        sm_clock_median_mhz=mean(before.sm_clock_median_mhz, new.sm_clock_median_mhz),
    )


def _sums(values: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Add the values of several mappings key by key, the largest sum first; a missing key counts as 0."""
    sums: dict[str, Any] = {}
    for key, value in (item for each in values for item in each.items()):
        sums[key] = sums.get(key, 0) + value
    return dict(sorted(sums.items(), key=lambda item: -item[1]))
