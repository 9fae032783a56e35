"""The rounds of a cell that runs several times: a line of `results.jsonl` each, merged when they are read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from msgspec.structs import replace

from profiling.errors import reason_of
from profiling.results.jsonl import encode_record
from profiling.results.measured import LatencyConditions, Metrics, Round, RoundSummary, SlowFrames, Summary
from profiling.results.record import Record
from profiling.results.stats import frame_rate, rates_of_calls, summarize
from profiling.results.verdicts import interval_of

CLOCKS = ("wall_ms", "device_ms", "host_ms")


def merged(rounds: Sequence[Record]) -> Record:
    """Return the record of a cell from those of its rounds, in the order in which they ended.

    Samples, slow calls and conditions are those of all rounds; every other section is from the newest one. A newest
    record that is not ok, or is of no round, stands for the cell. A metric of the user may report numbers that cannot
    be computed with: then the record is failed.
    """
    newest = replace(rounds[-1], round=None)
    if newest.status != "ok" or rounds[-1].round is None:
        return newest
    try:
        record = _merged(sorted(rounds, key=lambda each: each.round or 0), newest)
        encode_record(record)
    except Exception as error:
        return newest.with_status("failed", f"its rounds cannot be merged: {reason_of(error)}")
    return record


def _merged(rounds: Sequence[Record], newest: Record) -> Record:
    parts = [each.metrics for each in rounds]
    metrics = replace(
        newest.metrics,
        **{clock: _all_samples([getattr(each, clock) for each in parts]) for clock in CLOCKS},
        latency=_conditions([each.latency for each in parts]),
        slow_calls=_all_slow_calls(parts),
    )
    notes = tuple(dict.fromkeys(note for each in rounds for note in each.notes))
    record = replace(newest, metrics=metrics, rounds=tuple(map(_round, rounds)), notes=notes)
    wall = metrics.wall_ms
    if wall is None or len(rounds) == 1:
        return record
    frames = record.frames_per_call or 1
    fps = frame_rate(wall, frames) if metrics.fps is not None else None
    rates = rates_of_calls(wall.samples, frames) if metrics.rates else ()
    wall = replace(wall, ci95=interval_of(record))
    return replace(record, metrics=replace(metrics, wall_ms=wall, fps=fps, rates=rates))


def _round(record: Record) -> Round:
    """Return the summary of a round; its samples are in the merged record, or in a file of the round's frames."""
    metrics, loop = record.metrics, record.realtime
    return Round(
        wall_ms=_short(metrics.wall_ms),
        frame_ms=None if loop is None else _short(loop.frame_ms),
    )


def _short(summary: Summary | None) -> RoundSummary | None:
    return None if summary is None else RoundSummary(n=summary.n, p50=summary.p50)


def _all_samples(parts: Sequence[Summary | None]) -> Summary | None:
    known = [each for each in parts if each is not None]
    if len(known) < len(parts) or len(parts) == 1:
        return parts[-1]
    samples = [sample for each in known for sample in each.samples]
    return replace(summarize(samples), stopped_by=known[-1].stopped_by)


def _all_slow_calls(parts: Sequence[Metrics]) -> SlowFrames | None:
    """Return the slow calls of all rounds, each above the threshold of its round, numbered from the first round on."""
    slow = [(each.slow_calls, each.wall_ms) for each in parts]
    known = [(calls, wall.n) for calls, wall in slow if calls is not None and wall is not None]
    if len(known) < len(parts) or len(parts) == 1:
        return parts[-1].slow_calls
    frames, earlier = [], 0  # calls of the rounds before
    for calls, number in known:
        frames += [replace(each, frame=each.frame + earlier) for each in calls.frames]
        earlier += number
    listed = max(len(calls.frames) for calls, _ in known)
    return replace(
        known[-1][0],
        count=sum(calls.count for calls, _ in known),
        causes=_sums(calls.causes for calls, _ in known),
        cause_ms=_sums(calls.cause_ms for calls, _ in known),
        frames=tuple(sorted(frames, key=lambda each: -each.ms)[:listed]),
    )


def _conditions(parts: Sequence[LatencyConditions | None]) -> LatencyConditions | None:
    """Return the mean conditions of rounds; None: what one of them did not measure."""
    known = [each for each in parts if each is not None]
    if len(known) < len(parts):
        return parts[-1]

    def mean(name: str) -> float | None:
        values = [value for each in known if (value := getattr(each, name)) is not None]
        return fmean(values) if len(values) == len(known) else None

    limits = [each.limited_share for each in known if each.limited_share is not None]
    shares = {name: sum_ / len(limits) for name, sum_ in _sums(limits).items()} if len(limits) == len(known) else None
    return replace(
        known[-1],
        settled=all(each.settled for each in known),
        cpu_lost_share=mean("cpu_lost_share"),
        gpu_lost_share=mean("gpu_lost_share"),
        limited_share=shares,
        sm_clock_median_mhz=mean("sm_clock_median_mhz"),
    )


def _sums(values: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Add the values of several mappings key by key, the largest sum first; a missing key counts as 0."""
    sums: dict[str, Any] = {}
    for key, value in (item for each in values for item in each.items()):
        sums[key] = sums.get(key, 0) + value
    return dict(sorted(sums.items(), key=lambda item: -item[1]))
