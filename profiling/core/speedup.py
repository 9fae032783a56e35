"""How much faster than the baseline a cell is, and when it has paid for its preparation."""

from __future__ import annotations

import math
from dataclasses import replace

from profiling.core.records import BASELINE, Record
from profiling.core.rounds import samples_by_round
from profiling.core.stats import ratio_interval


def with_speedup(record: Record, baseline: Record | None, *, seed: int) -> Record:
    """Add the ratio of median wall times where both sides are right; a wrong answer has no speed."""
    if record.variant == BASELINE or baseline is None or baseline.status != "ok" or record.status != "ok":
        return record
    if "wall_ms" not in record.metrics or "wall_ms" not in baseline.metrics:
        return record
    ratio, low, high = ratio_interval(samples_by_round(baseline), samples_by_round(record), seed=seed)
    speedup = {"vs": BASELINE, "wall": ratio, "ci95": [low, high]}
    if (calls := break_even_calls(record, baseline)) is not None:
        speedup["break_even_calls"] = calls
    return replace(record, speedup=speedup)


def break_even_calls(record: Record, baseline: Record) -> int | None:
    """Return after how many calls a variant has earned its longer preparation; None where it never does.

    A call's time is that of calls in a row where those were measured, else the median wall time.
    """
    if record.prepare is None or baseline.prepare is None:
        return None
    saved = _call_seconds(baseline) - _call_seconds(record)
    spent = record.prepare["seconds"] - baseline.prepare["seconds"]
    return max(0, math.ceil(spent / saved)) if saved > 0 else None


def _call_seconds(record: Record) -> float:
    if "calls" in record.metrics:
        return record.metrics["calls"]["seconds_per_call"]
    return record.metrics["wall_ms"]["p50"] / 1e3
