"""The judge: answers against planted truths and independent tools."""

from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import binomtest

from profiling.results.judge import (
    Cell,
    Spread,
    Windows,
    bursts,
    compare,
    compare_totals,
    control_pairs,
    drift,
    fit_line,
    holds,
    is_settled,
    rank,
    time_interval,
    total_ratio,
)

TIGHT = Spread(0.001, 30.0)


def cell(ms, n=30, noise=0.001, seed=0, taken=0.0, spread=TIGHT, session="turns"):
    """A cell whose windows take `ms` with normal noise, in turns with those of the same session."""
    times = ms * np.exp(noise * np.random.default_rng(seed).standard_normal(n))
    return Cell((Windows.of(times, taken=taken, session=session),), spread)


def pair(ratio, **options):
    return compare(cell(ratio, seed=1, **options), cell(1.0, seed=2, **options))


def test_as_a_ratio_grows_the_answer_goes_from_same_to_undecided_to_slower_and_never_back():
    ratios = 1 + np.arange(0.0, 0.03, 0.0005)
    said = [pair(ratio).answer() for ratio in ratios]
    changes = [answer for place, answer in enumerate(said) if place == 0 or said[place - 1] != answer]
    assert changes == ["same", "undecided", "slower"]
    assert said[0] == "same"


def test_faster_is_slower_seen_from_the_other_side():
    one, other = pair(2.0), compare(cell(1.0, seed=2), cell(2.0, seed=1))
    assert (one.answer(), other.answer()) == ("slower", "faster")
    assert one.ratio == pytest.approx(1 / other.ratio)
    low, high = one.interval()
    assert other.interval() == pytest.approx((1 / high, 1 / low))


def test_few_windows_have_no_interval_and_decide_nothing():
    few = pair(10.0, n=3)
    assert (few.answer(), few.interval(), few.wants()) == ("undecided", None, "more time (seconds=)")


@pytest.mark.parametrize("n", [4, 5])
@pytest.mark.parametrize("noise", [0.02, 0.3])
def test_four_windows_tell_a_tenfold_difference_and_claim_none_of_equal_code(n, noise):
    """Of slow calls beside other processes; neighbouring windows have a correlation of 0.5."""
    draw, false, found = np.random.default_rng(n), 0, 0
    spread = Spread(0.04, 6.0)
    for _ in range(300):
        steps = draw.standard_normal((2, n))
        for place in range(1, n):
            steps[:, place] = 0.5 * steps[:, place - 1] + np.sqrt(0.75) * steps[:, place]
        logs = noise * steps + spread.std * draw.standard_normal((2, 1))
        one, equal, tenfold = (
            Cell((Windows.of(np.exp(each), session="turns"),), spread) for each in (*logs, logs[0] + np.log(10))
        )
        false += compare(one, equal).answer() != "undecided"
        found += compare(tenfold, equal).answer() == "slower"
    assert false <= 0.07 * 300, "5%, and the chance of 300 pairs"
    assert found >= 0.95 * 300


def test_what_slows_neighbouring_windows_alike_cancels_out():
    weather = np.exp(0.2 * np.cumsum(np.random.default_rng(3).standard_normal(30)))
    one, other = (
        Cell((Windows.of(ms * weather * each.placements[0].ms, session="turns"),), TIGHT)
        for ms, each in ((1.02, cell(1.0, seed=4)), (1.0, cell(1.0, seed=5)))
    )
    assert compare(one, other).answer() == "slower"
    apart = [Cell((Windows.of(each.placements[0].ms),), TIGHT) for each in (one, other)]
    assert compare(*apart).answer() == "undecided", "without turns the drift is noise"


def test_what_differs_between_processes_widens_the_interval_whatever_the_windows_say():
    eager = Spread(0.15, 6.0)
    assert pair(1.3, n=1000, spread=eager).answer() == "undecided"
    assert pair(1.3, n=1000, spread=eager).wants().endswith("times as many processes")
    assert pair(1.3, n=1000, spread=eager).is_limited_by_placement
    assert pair(2.0, spread=eager).answer() == "slower"


def test_a_tenfold_difference_beside_other_processes_is_claimed_with_a_wide_interval():
    low, high = (found := pair(10.0, noise=0.1, taken=0.5)).interval()
    assert found.answer() == "slower"
    assert 3.5 < low < 5.0, "all that others took is removed from the slower cell"
    assert high > 10
    assert pair(1.0, taken=0.4).answer() == "undecided"
    assert pair(1.0, taken=0.4).wants() == "a quiet machine"


def test_controls_teach_by_how_much_processes_differ():
    prior = Spread(0.002, 8.0)
    placements = (cell(1.0).placements[0], cell(1.05, seed=7).placements[0])
    learned = prior.learned(control_pairs([Cell(placements, prior)]))
    assert learned.freedom == 9
    assert learned.std == pytest.approx(np.sqrt((8 * 0.002**2 + np.log(1.05) ** 2 / 2) / 9), rel=0.02)
    assert prior.learned([]) == prior


def test_two_processes_of_each_cell_are_known_better_than_one():
    def twice(ms, seed):
        placed = [cell(ms, seed=each).placements[0] for each in (seed, seed + 1)]
        return Cell(tuple(placed), Spread(0.01, 30.0))

    one, two = (
        compare(cell(1.0, spread=Spread(0.01, 30.0)), cell(1.0, seed=9, spread=Spread(0.01, 30.0))),
        compare(twice(1.0, 20), twice(1.0, 30)),
    )
    assert two.placement == pytest.approx(one.placement / 2)


def test_the_lowest_estimate_leads_and_the_others_are_tested_against_it():
    cells = {
        "baseline": cell(7.0, seed=1),
        "best": cell(1.0, seed=2),
        "equal": cell(1.001, seed=3),
        "near": cell(1.0095, seed=4),
        "worse": cell(1.05, seed=5),
    }
    ranked = rank(cells)
    assert ranked.leader == "best"
    assert dict(ranked.answers) == {"baseline": "slower", "equal": "same", "near": "undecided", "worse": "slower"}
    assert ranked.named("slower") == ["worse", "baseline"]
    with pytest.raises(ValueError, match="no cell"):
        rank({})


def test_turns_are_settled_by_answers_or_by_what_windows_cannot_show():
    assert is_settled([cell(5.0, n=10, seed=1), cell(1.0, n=10, seed=2)], 0.999)
    noisy = [cell(1.0, n=10, noise=0.2, seed=1), cell(1.0, n=10, noise=0.2, seed=2)]
    assert not is_settled(noisy, 0.999)
    eager = Spread(0.3, 6.0)
    assert is_settled([cell(1.0, seed=1, spread=eager), cell(1.0, seed=2, spread=eager)], 0.999)


def test_turns_are_settled_where_every_window_of_a_cell_with_two_speeds_is_longer():
    two_speeds = [13.0, 28.0, 13.1, 28.2, 12.9, 27.9, 28.1, 13.0, 13.2, 12.8]
    slow = Cell((Windows.of(two_speeds, session="run"),), Spread(0.15, 6.0))
    fast, once_slow = (
        Cell((Windows.of([2.1, 2.2, 2.1, 2.15, at_5, 2.1, 2.12, 2.2, 2.1, 2.1], session="run"),), Spread(0.0025))
        for at_5 in (2.1, 14.0)
    )
    pair = compare(slow, fast)
    assert pair.answer(0.999) == "slower"
    assert is_settled([slow, fast], 0.999)
    low, high = pair.interval()
    assert 12.8 / 2.1 * 0.5 < low < high < 28.2 / 2.1 * 2, "the windows bound it, beside the spread of processes"
    assert compare(slow, once_slow).noise > pair.noise, "a window of one is as short as one of the other"
    assert not is_settled([slow, once_slow], 0.99999)


def test_a_drift_is_said_and_both_of_its_ends_are_in_the_interval():
    rng = np.random.default_rng(0)
    falling = Windows.of(np.linspace(18.0, 12.7, 40) * np.exp(0.01 * rng.standard_normal(40)))
    moved = drift(falling)
    assert (moved.begin, moved.end) == pytest.approx((18.0, 12.7), rel=0.05)
    low, high = time_interval(falling)
    assert low <= moved.end
    assert high >= moved.begin


@pytest.mark.parametrize("n", [24, 40])
def test_stationary_noise_is_no_drift(n):
    rng, claims = np.random.default_rng(0), 0
    for _ in range(300):
        noise = rng.standard_normal(n)
        for place in range(1, n):
            noise[place] = 0.5 * noise[place - 1] + noise[place]
        claims += drift(Windows.of(np.exp(0.05 * noise))) is not None
    assert claims <= 9, "3%; 1% is what it is made for"


@pytest.mark.parametrize("at", [10, 20, 30])
def test_a_step_is_a_drift(at):
    steps = np.where(np.arange(40) < at, 18.0, 12.7) * np.exp(0.02 * np.random.default_rng(at).standard_normal(40))
    moved = drift(Windows.of(steps))
    assert moved.end < moved.begin


def test_a_burst_of_other_processes_at_the_end_is_no_drift():
    times, taken = np.ones(40), np.zeros(40)
    times[30:], taken[30:] = 2.0, 0.5
    times *= np.exp(0.01 * np.random.default_rng(1).standard_normal(40))
    assert drift(Windows.of(times)) is not None
    assert drift(Windows.of(times, taken=taken)) is None


@pytest.mark.parametrize(("late", "n"), [(0, 600), (0, 100), (2, 100), (3, 1000), (30, 1000), (100, 100)])
def test_the_bound_of_late_calls_is_that_of_clopper_and_pearson(late, n):
    said = holds(late, late, n)
    exact = binomtest(late, n).proportion_ci(confidence_level=0.9, method="exact")
    assert said.most == pytest.approx(exact.high)
    assert said.answer == ("yes" if exact.high <= 0.01 else "no" if exact.low > 0.01 else "undecided")


def test_what_would_decide_a_rate_is_said_in_calls():
    assert (holds(0, 0, 600).answer, holds(0, 0, 100).answer) == ("yes", "undecided")
    assert holds(0, 0, 100 + holds(0, 0, 100).wanted).answer == "yes"
    assert holds(2, 2, 100 + holds(2, 2, 100).wanted).answer == "yes"
    assert holds(1, 1, 1000, allowed=0.001).answer == "undecided"


def test_late_calls_in_one_burst_say_less_than_apart():
    flags = np.zeros(1000, dtype=bool)
    flags[100:120] = True
    assert bursts(flags) == 1
    assert bursts([True, False, True, True]) == 2
    apart, together = holds(20, 20, 1000), holds(20, bursts(flags), 1000)
    assert (apart.answer, together.answer) == ("no", "undecided")


def test_the_interval_of_totals_has_no_negative_end():
    rng = np.random.default_rng(0)
    ratio, (low, high) = total_ratio(rng.lognormal(0, 1.5, 8), np.ones(8))
    assert 0 < low < ratio < high
    with pytest.raises(ValueError, match="above 0"):
        total_ratio([0.0], [1.0])


def test_windows_are_checked():
    with pytest.raises(ValueError, match="above 0"):
        Windows.of([1.0, 0.0])
    with pytest.raises(ValueError, match="turn"):
        Windows.of([1.0], turns=[1, 2])


def test_the_same_is_the_same_from_both_sides():
    rng = np.random.default_rng(5)
    for ratio in rng.uniform(0.98, 1.02, 200):
        one, other = cell(ratio, seed=1), cell(1.0, seed=2)
        there, back = compare(one, other).answer(), compare(other, one).answer()
        assert {"slower": "faster", "faster": "slower"}.get(there, there) == back


def test_pairs_of_processes_teach_what_their_noise_does_not_explain():
    pairs = [(0.01, 0.005**2), (0.001, 0.004**2)]  # the second differs by less than its noise
    learned = Spread(0.002).learned(pairs)
    assert learned.std**2 == pytest.approx((8 * 0.002**2 + (0.01**2 - 0.005**2) / 2) / 10)
    assert learned.freedom == 10
    assert Spread(0.002, 100.0).learned(pairs) == learned, "a prior weighs as 8 pairs at most"


def test_runs_that_differ_more_than_equal_code_teach_by_how_much():
    draw, ratios = np.random.default_rng(0), [0.0, 0.3, -0.2, 0.25, -0.1]
    runs = [
        [Windows.of(np.exp(log + 0.1 * draw.standard_normal(24)), session=f"{n}") for log in (ratio, 0.0)]
        for n, ratio in enumerate(ratios)
    ]
    single = [compare(Cell((one,), TIGHT), Cell((other,), TIGHT)) for one, other in runs]
    found = compare(*(Cell(tuple(windows), TIGHT) for windows in zip(*runs, strict=True)))
    assert found.log_ratio == pytest.approx(np.mean([each.log_ratio for each in single]))
    assert found.noise == pytest.approx(sum(each.noise for each in single) / 25)
    steps = [(a.log_ratio - b.log_ratio) ** 2 - a.noise - b.noise for a, b in pairwise(single)]
    assert (found.placement, found.placement_freedom) == (pytest.approx(np.mean(steps) / 2 / 5), pytest.approx(8 / 3))


def test_the_noise_of_two_totals_adds_up():
    noisy, exact = [9.0, 11.0] * 4, [10.0] * 8
    calls, spread = [1.0] * 8, Spread(0.018, 30.0)
    once, twice = (compare_totals((noisy, calls), (other, calls), spread) for other in (exact, noisy))
    assert once.noise == pytest.approx(8 / 7 * 8 / 80**2), (
        "Cochran: n / (n - 1) of the squares over the square of the sum"
    )
    assert twice.noise == pytest.approx(2 * once.noise)
    assert once.placement == pytest.approx(2 * 0.018**2)


def test_the_slope_and_its_interval_are_those_of_the_line():
    draw = np.random.default_rng(0).standard_normal(400)
    line = fit_line(np.exp(1e-3 * np.arange(400) + 0.01 * draw))
    assert (line.span, line.begin) == (399, pytest.approx(1.0, rel=0.01))
    assert line.slope == pytest.approx((np.exp(0.399) - 1) / 399, rel=0.02)
    low, high = line.interval
    error = 0.01 / np.sqrt(400**3 / 12)  # of an ordinary least-squares slope
    assert low < line.slope < high
    assert line.reach / 399 == pytest.approx(1.96 * error, rel=0.3)


def test_a_cell_alone_is_settled_where_its_time_is_known_to_the_resolution():
    assert is_settled([cell(1.0)], 0.999)
    assert not is_settled([cell(1.0, n=10, noise=0.05)], 0.999)
