"""Conditions under which a cell was timed, as facts with a number. They explain its times and do not judge the cell."""

from __future__ import annotations

from profiling.errors import printable
from profiling.report.format import percent, significant
from profiling.results.measured import ClockConditions
from profiling.results.record import Record
from profiling.results.verdicts import Taken, drift_of, taken, taken_of_calls


def conditions_of(record: Record) -> list[str]:
    """Return the conditions of one cell, those first that matter most."""
    named = [_named(taken(record)), _named(taken_of_calls(record), "calls in a row: ")]
    found = [words for words in named if words]
    if (drift := drift_of(record)) is not None:
        found.append(f"drifting: {significant(drift.begin, 3)} → {significant(drift.end, 3)} ms")
    if by_call := record.metrics.by_call_ms:
        times = ", ".join(f"{name} {significant(ms, 3)}" for name, ms in by_call.items())
        found.append(f"calls in a row take {times} ms")
    latency = record.metrics.latency
    if latency is not None and not latency.settled:
        found.append(f"times still changed after {significant(latency.warmup_seconds, 2)} s of warm-up")
    return found


def _named(others: Taken | None, of: str = "") -> str | None:
    return f"{of}{others.words}" if others is not None and others.is_named else None


def conditions_text(record: Record) -> str | None:
    """Return the conditions of a cell for a table; None where there is none."""
    return "; ".join(conditions_of(record)) or None


def limits_text(record: Record) -> str | None:
    """Return why the GPU lowered its clocks during the timing, each reason with its share of the time if known."""
    conditions: ClockConditions | None = record.metrics.latency or record.realtime
    if conditions is None:
        return None
    if conditions.limited_share is None:
        return None if conditions.sm_clock_median_mhz is None else "not known (window under 1 s)"
    return ", ".join(f"{printable(name)} {percent(share)}" for name, share in conditions.limited_share.items()) or None
