"""Robust lines, estimates with intervals, and crossings against known values."""

import math

import numpy as np
import pytest

from profiling.launch_overhead.fits import at_size, crossing, estimate, fit_lines
from profiling.results.explained import Estimate

COUNTS = (1, 50, 100, 200, 400)
NAN = math.nan


@pytest.mark.parametrize("wrong", [None, *range(5)])
def test_one_wrong_point_of_five_moves_neither_slope_nor_intercept(wrong):
    times = 7 + 3.5 * np.array(COUNTS, dtype=float)
    if wrong is not None:
        times[wrong] += 5000
        assert abs(np.polyfit(COUNTS, times, 1)[0] - 3.5) > 0.5, "least squares is off"
    lines = fit_lines(COUNTS, times[None])
    assert (lines.slope, lines.intercept) == (pytest.approx([3.5]), pytest.approx([7]))


def test_unmeasured_points_are_left_out_and_two_make_no_line():
    times = np.tile(7 + 3.5 * np.array(COUNTS, dtype=float), (2, 1))
    times[:, [0, 3]] = NAN
    times[1, 4] = NAN
    lines = fit_lines(COUNTS, times)
    assert lines.slope == pytest.approx([3.5, NAN], nan_ok=True)
    assert lines.intercept == pytest.approx([7, NAN], nan_ok=True)


def noisy_estimates(seed):
    """Fit 25 rounds of 7 + 3.5 × count, with noise of 2 and every twentieth sample 900 too long."""
    rng = np.random.default_rng(seed)
    times = 7 + 3.5 * np.array(COUNTS) + rng.normal(0, 2, (25, 5))
    times += rng.choice([0, 900], p=[0.95, 0.05], size=times.shape)
    lines = fit_lines(COUNTS, times)
    return estimate(lines.slope), estimate(lines.intercept)


def test_95_percent_intervals_contain_the_planted_cost():
    pairs = [noisy_estimates(seed) for seed in range(50)]
    for place, planted, error in ((0, 3.5, 0.02), (1, 7, 3)):
        estimates = [pair[place] for pair in pairs]
        assert all(one.p50 == pytest.approx(planted, abs=error) and one.n == 25 for one in estimates)
        assert sum(one.ci95[0] < planted < one.ci95[1] for one in estimates) >= 42, "of 50; 95% would be 47.5"


def test_drift_between_rounds_is_not_in_the_slope():
    drift = np.arange(15.0)[:, None] * 100
    assert fit_lines(COUNTS, drift + 3.5 * np.array(COUNTS)).slope == pytest.approx([3.5] * 15)


def test_unmeasured_rounds_have_no_estimate_and_few_rounds_no_interval():
    assert estimate(np.array([NAN, NAN])) is None
    assert estimate(np.array([math.inf, math.inf, 3.0])) is None
    assert estimate(np.array([2.0, NAN, 4.0])) == Estimate(p50=3.0, n=2)
    assert estimate(np.array([2.0, 3.0, 4.0, math.inf, 3.0])) == Estimate(p50=3.0, n=5)


def test_the_crossing_of_an_analytic_model():
    # A device that needs 2 µs and 10 elements more a nanosecond, a host that needs 6: equal at 40 000 elements.
    sizes = [2**power for power in range(0, 25, 2)]
    durations = [2 + size / 10_000 for size in sizes]
    size = crossing(sizes, [duration / 6 for duration in durations])
    assert size == pytest.approx(40_000, rel=0.1)
    assert at_size(size, sizes, durations) == pytest.approx(6)


def test_a_power_law_is_interpolated_without_error():
    sizes = (10, 1000, 100_000)
    assert crossing(sizes, [(size / 700) ** 0.5 for size in sizes]) == pytest.approx(700)
    assert at_size(700, sizes, [size**0.5 for size in sizes]) == pytest.approx(700**0.5)


def test_the_last_crossing_counts():
    assert 1000 < crossing((10, 100, 1000, 10_000), (0.5, 2, 0.5, 2)) < 10_000


@pytest.mark.parametrize(
    ("ratios", "size"),
    [((0.1, 0.2, 0.9), math.inf), ((1.1, 2, 3), -math.inf), ((0.1, 2, 3), 10 ** (1 / (1 + math.log10(2))))],
)
def test_a_crossing_outside_the_sweep(ratios, size):
    assert crossing((1, 10, 100), ratios) == pytest.approx(size)


@pytest.mark.parametrize("wrong", [NAN, 0.0, -0.2])
def test_no_crossing_where_a_ratio_was_not_measured(wrong):
    assert math.isnan(crossing((1, 10, 100), (0.1, wrong, 3)))
    assert math.isnan(at_size(NAN, (1, 10), (1, 2)))
    assert math.isnan(at_size(math.inf, (1, 10), (1, 2)))
