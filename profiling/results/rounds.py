"""How much faster than the baseline a cell is, and when it has paid for its preparation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from msgspec import to_builtins
from numpy.typing import NDArray

from profiling.results.records import BASELINE, Record, Section
from profiling.results.stats import ratio_interval, rounds_interval, summarize

CLOCKS = ("wall_ms", "device_ms", "host_ms")
#: Times of a loop of frames that a round keeps; their samples are in a file of the round.
FRAME_TIMES = ("frame_ms", "latency_ms")
_KEPT = ("n", "mean", "p50", "stopped_by")


def rounds_done(record: Record) -> int:
    """Return how many rounds are in `record`; one that was not taken in rounds is one."""
    return len(record.rounds) if record.rounds else 1


def with_round(before: Record | None, new: Record, number: int, total: int, *, seed: int = 0) -> Record:
    """Return the cell's record after round `number` of `total`, of which `new` is the record of that round alone.

    Samples and what was counted while they were taken are those of all rounds; everything else, memory and parity for
    example, is that of the newest. A round that is not ok makes the cell what that round was.
    """
    if new.status != "ok":
        return new if new.reason is None else replace(new, reason=f"round {number} of {total}: {new.reason}")
    if before is None:
        return replace(new, rounds=(_section(new),))
    joined = replace(
        new,
        metrics=_merged(before.metrics, new.metrics, seed),
        rounds=(*(before.rounds or ()), _section(new)),
        notes=tuple(dict.fromkeys((*before.notes, *new.notes))),
    )
    drifting = {
        clock: {**joined.metrics[clock], "ci95": list(rounds_interval(samples_by_round(joined, clock), seed=seed))}
        for clock in CLOCKS
        if clock in joined.metrics
    }
    return replace(joined, metrics={**joined.metrics, **drifting})


def samples_by_round(record: Record, clock: str = "wall_ms") -> tuple[NDArray[np.float64], ...]:
    """Return the record's samples of `clock` in milliseconds, a float64 [n] a round; empty where it holds none.

    A sample that is no number is NaN. Where the rounds do not say how many of the samples each took, all are one round.
    """
    samples = _at(_at(record.metrics, clock), "samples")
    if not isinstance(samples, list | tuple) or not samples:
        return ()
    values = np.array([_number(sample) for sample in samples], dtype=np.float64)
    parts = [round_ for round_ in record.rounds or () if not isinstance(round_, Mapping) or clock in round_]
    sizes = [_at(_at(part, clock), "n") for part in parts]
    known = [size for size in sizes if isinstance(size, int) and not isinstance(size, bool) and size > 0]
    if len(known) != len(sizes) or sum(known) != values.size:  # not taken in rounds
        return (values,)
    return tuple(np.split(values, np.cumsum(known)[:-1]))


def _at(content: object, key: str) -> Any:
    """Return what stands under `key`; None where `content` is no mapping, for records are edited by hand too."""
    return content.get(key) if isinstance(content, Mapping) else None


def _number(sample: object) -> float:
    return float(sample) if isinstance(sample, int | float) and not isinstance(sample, bool) else float("nan")


def _section(record: Record) -> Section:
    times = {name: record.metrics[name] for name in CLOCKS if name in record.metrics}
    times |= {name: record.realtime[name] for name in FRAME_TIMES if record.realtime and name in record.realtime}
    section: dict[str, Any] = {
        name: {key: summary[key] for key in _KEPT if key in summary} for name, summary in times.items()
    }
    if record.prepare is not None and "seconds" in record.prepare:
        section["prepare"] = {"seconds": record.prepare["seconds"]}
    return section


def _merged(before: Section, new: Section, seed: int) -> dict[str, Any]:
    merged = dict(new)
    for clock in CLOCKS:
        if clock in before and clock in new:
            samples = (*before[clock]["samples"], *new[clock]["samples"])
            merged[clock] = {**new[clock], **to_builtins(summarize(samples, seed=seed))}
    if "fps" in new and "wall_ms" in merged:
        frames = new["fps"]["mean"] * new["wall_ms"]["mean"]  # a call makes, times 1000 milliseconds
        wall = merged["wall_ms"]
        merged["fps"] = {"mean": frames / wall["mean"], "min": frames / wall["max"], "max": frames / wall["min"]}
    if "latency" in before and "latency" in new:
        merged["latency"] = _watched(before["latency"], new["latency"])
    return merged


def _watched(before: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Join what the watch over the timed window saw, which belongs to the samples of all rounds."""
    join = {"settled": min, "descheduled": lambda pair: sum(pair), "sm_clock_min_mhz": min, "sm_clock_max_mhz": max}
    both = {key: (before[key], new[key]) for key in join if None not in (before.get(key), new.get(key))}
    return {**new, **{key: join[key](pair) for key, pair in both.items()}}


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
