"""Robust lines, estimates with intervals, and crossings against known values."""

import math

import numpy as np
import pytest

from profiling.launch_overhead.cell import at_size, crossing, estimate, fit_lines
from profiling.results.explanations import Estimate

COUNTS = (1, 50, 100, 200, 400)
NAN, INF = math.nan, math.inf


def test_neither_one_wrong_point_of_five_nor_a_drift_between_rounds_moves_a_line():
    """Six rounds, each 100 later than the one before; in all but the first another point is far off."""
    times = 7 + 3.5 * np.array(COUNTS, dtype=float) + 100 * np.arange(6.0)[:, None]
    for wrong in range(5):
        times[wrong + 1, wrong] += 5000
    lines = fit_lines(COUNTS, times)
    assert lines.slope == pytest.approx([3.5] * 6)
    assert lines.intercept == pytest.approx(7 + 100 * np.arange(6))


def test_unmeasured_points_are_left_out_and_two_make_no_line():
    times = np.tile(7 + 3.5 * np.array(COUNTS, dtype=float), (2, 1))
    times[:, [0, 3]] = NAN
    times[1, 4] = NAN
    lines = fit_lines(COUNTS, times)
    assert lines.slope == pytest.approx([3.5, NAN], nan_ok=True)
    assert lines.intercept == pytest.approx([7, NAN], nan_ok=True)


def test_unmeasured_rounds_have_no_estimate_and_few_rounds_no_interval():
    assert estimate(np.array([NAN, NAN])) is None
    assert estimate(np.array([INF, INF, 3.0])) is None
    assert estimate(np.array([2.0, NAN, 4.0])) == Estimate(p50=3.0, n=2)
    assert estimate(np.array([2.0, 3.0, 4.0, INF, 3.0])) == Estimate(p50=3.0, n=5)


def test_a_power_law_is_interpolated_without_error():
    sizes = (10, 1000, 100_000)
    assert crossing(sizes, [(size / 700) ** 0.5 for size in sizes]) == pytest.approx(700)
    assert at_size(700, sizes, [size**0.5 for size in sizes]) == pytest.approx(700**0.5)


@pytest.mark.parametrize(
    ("ratios", "size"),
    [
        ((0.1, 2, 3), 10 ** (1 / (1 + math.log10(2)))),
        ((0.5, 2, 0.5, 2), 1000 * 10**0.5),  # the last of two
        ((0.1, 0.2, 0.9), INF),
        ((1.1, 2, 3), -INF),
        *(((0.1, wrong, 3), NAN) for wrong in (NAN, 0.0, -0.2)),  # not measured
    ],
)
def test_where_ratios_rise_through_1(ratios, size):
    assert crossing((1, 10, 100) if len(ratios) == 3 else (10, 100, 1000, 10_000), ratios) == pytest.approx(
        size, nan_ok=True
    )


@pytest.mark.parametrize("size", [NAN, INF])
def test_nothing_is_known_outside_of_the_sizes(size):
    assert math.isnan(at_size(size, (1, 10), (1, 2)))
