"""Summaries of samples: statistics of a clock, the interval of a series, late calls. No sample is dropped."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from profiling.results.frames import TICK_MS
from profiling.results.judge import Windows, bursts, time_interval
from profiling.results.measured import LEAST_VALUES, Deadline, FrameRate, Summary

Samples = Sequence[float] | NDArray[np.float64]

#: Parts of a series whose medians stand for windows.
BATCHES = 24
#: Frame rates that calls and loops are compared with, unless they name others.
COMMON_FPS = (24.0, 30.0, 60.0, 120.0)


def summarize(samples: Samples) -> Summary:
    """Summarise samples in ms. Raises ValueError if there are no samples, or if one is not finite."""
    values = np.asarray(samples, dtype=np.float64)
    if values.size == 0:
        raise ValueError("no samples to summarize")
    if not np.isfinite(values).all():
        raise ValueError("a sample is not finite")
    p50, p90, p95, p99 = (float(q) for q in np.percentile(values, [50, 90, 95, 99]))
    return Summary(
        n=int(values.size),
        mean=float(values.mean()),
        std=float(values.std(ddof=1)) if values.size > 1 else None,
        min=float(values.min()),
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99,
        max=float(values.max()),
        ci95=series_interval(values),
        samples=tuple(float(v) for v in values),
    )


def batch_medians(samples: Samples, batches: int = BATCHES) -> list[float]:
    """Return the medians of consecutive parts of a series, at most `batches`."""
    values = np.asarray(samples, dtype=np.float64)
    return [float(np.median(part)) for part in np.array_split(values, min(batches, values.size))]


def series_interval(samples: Samples) -> tuple[float, float] | None:
    """Return the 95% interval of the typical value of a series above 0, correlated in time as samples of a clock are.

    It holds the median. None where the values cannot carry one: fewer than six, or one that is not above 0.
    """
    values = np.asarray(samples, dtype=np.float64)
    if values.size < LEAST_VALUES or not (values > 0).all():
        return None
    found = time_interval(Windows.of(batch_medians(values)))
    middle = float(np.median(values))
    return None if found is None else (min(found[0], middle), max(found[1], middle))


def relative_half_width(samples: Samples) -> float:
    """Return half the width of `series_interval` over the median (no unit); infinite where there is none."""
    interval = series_interval(samples)
    return float("inf") if interval is None else (interval[1] - interval[0]) / 2 / float(np.median(samples))


def deadline(fps: float, budget_ms: float, excess_ms: Samples, taken_ms: Samples | None = None) -> Deadline:
    """Return what a rate's record says of calls or frames, each `excess_ms` [n] beyond its budget.

    `taken_ms` [n] is what others took of each, NaN where that is not known.
    """
    excess = np.asarray(excess_ms, dtype=np.float64)
    late = excess > TICK_MS
    return Deadline(
        fps=fps,
        budget_ms=budget_ms,
        misses=int(late.sum()),
        alone=None if taken_ms is None else int((excess - np.asarray(taken_ms, dtype=np.float64) > TICK_MS).sum()),
        bursts=bursts(late),
        longest_stall_ms=max(0.0, float(excess.max())),
    )


def frame_rate(wall: Summary, frames_per_call: int) -> FrameRate | None:
    """Return the frames per second (FPS) by the wall clock, the least of the slowest call.

    None is returned for a call that takes 0 ms, or makes no frames.
    """
    frames_ms = 1000 * frames_per_call
    if wall.min <= 0 or not frames_ms:
        return None
    return FrameRate(mean=frames_ms / wall.mean, min=frames_ms / wall.max, max=frames_ms / wall.min)


def rates_of_calls(wall_ms: Samples, frames_per_call: int) -> tuple[Deadline, ...]:
    """Return the late calls at each of `COMMON_FPS`, the lowest first; none where a call makes no frames."""
    budgets = {fps: 1000 * frames_per_call / fps for fps in COMMON_FPS} if frames_per_call else {}
    wall = np.asarray(wall_ms, dtype=np.float64)
    return tuple(deadline(fps, budget, wall - budget) for fps, budget in budgets.items())
