"""Doubts about a cell's times: each has a mark for the tables, and words that say what happened.

A doubt explains times and does not judge the cell: what makes a cell wrong is its status.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from profiling.errors import printable
from profiling.report.format import count_of, percent, significant
from profiling.results.judgement import clocks_explain, is_disturbed
from profiling.results.measured import ClockConditions
from profiling.results.record import Record

#: Samples below which a p99 is little more than the longest of them.
ENOUGH_SAMPLES = 100
#: A disturbance is described by its run-queue wait where that is at least this share (0 to 1) of the timed window, and
#: else by the number of interruptions.
_LEAST_WAIT = 0.01


@dataclass(frozen=True)
class Doubt:
    """A doubt about a time or a claim: `mark` is a word or two, `words` the facts; empty where the mark says it all."""

    mark: str
    words: str = ""


def doubts_of(record: Record) -> tuple[Doubt, ...]:
    """Return the doubts about the times of one cell, the gravest first."""
    return tuple(_doubts(record))


def _doubts(record: Record) -> Iterator[Doubt]:
    if words := _disturbance(record):
        yield Doubt("disturbed", words)
    latency, wall = record.metrics.latency, record.metrics.wall_ms
    if latency is not None and not latency.settled:
        yield Doubt("not settled", "its times were still changing when the warm-up ended")
    if wall is not None and wall.n < ENOUGH_SAMPLES:
        yield Doubt("few samples", f"p50 and p99 are of {count_of(wall.n, 'sample')}")
    limits = limits_text(record)
    if limits is not None and not limits.startswith("not known"):
        yield Doubt("clocks limited", f"by {limits} of the timed window")


def _disturbance(record: Record) -> str:
    """Say how much other processes disturbed the timing; empty where they did not."""
    wall, latency = record.metrics.wall_ms, record.metrics.latency
    if wall is None or latency is None or not is_disturbed(record):
        return ""
    waited, window = latency.run_queue_wait_ms, wall.mean * wall.n
    if waited is not None and waited >= _LEAST_WAIT * window:
        return (
            f"its threads waited {significant(waited / 1e3, 2)} s in total for a CPU that other processes used, "
            f"while {significant(window / 1e3, 2)} s of calls were timed"
        )
    return f"other processes interrupted it {latency.descheduled} times in {wall.n} calls"


def limits_text(record: Record) -> str | None:
    """Return what limited the clocks while the cell was timed, with its share of the window where that is known."""
    conditions: ClockConditions | None = record.metrics.latency or record.realtime
    if conditions is None:
        return None
    shares: Mapping[str, float | None] = conditions.limited_share or {}
    if conditions.limited_share is None:
        readings = record.metrics.latency.throttled_share if record.metrics.latency is not None else {}
        reasons = record.realtime.throttle_reasons if record.realtime is not None else ()
        shares = {**readings, **dict.fromkeys(reasons)}
        if not shares and conditions.sm_clock_median_mhz is not None:
            return "not known (window under 1 s)"
    words = [printable(name) + ("" if share is None else f" {percent(share)}") for name, share in shares.items()]
    return ", ".join(words) or None


def can_be_ranked(one: Record, other: Record) -> bool:
    """Return whether two medians can be ranked, although other processes may have disturbed one of them.

    They can if the p99 of the faster record is below the minimum of the slower: disturbance does not explain that.
    They cannot where different SM clocks could explain the difference.
    """
    if one.median_ms and other.median_ms and clocks_explain(one, other, one.median_ms / other.median_ms):
        return False
    if not is_disturbed(one) and not is_disturbed(other):
        return True
    walls = [record.metrics.wall_ms for record in (one, other) if record.metrics.wall_ms is not None]
    faster, slower = min(walls, key=lambda wall: wall.p50), max(walls, key=lambda wall: wall.p50)
    return faster.p99 < slower.min
