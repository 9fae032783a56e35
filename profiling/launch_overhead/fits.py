"""From times over counts to a cost with its uncertainty: robust lines, medians over rounds, crossings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from profiling.results.stats import median_interval

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Lines:
    """A line for each round: time = intercept + slope × count; [rounds] each, NaN for a round that was not measured."""

    slope: Array
    intercept: Array


def fit_lines(counts: Sequence[int], times: Array) -> Lines:
    """Fit a line to each round of `times` [rounds, counts]; NaN there is a sample that was not measured.

    A round's counts were sampled within a second, so drift from round to round is in the interval and not in a slope.
    """
    pairs = [theil_sen(np.asarray(counts, dtype=np.float64), row) for row in times]
    return Lines(np.array([slope for slope, _ in pairs]), np.array([intercept for _, intercept in pairs]))


def theil_sen(x: Array, y: Array) -> tuple[float, float]:
    """Return (slope, intercept): the medians of the slopes of all pairs, and of what each point is above that slope.

    Up to 29% of the points may be arbitrarily wrong (an interrupt lengthens a sample, nothing shortens it). `x` [n]
    distinct, `y` [n]; fewer than three points that are not NaN make no line: (NaN, NaN). Sources: Theil, A
    rank-invariant method of linear and polynomial regression analysis (1950); Sen, Estimates of the regression
    coefficient based on Kendall's tau (1968).
    """
    there = ~np.isnan(y)
    x, y = x[there], y[there]
    if x.size < 3:
        return math.nan, math.nan
    low, high = np.triu_indices(x.size, k=1)
    slope = float(np.median((y[high] - y[low]) / (x[high] - x[low])))
    return slope, float(np.median(y - slope * x))


def estimate(rounds: Array) -> dict[str, Any] | None:
    """Return the median of `rounds` [rounds] as {"p50", "ci95", "n"}; NaN was not measured, all NaN gives None.

    Infinite rounds (a crossing beyond the sweep) count as large or small. Where they reach the median it is None,
    where they reach the interval that is left out, as it is for fewer than three rounds.
    """
    measured = rounds[~np.isnan(rounds)]
    if measured.size == 0 or not math.isfinite(middle := float(np.median(measured))):
        return None
    result: dict[str, Any] = {"p50": middle, "n": int(measured.size)}
    if measured.size >= 3 and np.isfinite(measured).all():
        result["ci95"] = list(median_interval(measured))
    return result


def crossing(sizes: Sequence[int], ratios: Sequence[float]) -> float:
    """Return the size at which `ratios` (positive, one a size, ascending sizes) rise through 1 for the last time.

    Between two sizes both are taken as straight lines in logarithms. A last time, because a library may change its
    kernel for a slower one on the way: from there on no measured ratio is below 1 again. `-inf` when all are above 1
    already, `inf` when the last is still below, NaN when one was not measured or is not positive.
    """
    logs = [math.log(ratio) if ratio > 0 else math.nan for ratio in ratios]
    if any(math.isnan(value) for value in logs):
        return math.nan
    if logs[-1] < 0:
        return math.inf
    for (small, below), (large, above) in reversed(list(pairwise(zip(sizes, logs, strict=True)))):
        if below < 0:
            share = -below / (above - below)
            return math.exp(math.log(small) + share * (math.log(large) - math.log(small)))
    return -math.inf


def at_size(size: float, sizes: Sequence[int], values: Sequence[float]) -> float:
    """Return positive `values` (one a size) at `size`, straight in logarithms; NaN outside the sweep."""
    if not sizes[0] <= size <= sizes[-1]:
        return math.nan
    return float(np.exp(np.interp(math.log(size), np.log(sizes), np.log(values))))
