"""Doubts about a cell's times: each has a mark for the tables, and words that say what happened.

A doubt explains times and does not judge the cell: what makes a cell wrong is its status.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from profiling.errors import printable
from profiling.report.format import count_of, percent
from profiling.results.judgement import lost, lost_in_calls
from profiling.results.measured import LEAST_FOR, ClockConditions
from profiling.results.record import Record


@dataclass(frozen=True)
class Doubt:
    """A doubt about a time or a claim: `mark` is a word or two, `words` the facts; empty where the mark says it all.

    `of_p99`: it concerns the p99 only, and nothing where that is not shown.
    """

    mark: str
    words: str = ""
    of_p99: bool = False


def doubts_of(record: Record) -> tuple[Doubt, ...]:
    """Return the doubts about the times of one cell, the gravest first."""
    return tuple(_doubts(record))


def marks_of(record: Record) -> str | None:
    """Return the marks of a cell for a table: `! disturbed, few samples`; None where there is no doubt."""
    marks = dict.fromkeys(doubt.mark for doubt in doubts_of(record))
    return f"! {', '.join(marks)}" if marks else None


def _doubts(record: Record) -> Iterator[Doubt]:
    windows = ((lost(record), "it was timed"), (lost_in_calls(record), "its calls in a row were timed"))
    for taken, window in windows:
        if taken is not None and taken.disturbs:
            yield Doubt("disturbed", f"{taken.words} while {window}")
    latency, wall = record.metrics.latency, record.metrics.wall_ms
    if latency is not None and not latency.settled:
        yield Doubt("not settled", "its times were still changing when the warm-up ended")
    if wall is not None and wall.percentile("p99") is None:
        yield Doubt("few samples", f"{count_of(wall.n, 'sample')}; a p99 needs {LEAST_FOR['p99']}", of_p99=True)
    limits = limits_text(record)
    if limits is not None and not limits.startswith("not known"):
        yield Doubt("clocks limited", f"by {limits} of the timed window")


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
