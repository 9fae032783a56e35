"""Summaries against known answers, intervals against their own promise."""

import statistics

import numpy as np
import pytest
from msgspec import to_builtins

from profiling.results.stats import (
    count_outliers,
    is_decided,
    median_interval,
    paired_ratio,
    ratio_interval,
    ratio_of_totals,
    relative_half_width,
    summarize,
    total_ratio,
)


def test_a_summary_against_the_standard_library():
    values = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0]
    summary = summarize(values)
    assert summary.n == 8
    assert summary.mean == pytest.approx(statistics.mean(values))
    assert summary.std == pytest.approx(statistics.stdev(values)), "ddof 1"
    assert (summary.min, summary.max) == (1.0, 9.0)
    assert summary.p50 == statistics.median(values)
    assert summary.p90 == pytest.approx(6.9)
    assert summary.samples == tuple(values), "raw, in order"
    assert summary.ci95[0] <= summary.p50 <= summary.ci95[1]


def test_one_sample_has_no_spread():
    content = to_builtins(summarize([2.0]))
    assert "std" not in content
    assert "ci95" not in content
    assert content["p50"] == 2.0


@pytest.mark.parametrize("samples", [[], [1.0, float("nan")], [float("inf")]])
def test_what_cannot_be_summarized(samples):
    with pytest.raises(ValueError, match="sample"):
        summarize(samples)


def test_the_interval_holds_the_true_median_as_often_as_it_says():
    rng = np.random.default_rng(7)
    hits = 0
    for trial in range(300):
        low, high = median_interval(rng.lognormal(0.0, 0.3, size=60), resamples=400, seed=trial)
        hits += low <= 1.0 <= high  # the median of a lognormal with mu 0
    assert 0.90 <= hits / 300 <= 0.99


@pytest.mark.parametrize("size", [6, 10, 20])
def test_few_samples_have_an_interval_that_holds_the_true_median_as_often_as_it_says(size):
    """A bootstrap alone holds it in 80 to 88 of 100."""
    rng = np.random.default_rng(3)
    hits = 0
    for trial in range(200):
        low, high = median_interval(rng.lognormal(0.0, 0.3, size=size), resamples=400, seed=trial)
        hits += low <= 1.0 <= high
    assert hits / 200 >= 0.92


@pytest.mark.parametrize(("correlation", "least"), [(0.5, 0.86), (0.9, 0.78)])
def test_correlated_samples_have_an_interval_that_often_holds_the_true_median(correlation, least):
    """docs/measuring.md says how often; blocks of n ** (1/3) samples hold it in 69 of 100 at a correlation of 0.9."""
    rng = np.random.default_rng(17)
    hits = 0
    for trial in range(200):
        series = [rng.standard_normal()]
        for noise in rng.normal(0, (1 - correlation**2) ** 0.5, 299):
            series.append(correlation * series[-1] + noise)
        low, high = median_interval(series, resamples=400, seed=trial)
        hits += low <= 0 <= high
    assert least <= hits / 200 <= 0.97


def test_neighbours_that_go_together_widen_the_interval():
    """An autocorrelated series carries fewer independent samples than it counts."""
    rng = np.random.default_rng(11)
    noise = rng.normal(0, 1, 4000)
    drifting = np.zeros(4000)
    for i in range(1, 4000):
        drifting[i] = 0.8 * drifting[i - 1] + noise[i]
    series = drifting[-1000:] + 100
    shuffled = rng.permutation(series)

    def width(values):
        low, high = median_interval(values, resamples=1000)
        return high - low

    assert width(series) > 1.5 * width(shuffled)


def test_a_ratio_knows_its_direction():
    rng = np.random.default_rng(1)
    ratio, low, high = ratio_interval([rng.normal(20, 0.2, 200)], [rng.normal(10, 0.1, 200)])
    assert ratio == pytest.approx(2.0, rel=0.01)
    assert low < 2.0 < high
    assert high - low < 0.05


def test_outliers_are_counted_and_kept():
    values = [10.0 + 0.01 * (i % 5) for i in range(100)] + [50.0]
    assert count_outliers(values) == 1
    assert summarize(values).max == 50.0


def test_the_half_width_shrinks_with_samples():
    rng = np.random.default_rng(3)
    values = rng.normal(10, 1, 2000)
    assert relative_half_width(values[:20]) > relative_half_width(values)
    assert relative_half_width([1.0]) == float("inf")
    low, high = median_interval(values)
    assert relative_half_width(values) == pytest.approx((high - low) / 2 / float(np.median(values)), rel=0.25)


def test_neighbours_that_go_together_widen_the_half_width_as_they_widen_the_interval():
    rng = np.random.default_rng(5)
    for size in (120, 1000):
        noise = rng.normal(0, 1, size + 100)
        drifting = np.zeros(noise.size)
        for i in range(1, noise.size):
            drifting[i] = 0.8 * drifting[i - 1] + noise[i]
        series = drifting[100:] + 100
        low, high = median_interval(series)
        width = relative_half_width(series)
        assert width == pytest.approx((high - low) / 2 / float(np.median(series)), rel=0.3)
        assert width > 1.3 * relative_half_width(rng.permutation(series))


def drifting(rng, rounds, *, drift, factor=1.0):
    """Rounds of 60 samples around 10 whose centres lie `drift` (relative standard deviation) apart."""
    return [
        10 * factor * (1 + drift * rng.standard_normal()) * (1 + 0.002 * rng.standard_normal(60)) for _ in range(rounds)
    ]


@pytest.mark.parametrize("rounds", [2, 3, 5])
def test_the_interval_of_rounds_holds_the_true_ratio_about_as_often_as_it_says(rounds):
    hits = narrow = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        a, b = drifting(rng, rounds, drift=0.01), drifting(rng, rounds, drift=0.01, factor=1.05)
        _, low, high = ratio_interval(b, a, resamples=1000, seed=seed)
        hits += low <= 1.05 <= high
        _, low, high = ratio_interval([np.concatenate(b)], [np.concatenate(a)], resamples=1000, seed=seed)
        narrow += low <= 1.05 <= high
    assert hits >= 88
    assert narrow < hits - 5, "samples alone do not know of the drift between rounds"


def test_equal_rounds_make_no_wider_an_interval_than_their_samples_give():
    samples = 10 + np.random.default_rng(0).standard_normal(300)
    together, apart = median_interval(samples), median_interval(*np.split(samples, 5))
    assert apart[1] - apart[0] < 2.5 * (together[1] - together[0]), "Student's t alone is 1.4 times the normal"


def test_the_two_sides_are_drawn_apart():
    """Draws sorted by which rounds they took would pair slow with slow, and the drift would cancel out."""
    rounds = [np.full(10, 10.0), np.full(10, 11.0)]
    _, low, high = ratio_interval(rounds, rounds)
    assert low < 0.92 < 1.09 < high


def test_a_side_without_samples_is_refused():
    with pytest.raises(ValueError, match="no samples"):
        ratio_interval([[1.0]], [])
    with pytest.raises(ValueError, match="no samples"):
        ratio_interval([[1.0], []], [[1.0]])


def neighbours(rng, windows, *, factor=1.0, noise=0.01, disturbed=0.0, machine=0.1, apart=0.0):
    """Window medians of two cells, [windows] each, on a machine that drifts by `machine` (relative) from pair to pair.

    A share of the windows is `disturbed`, twice as slow; `apart` is the drift between the two cells.
    """
    drift = 1 + machine * np.cumsum(rng.standard_normal(windows)) / np.sqrt(windows)
    between = 1 + apart * np.cumsum(rng.standard_normal(windows)) / np.sqrt(windows)
    cells = [drift * (1 + noise * rng.standard_normal(windows)) for _ in range(2)]
    for cell in cells:
        cell *= np.where(rng.random(windows) < disturbed, 2.0, 1.0)
    return factor * between * cells[0], cells[1]


@pytest.mark.parametrize("disturbed", [0.0, 0.05])
@pytest.mark.parametrize("windows", [6, 12, 20])
def test_the_interval_of_a_paired_ratio_holds_the_true_one_as_often_as_it_says(windows, disturbed):
    hits = 0
    for seed in range(300):
        pair = neighbours(np.random.default_rng(seed), windows, factor=1.05, disturbed=disturbed)
        _, (low, high) = paired_ratio(*pair)
        hits += low <= 1.05 <= high
    assert hits >= 0.94 * 300


def test_a_paired_ratio_is_not_moved_by_a_drift_that_both_share():
    rng = np.random.default_rng(3)
    one, other = neighbours(rng, 20, factor=1.05, machine=0.5)
    ratio, (low, high) = paired_ratio(one, other)
    assert ratio == pytest.approx(1.05, rel=0.01)
    assert high - low < 0.03
    _, wide_low, wide_high = ratio_interval([[each] for each in one], [[each] for each in other])
    assert wide_high - wide_low > 5 * (high - low), "unpaired, the drift is in the interval"


def test_a_few_disturbed_windows_do_not_move_a_paired_ratio():
    rng = np.random.default_rng(4)
    one, other = neighbours(rng, 12)
    quiet, _ = paired_ratio(one, other)
    one[[2, 7]] *= 3
    disturbed, (low, high) = paired_ratio(one, other)
    assert disturbed == pytest.approx(quiet, rel=0.01)
    assert low < 1 < high


def test_a_drift_between_the_cells_widens_the_interval_of_their_ratio():
    def width(pair):
        _, (low, high) = paired_ratio(*pair)
        return high - low

    one, other = neighbours(np.random.default_rng(5), 40, noise=0.001, apart=0.1)
    order = np.random.default_rng(6).permutation(40)
    assert width((one, other)) > 1.5 * width((one[order], other[order]))


def test_few_pairs_have_a_ratio_and_no_interval():
    assert paired_ratio([2.0] * 5, [1.0] * 5) == (pytest.approx(2.0), None)
    assert paired_ratio([2.0] * 6, [1.0] * 6) == (pytest.approx(2.0), pytest.approx((2.0, 2.0)))


@pytest.mark.parametrize(("one", "other"), [([], []), ([1.0], [1.0, 2.0]), ([0.0], [1.0])])
def test_what_is_no_pair_is_refused(one, other):
    with pytest.raises(ValueError, match="pairs"):
        paired_ratio(one, other)


def test_equal_cells_are_seldom_called_different_although_the_question_is_asked_again_and_again():
    """The rule of a run: asked after every second block, up to 30; then the interval at 95% excludes 1 or not."""
    false = 0
    for seed in range(200):
        one, other = neighbours(np.random.default_rng(seed), 30, noise=0.05)
        blocks = next((n for n in range(6, 30, 2) if is_decided([one[:n], other[:n]])), 30)
        _, (low, high) = paired_ratio(one[:blocks], other[:blocks])
        false += not low <= 1 <= high
    assert false <= 0.05 * 200


def test_cells_are_decided_by_their_ratio_or_by_their_order():
    rng = np.random.default_rng(8)
    base, twice = neighbours(rng, 8, factor=2.0, noise=0.03)
    assert is_decided([base, twice]), "the ratio is not known to 1%, and the order is"
    noisy = neighbours(rng, 8, noise=0.03)
    assert not is_decided(noisy)
    assert not is_decided([2 * base, *noisy]), "the two fastest are not apart"
    assert is_decided(neighbours(rng, 8, noise=0.001)), "equal within 1%"
    assert not is_decided([base[:5], twice[:5]])
    assert is_decided([base])


def test_many_rounds_have_an_interval_of_the_median_that_holds_their_drift():
    hits = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        low, high = median_interval(*drifting(rng, 10, drift=0.02), seed=seed)
        hits += low <= 10 <= high
    assert 86 <= hits <= 100


def test_rounds_of_two_samples_have_an_interval_that_misses_the_median_on_either_side():
    above = below = 0
    for seed in range(200):
        rounds = np.random.default_rng(seed).normal(10, 1, (6, 2))
        low, high = median_interval(*rounds, seed=seed, resamples=500)
        above, below = above + (low > 10), below + (high < 10)
    assert max(above, below) <= 20
    assert min(above, below) >= 6


@pytest.mark.parametrize("rounds", [3, 5])
def test_few_rounds_have_a_wide_interval_of_the_median(rounds):
    hits = 0
    for seed in range(200):
        low, high = median_interval(
            *drifting(np.random.default_rng(seed), rounds, drift=0.02), seed=seed, resamples=500
        )
        hits += low <= 10 <= high
    assert hits / 200 >= 0.88


@pytest.mark.parametrize("rounds", [3, 4, 5])
def test_few_rounds_on_a_busy_machine_have_an_interval_near_their_values_or_none(rounds):
    intervals = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        samples = [10 * np.exp(rng.normal(0, 0.5) + rng.normal(0, 0.1, 20)) for _ in range(rounds)]
        interval = median_interval(*samples, seed=seed, resamples=500)
        if interval is not None:
            intervals.append(interval)
            assert np.min(samples) / 2 <= interval[0] < interval[1] <= 2 * np.max(samples)
    assert len(intervals) >= 15


def test_few_rounds_that_differ_by_orders_of_magnitude_carry_no_interval():
    """One of three windows was quiet: 0.016 ms; in the others each call waited for a CPU, 6 ms."""
    rng = np.random.default_rng(0)
    busy, quiet = rng.normal(6, 1, (2, 15)), rng.normal(0.016, 0.001, 100)
    assert median_interval(busy[0], quiet, busy[1]) is None


def test_few_rounds_of_a_clock_that_stands_still_have_an_interval():
    """The device time of a call without work is 0."""
    assert median_interval([0.0] * 4, [0.0] * 4, [0.0] * 4) == (0.0, 0.0)


@pytest.mark.parametrize("rounds", [[[1.0, 2.0]], [[1.0, 2.0, 3.0, 4.0, 5.0]], [[1.0] * 50, [2.0] * 50], [[1.0]] * 5])
def test_few_values_carry_no_interval(rounds):
    assert median_interval(*rounds) is None
    if len(rounds) == 1:
        assert summarize(rounds[0]).ci95 is None


def test_six_values_carry_an_interval():
    """The median lies between the least and the largest of six with a probability of 97%."""
    low, high = median_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert 1.0 <= low < 3.5 < high <= 6.0


def test_a_ratio_of_totals_weighs_windows_by_their_length():
    ratio, interval = total_ratio([10.0, 30.0, 20.0, 10.0, 10.0, 10.0], [1.0, 3.0, 2.0, 1.0, 1.0, 1.0])
    assert ratio == 10.0
    assert interval == (10.0, 10.0)
    assert total_ratio([10.0, 30.0], [1.0, 3.0]) == (10.0, None)
    assert ratio_of_totals(([10.0] * 6, [1.0] * 6), ([5.0] * 6, [1.0] * 6)) == (2.0, (2.0, 2.0))
    assert ratio_of_totals(([10.0] * 5, [1.0] * 5), ([5.0] * 6, [1.0] * 6)) == (2.0, None)
    with pytest.raises(ValueError, match="above 0"):
        total_ratio([0.0], [1.0])


@pytest.mark.parametrize("windows", [6, 8, 20])
def test_intervals_of_totals_hold_the_truth_as_often_as_they_say(windows):
    rng, inside, both = np.random.default_rng(0), 0, 0
    for _ in range(600):
        calls = rng.uniform(10, 30, (2, windows))
        joules = calls * np.array([[3.0], [2.0]]) * (1 + 0.02 * rng.standard_normal((2, windows)))
        low, high = total_ratio(joules[0], calls[0])[1]
        inside += low <= 3.0 <= high
        low, high = ratio_of_totals((joules[0], calls[0]), (joules[1], calls[1]))[1]
        both += low <= 1.5 <= high
    assert inside >= 0.92 * 600
    assert both >= 0.92 * 600


@pytest.mark.parametrize("rounds", [1, 3])
def test_an_interval_beyond_what_the_resamples_carry_grows_as_its_distribution_does(rounds):
    rng = np.random.default_rng(3)
    one, two = ([rng.normal(centre, 0.3, 300) for _ in range(rounds)] for centre in (20, 10))
    _, *few = ratio_interval(one, two, level=0.999, resamples=2000)  # two draws beyond its ends
    _, *many = ratio_interval(one, two, level=0.999, resamples=40_000)
    ratio, *wider = ratio_interval(one, two, level=1 - 1e-6, resamples=2000)
    assert few == pytest.approx(many, rel=0.004 if rounds == 1 else 0.2)
    assert wider[0] < few[0] < ratio < few[1] < wider[1]
