"""Summaries against known answers, intervals against their own promise."""

import statistics

import numpy as np
import pytest
from msgspec import to_builtins
from scipy.signal import lfilter

from profiling.results.stats import (
    batch_medians,
    frame_rate,
    rates_of_calls,
    relative_half_width,
    series_interval,
    summarize,
)


def test_a_summary_against_the_standard_library():
    values = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0]
    summary = summarize(values)
    assert (summary.n, summary.min, summary.max) == (8, 1.0, 9.0)
    assert (summary.mean, summary.std) == pytest.approx((statistics.mean(values), statistics.stdev(values)))
    assert (summary.p50, summary.p90) == (statistics.median(values), pytest.approx(6.9))
    assert summary.samples == tuple(values), "raw, in order"
    assert summary.ci95[0] <= summary.p50 <= summary.ci95[1]
    one = to_builtins(summarize([2.0]))
    assert one["p50"] == 2.0
    assert not {"std", "ci95"} & one.keys(), "one sample has no spread"
    for samples in ([], [1.0, float("nan")], [float("inf")]):
        with pytest.raises(ValueError, match="sample"):
            summarize(samples)


def test_few_values_and_zeros_carry_no_interval():
    assert summarize([1.0, 2.0, 3.0, 4.0, 5.0]).ci95 is None
    assert summarize([0.0] * 50).ci95 is None, "the device time of a call without work"
    assert relative_half_width([1.0]) == float("inf")


def remembering(rng, size, memory):
    """Values around 100 with a standard deviation of 1, which keep `memory` of themselves from one to the next."""
    noise = rng.normal(0, (1 - memory**2) ** 0.5, size + 200)
    return 100 + lfilter([1.0], [1.0, -memory], noise)[200:]


@pytest.mark.parametrize(("memory", "least"), [(0.0, 0.93), (0.5, 0.93), (0.9, 0.85)])
@pytest.mark.parametrize("size", [100, 1000])
def test_the_interval_of_a_series_holds_the_typical_value_about_as_often_as_it_says(size, memory, least):
    rng = np.random.default_rng(17)
    hits = 0
    for _ in range(200):
        low, high = series_interval(remembering(rng, size, memory))
        hits += low <= 100 <= high
    assert hits / 200 >= least


def test_the_interval_of_a_series_holds_both_ends_of_a_drift():
    low, high = series_interval(np.linspace(10, 11, 1000) + np.random.default_rng(0).normal(0, 0.05, 1000))
    assert 9 < low < 10.02
    assert 10.98 < high < 12


def test_the_half_width_shrinks_with_samples_and_grows_with_their_memory():
    rng = np.random.default_rng(3)
    values = remembering(rng, 1000, 0.9)
    assert relative_half_width(values) > 1.3 * relative_half_width(rng.permutation(values))
    assert relative_half_width(values[:20]) > relative_half_width(rng.permutation(values))
    low, high = series_interval(values)
    assert relative_half_width(values) == pytest.approx((high - low) / 2 / float(np.median(values)))


def test_batches_are_parts_in_order():
    assert batch_medians([1.0, 2.0, 3.0, 7.0, 8.0, 9.0], 2) == [2.0, 8.0]
    assert batch_medians([3.0, 1.0]) == [3.0, 1.0]


def test_calls_are_late_beyond_the_budget_of_their_frames():
    """Four frames a call: 66.7 ms at 60 FPS, 33.3 ms at 120."""
    rates = {rate.fps: rate for rate in rates_of_calls([30.0, 30.0, 40.0, 40.0, 30.0, 70.0], frames_per_call=4)}
    assert list(rates) == [24, 30, 60, 120]
    assert rates[60].budget_ms == pytest.approx(1000 / 15)
    found = {fps: (rate.misses, rate.bursts) for fps, rate in rates.items()}
    assert found == {24: (0, 0), 30: (0, 0), 60: (1, 1), 120: (3, 1)}, "one call in time does not end a burst"


def test_a_call_that_makes_no_frames_has_no_rate():
    assert rates_of_calls([1.0, 2.0], frames_per_call=0) == ()
    assert frame_rate(summarize([1.0, 2.0]), 0) is None
    assert frame_rate(summarize([1.0, 3.0]), 4).mean == pytest.approx(2000)
