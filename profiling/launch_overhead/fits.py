"""Derives costs from times over numbers of calls: robust lines, medians over rounds with intervals, crossings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import theilslopes

from profiling.results.explanations import Estimate
from profiling.results.stats import median_interval

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Lines:
    """A line for each round, time = intercept + slope × count: [rounds] each; NaN: not measured."""

    slope: Array
    intercept: Array


def fit_lines(counts: Sequence[int], times: Array) -> Lines:
    """Fit a Theil-Sen line to each round of `times` [rounds, counts]; NaN: not measured.

    Up to 29% of the points of a round may be arbitrarily wrong: an interrupt lengthens a sample, nothing shortens it. A
    round's counts were sampled within a second, so drift between rounds is in the interval and not in a slope. Sources:
    Theil, A rank-invariant method of linear and polynomial regression analysis (1950); Sen, Estimates of the regression
    coefficient based on Kendall's tau (1968).
    """
    lines = Lines(*np.full((2, len(times)), np.nan))
    for index, row in enumerate(times):
        measured = ~np.isnan(row)
        if measured.sum() >= 3:  # any two points lie on a line
            line: Any = theilslopes(row[measured], np.asarray(counts)[measured], method="joint")
            lines.slope[index], lines.intercept[index] = line.slope, line.intercept
    return lines


def estimate(rounds: Array) -> Estimate | None:
    """Return the median of `rounds` [rounds] with its interval; NaN: not measured; all NaN gives None.

    Infinite rounds (a crossing beyond the sweep) count as large or small. Where the median is infinite the estimate is
    None; where any round is, and for fewer than six rounds, there is no interval.
    """
    measured = rounds[~np.isnan(rounds)]
    if measured.size == 0 or not math.isfinite(median := float(np.median(measured))):
        return None
    interval = median_interval(measured) if bool(np.isfinite(measured).all()) else None
    return Estimate(p50=median, n=int(measured.size), ci95=interval)


def crossing(sizes: Sequence[int], ratios: Sequence[float]) -> float:
    """Return the size at which `ratios` (positive, one for each of the ascending `sizes`) rise through 1 the last time.

    Both are interpolated in logarithms. The last time, because a library may switch to a slower kernel on the way: from
    there on no measured ratio is below 1 again. `-inf` when all are above 1, `inf` when the last is still below, NaN
    when one was not measured or is not positive.
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
    """Return positive `values`, one for each of `sizes`, interpolated at `size` in logarithms; NaN outside."""
    if not sizes[0] <= size <= sizes[-1]:
        return math.nan
    return float(np.exp(np.interp(math.log(size), np.log(sizes), np.log(values))))
