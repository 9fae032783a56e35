"""The judge: answers against planted truths and independent tools."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import binomtest, hypergeom
from scipy.stats import t as t_distribution

from profiling.results.judge import (
    RESOLUTION,
    Cell,
    Pair,
    Shortest,
    Windows,
    bursts,
    compare,
    compare_runs,
    compare_totals,
    control_pairs,
    drift,
    fewest_windows,
    fit_line,
    holds,
    is_settled,
    judged,
    rank,
    time_interval,
    total_ratio,
)
from profiling.results.measured import Spread

TIGHT, EQUAL = Spread(0.001, 30.0), Spread(0.0025, 1e6)


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
    near = {"v": known_to(1.03, 0.002)}
    at = [judged(near, resolution)["v"].answer(resolution=resolution) for resolution in (RESOLUTION, 0.05)]
    assert at == ["slower", "same"], "the resolution is that of the reader"


def test_the_leader_is_the_same_in_each_order_of_cells_that_began_and_ended_at_different_turns():
    """The second cell is faster by 0.8%; it began when others had ended: of them only two had turns with both."""
    rng, turns = np.random.default_rng(1), {"noisy": (0, 30), "first": (0, 30), "second": (10, 30)}
    turns |= {f"ended {each}": (0, 10) for each in range(4)}
    ms, cells = {"noisy": 2.0, "first": 1.0, "second": 0.992}, dict[str, Cell]()
    for name, (begin, end) in turns.items():
        noise = (0.2 if name == "noisy" else 0.0005) * rng.standard_normal(end - begin)
        windows = Windows.of(ms.get(name, 1.5) * np.exp(noise), range(begin, end), 0.0, "turns")
        cells[name] = Cell((windows,), TIGHT)
    orders = [rng.permutation(list(cells)).tolist() for _ in range(10)]
    leaders = {rank({name: cells[name] for name in each}).leader for each in orders}
    assert leaders == {"second"}


def starved(ms, seed, n=14, share=0.4):
    """A cell beside others, some windows of which take up to 400 times as long: threads that wait for each other."""
    rng = np.random.default_rng(seed)
    longer = np.where(rng.random(n) < share, rng.uniform(1, 6, n), 0.02 * rng.standard_normal(n))
    return Cell((Windows.of(ms * np.exp(longer), taken=rng.uniform(0.5, 0.7, n), session="turns"),), Spread(0.03, 6.0))


def test_a_tenth_of_the_work_is_found_where_windows_beside_others_take_up_to_400_times_as_long():
    found = [compare(starved(10.0, seed), starved(1.0, 100 + seed)) for seed in range(40)]
    assert sum(each.answer() == "slower" for each in found) >= 38
    assert all(each.interval()[0] <= 10 <= each.interval()[1] for each in found)
    equal = [compare(starved(1.0, seed), starved(1.0, 100 + seed)) for seed in range(200)]
    assert sum(each.answer() != "undecided" for each in equal) <= 4
    assert compare(cell(10.0), cell(1.0, seed=1)).shortest is None, "nothing beside them"


def test_windows_that_only_one_cell_had_say_nothing_of_the_other():
    """Equal code; the others leave, and one of the two goes on alone, for its rates."""
    rng = np.random.default_rng(0)
    taken = np.repeat([0.5, 0.0], (16, 14))
    times = np.exp(0.02 * rng.standard_normal(30)) * np.where(taken > 0, 3.0, 1.0)
    longer = Cell((Windows.of(times, taken=taken, session="turns"),), Spread(0.03, 6.0))
    shorter = Cell((Windows.of(times[:16], taken=taken[:16], session="turns"),), Spread(0.03, 6.0))
    assert compare(shorter, longer).answer() == "undecided"


def test_between_two_runs_what_others_took_of_a_cell_moves_the_end_at_which_it_is_shorter():
    alone, beside = (cell(1.0, taken=taken, session=name) for name, taken in (("a", 0.0), ("b", 0.2)))
    (low, high), (least, most) = compare(alone, beside).interval(), compare(beside, alone).interval()
    assert low == pytest.approx(1.0, abs=0.03)
    assert high > 1.2, "the other one may take 20% less without them"
    assert (least, most) == (pytest.approx(1 / high), pytest.approx(1 / low))


def test_among_twelve_equal_cells_beside_others_the_placements_make_none_faster():
    false = 0
    for seed in range(40):
        rng, cells = np.random.default_rng(seed), {}
        for name in range(12):
            placed = 0.04 * rng.standard_normal(2)
            taken = np.where(rng.random((2, 30)) < 0.1, 0.3, 0.0)
            times = np.exp(placed[:, None] + 0.005 * rng.standard_normal((2, 30)) - np.log1p(-taken))
            windows = tuple(
                Windows.of(ms, taken=share, session="turns") for ms, share in zip(times, taken, strict=True)
            )
            cells[str(name)] = Cell(windows, Spread(0.04, 6.0))
        false += "slower" in rank(cells).answers.values()
    assert false <= 4, "5% is what it is made for, 2% what it has"


@pytest.mark.parametrize("windows", [4, 10, 30])
def test_so_many_of_the_shortest_windows_are_of_one_cell_by_chance(windows):
    by_chance = [2 * hypergeom.sf(number - 1, windows + 30, 30, number) for number in range(1, 31)]
    bounds = Shortest(tuple(-0.1 * n for n in range(30)), windows)
    assert replace(bounds, logs=(0.3, 0.2, 0.1, -0.1)).p_value(0.0, 6.0) == pytest.approx(
        min(1.0, 2 * hypergeom.sf(2, windows + 4, 4, 3))
    )
    assert replace(bounds, logs=(0.2,) * 30).p_value(0.1**2, 1e6) == pytest.approx(0.0455, rel=0.01), "two errors"
    assert bounds.bound(0.95) == pytest.approx(-0.1 * next(n for n, p in enumerate(by_chance) if p <= 0.05))
    assert Shortest((0.0, 0.0), 2).bound(0.95) == -np.inf, "too few"


def test_faster_is_slower_seen_from_the_other_side():
    mirrored = {"slower": "faster", "faster": "slower"}
    for ratio in (2.0, *np.random.default_rng(5).uniform(0.98, 1.02, 200)):
        one, other = cell(ratio, seed=1), cell(1.0, seed=2)
        there, back = compare(one, other), compare(other, one)
        assert mirrored.get(there.answer(), there.answer()) == back.answer(), ratio
        low, high = there.interval()
        assert (back.ratio, *back.interval()) == pytest.approx((1 / there.ratio, 1 / high, 1 / low))


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
        timed = (Windows.of(np.exp(each), session="turns") for each in (*logs, logs[0] + np.log(10)))
        one, equal, tenfold = (Cell((each,), spread) for each in timed)
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


def test_what_others_take_widens_step_by_step_and_hides_no_difference_beyond_it():
    said = []
    for taken in (0.0, 0.01, 0.019, 0.021, 0.05, 0.1):
        found = pair(1.3, n=15, noise=0.005, taken=taken)
        said.append(found.interval()[0])
        assert found.answer() == "slower", taken
    steps = -np.diff(np.log(said))
    assert (steps >= 0).all()
    assert steps[2] < 0.02, "no cliff at 2%"
    few = cell(1.08, n=75, seed=1, noise=0.005)
    share = np.where(np.arange(75) % 20 == 7, 0.4, 0.0)
    few = Cell((replace(few.placements[0], taken=share),), TIGHT)
    assert compare(few, cell(1.0, n=75, seed=2, noise=0.005)).answer() == "slower", "four disturbed windows of 75"


def test_one_thread_beside_others_loses_what_is_measured():
    """A factor of 2 while others take two thirds of the CPU, and equal cells of which one was disturbed alone."""
    pinned = Spread(0.01, 10.0, kind="CPU, pinned")
    slow, fast = (cell(ms, n=12, noise=0.05, seed=int(ms), taken=0.66, spread=pinned) for ms in (6.0, 3.0))
    assert compare(slow, fast).answer() == "slower"
    for kind in ("CPU", "captured"):
        low, _ = compare(*(replace(each, spread=Spread(0.01, 10.0, kind=kind)) for each in (slow, fast))).interval()
        assert low < 1.1, "threads wait for each other, and a GPU may have slowed one of them only"
    alone = cell(1.6, n=12, noise=0.05, seed=1, taken=0.4, spread=pinned)
    low, high = compare(alone, cell(1.0, n=12, noise=0.05, seed=2, spread=pinned)).interval()
    assert low < 1.6 * 0.6 < 1.6 < high


def test_the_interval_of_a_ratio_that_drifts_holds_both_of_its_ends():
    falls = Cell((Windows.of(np.linspace(18.0, 12.7, 15), session="turns"),), TIGHT)
    low, high = compare(falls, cell(2.0, n=15)).interval()
    assert low < 12.7 / 2 * 1.02
    assert high > 9 * 0.98
    both = Cell((Windows.of(np.linspace(9.0, 6.35, 15), session="turns"),), TIGHT)
    low, high = compare(falls, both).interval()
    assert high / low < 1.02, "a shared drift cancels"


def test_six_windows_that_rise_in_order_are_not_settled():
    steady, rising = cell(1.0, n=6), Cell((Windows.of([14.9, 14.4, 16.4, 16.2, 19.0, 19.1], session="turns"),), TIGHT)
    other = Cell((Windows.of([14.9, 19.0, 16.4, 14.4, 19.1, 16.2], session="turns"),), TIGHT)
    assert [is_settled([each, steady], 0.95) for each in (rising, other)] == [False, True]


@pytest.mark.parametrize("cells", [2, 3, 6])
def test_a_tenth_of_the_work_beside_others_is_found_with_the_fewest_windows_among_several(cells):
    n = fewest_windows(cells)
    group = {f"v{place}": starved(10.0, place, n=n) for place in range(1, cells)} | {
        "fast": starved(1.0, 0, n=n, share=0)
    }
    assert set(rank(group).answers.values()) == {"slower"}
    assert [fewest_windows(number) for number in (1, 2, 3, 4, 6, 9)] == [4, 4, 5, 5, 6, 7]


def test_pairs_of_processes_teach_what_their_noise_does_not_explain():
    pairs = [(0.01, 0.005**2), (0.001, 0.004**2)]  # the second differs by less than its noise
    learned = Spread(0.002, 8.0).taught(pairs)
    assert learned.std**2 == pytest.approx((8 * 0.002**2 + (0.01**2 - 0.005**2) / 2) / 10)
    assert learned.freedom == 10
    assert Spread(0.002, 100.0).taught(pairs) == learned, "a prior weighs as 8 pairs at most"
    assert Spread(0.002, 100.0).taught([]) == Spread(0.002, 100.0)
    controls = control_pairs([Cell((cell(1.0).placements[0], cell(1.05, seed=7).placements[0]), TIGHT)])
    expected = np.sqrt((8 * 0.002**2 + np.log(1.05) ** 2 / 2) / 9)
    assert Spread(0.002, 8.0).taught(controls).std == pytest.approx(expected, rel=0.02)


def test_a_process_without_common_turns_does_not_make_the_others_better_known():
    """A baseline stays for a second group of cells; its control took turns with the first group only."""
    noise = np.random.default_rng(0).normal(1, 1e-3, (3, 12))
    turns = (range(start, start + 12) for start in (12, 0, 12))
    first, control, other = (Windows.of(ms, at, session="x") for ms, at in zip(noise, turns, strict=True))
    alone = compare(Cell((other,), EQUAL), Cell((first,), EQUAL))
    assert compare(Cell((other,), EQUAL), Cell((first, control), EQUAL)) == alone


def test_a_second_process_with_few_turns_does_not_hide_what_many_turns_of_the_first_ones_show():
    slow, fast, again = cell(1.08, n=8, seed=1), cell(1.0, n=8, seed=2), cell(1.0, n=8, seed=3, noise=0.05)
    late = replace(again.placements[0], ms=again.placements[0].ms[2:], turns=np.arange(2, 8), taken=np.zeros(6))
    both = replace(fast, placements=(*fast.placements, replace(late, least=late.ms)))
    assert compare(slow, both) == compare(slow, fast), "noise dominates"
    one, two = (replace(each, spread=Spread(0.15, 6.0)) for each in (fast, both))
    assert compare(slow, two).placement < compare(slow, one).placement, "what processes differ by dominates"


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


def test_an_undecided_pair_says_what_would_tell():
    windows = (Windows.of(np.random.default_rng(0).normal(1, 1e-3, 24), session="x"),)
    one, of_another_run = Cell(windows, EQUAL), Cell((Windows.of([1.02] * 24),), EQUAL)
    assert compare(of_another_run, one).wants() == "measuring in 2 times as many processes (rounds=)"
    assert compare(one, one).wants() == "measuring in 2 times as many processes (--multirun seed=0,1,2)"
    for taken, wanted in (
        (0.0, "over 10 times the windows (seconds=, metric.latency.max_iterations=)"),
        (0.5, "a quiet machine"),
    ):
        noisy = Pair(np.log(1.05), 0.1**2, 1e6, 0.0, 1e6, taken=taken)
        assert noisy.wants() == wanted, "16 times the time is more than a run can give; others are named first"


def known_to(ratio, error=0.01):
    return Pair(float(np.log(ratio)), error**2, 1e6, 0.0, 1e6)


def test_what_is_claimed_of_one_pair_is_not_claimed_of_one_among_many():
    """1.025 ± 0.02 excludes 1 alone; among 20 pairs that is not known, and the interval that is shown holds 1."""
    likely = known_to(1.025)
    assert judged({"v": likely})["v"].answer() == "slower"
    assert judged({"v": likely}, tests=10)["v"].answer() == "undecided", "chosen from ten pairs"
    among = {"v": likely, "far": known_to(0.8), **{f"equal {n}": known_to(1.0, 0.002) for n in range(18)}}
    found = judged(among)
    assert [found[name].answer() for name in ("v", "far")] == ["undecided", "faster"]
    assert {found[f"equal {n}"].answer() for n in range(18)} == {"same"}
    low, high = found["v"].interval()
    assert low < 1 < high
    assert likely.interval()[0] > 1
    assert found["equal 0"].interval() == among["equal 0"].interval()


def test_the_lowest_estimate_leads_and_the_others_are_tested_against_it():
    times = {"baseline": 7.0, "best": 1.0, "equal": 1.001, "near": 1.0095, "worse": 1.05}
    ranked = rank({name: cell(ms, seed=seed) for seed, (name, ms) in enumerate(times.items(), 1)})
    assert ranked.leader == "best"
    assert dict(ranked.answers) == {"baseline": "slower", "equal": "same", "near": "undecided", "worse": "slower"}
    assert ranked.named("slower") == ["worse", "baseline"]
    with pytest.raises(ValueError, match="no cell"):
        rank({})


def test_what_others_took_of_two_cells_adds_up_where_they_are_compared_by_the_baseline():
    def timed(ms, turns, taken):
        return Cell((Windows.of(ms * np.exp(0.001 * np.sin(turns)), turns, taken, session="run"),), TIGHT)

    one, other = timed(1.0, np.arange(20), 0.2), timed(0.5, np.arange(20, 40), 0.3)
    baseline = timed(2.0, np.arange(40), 0.1)
    first, second = compare(one, baseline), compare(baseline, other)
    between = rank({"baseline": baseline, "one": one, "other": other}).pairs["one"]
    assert min(-first.low_shift, -second.low_shift, first.high_shift, second.high_shift) > 0.1
    assert between.low_shift == pytest.approx(first.low_shift + second.low_shift)
    assert between.high_shift == pytest.approx(first.high_shift + second.high_shift)


def test_turns_are_settled_by_answers_or_by_what_windows_cannot_show():
    assert is_settled([cell(5.0, n=10, seed=1), cell(1.0, n=10, seed=2)], 0.999)
    assert not is_settled([cell(1.0, n=10, noise=0.2, seed=seed) for seed in (1, 2)], 0.999)
    assert is_settled([cell(1.0, seed=seed, spread=Spread(0.3, 6.0)) for seed in (1, 2)], 0.999)
    host_bound = [cell(ms, n=10, noise=0.01, seed=seed, spread=Spread(0.14, 7.0)) for ms, seed in ((2.0, 1), (1.0, 2))]
    found = compare(*host_bound)
    assert (found.answer(), found.answer(0.999)) == ("slower", "undecided")
    assert is_settled(host_bound, 0.999), "more windows would not bring it to 99.9%, nor change the answer at 95%"
    assert is_settled([cell(1.0)], 0.999), "alone: its time is known to the resolution"
    assert not is_settled([cell(1.0, n=10, noise=0.05)], 0.999)
    falling = replace(cell(1.0), placements=(Windows.of(np.linspace(18.0, 12.7, 40), session="run"),))
    assert not is_settled([falling, cell(1.0)], 0.999), "a drift is timed longer, though it does not hide the answer"


def test_turns_are_settled_where_every_window_of_a_cell_with_two_speeds_is_longer():
    two_speeds = [13.0, 28.0, 13.1, 28.2, 12.9, 27.9, 28.1, 13.0, 13.2, 12.8]
    slow = Cell((Windows.of(two_speeds, session="run"),), Spread(0.15, 6.0))
    fast, once_slow = (
        Cell((Windows.of([2.1, 2.2, 2.1, 2.15, at_5, 2.1, 2.12, 2.2, 2.1, 2.1], session="run"),), Spread(0.0025, 8.0))
        for at_5 in (2.1, 14.0)
    )
    found = compare(slow, fast)
    assert found.answer(0.999) == "slower"
    assert is_settled([slow, fast], 0.999)
    low, high = found.interval()
    assert 12.8 / 2.1 * 0.5 < low < high < 28.2 / 2.1 * 2, "the windows bound it, beside the spread of processes"
    assert compare(slow, once_slow).noise > found.noise, "a window of one is as short as one of the other"
    assert not is_settled([slow, once_slow], 0.99999)


def test_a_drift_is_said_and_both_of_its_ends_are_in_the_interval():
    falling = Windows.of(np.linspace(18.0, 12.7, 40) * np.exp(0.01 * np.random.default_rng(0).standard_normal(40)))
    moved = drift(falling)
    assert (moved.begin, moved.end) == pytest.approx((18.0, 12.7), rel=0.05)
    low, high = time_interval(falling)
    assert low <= moved.end
    assert high >= moved.begin
    for at in (10, 30):
        step = np.where(np.arange(40) < at, 18.0, 12.7) * np.exp(0.02 * np.random.default_rng(at).standard_normal(40))
        assert drift(Windows.of(step)).end < drift(Windows.of(step)).begin


@pytest.mark.parametrize("n", [24, 40])
def test_stationary_noise_is_no_drift(n):
    rng, claims = np.random.default_rng(0), 0
    for _ in range(300):
        noise = rng.standard_normal(n)
        for place in range(1, n):
            noise[place] = 0.5 * noise[place - 1] + noise[place]
        claims += drift(Windows.of(np.exp(0.05 * noise))) is not None
    assert claims <= 9, "3%; 1% is what it is made for"


@pytest.mark.parametrize("n", [8, 10, 25])
@pytest.mark.parametrize("place", [0, -1])
def test_one_odd_window_is_no_drift(n, place):
    rng, claims = np.random.default_rng(0), 0
    for _ in range(100):
        windows = np.exp(0.003 * rng.standard_normal(n))
        windows[place] *= 1.2
        claims += drift(Windows.of(windows)) is not None
    assert claims <= 5, "the level of every claim; the full fit alone claims 70"


@pytest.mark.parametrize(("late", "n"), [(0, 600), (0, 100), (2, 100), (30, 1000), (100, 100)])
def test_the_bound_of_late_calls_is_that_of_clopper_and_pearson(late, n):
    said = holds(late, late, n)
    exact = binomtest(late, n).proportion_ci(confidence_level=0.9, method="exact")
    assert said.most == pytest.approx(exact.high)
    assert said.answer == ("yes" if exact.high <= 0.01 else "no" if exact.low > 0.01 else "undecided")


def test_what_would_decide_a_rate_is_said_in_calls_and_a_burst_or_a_later_look_says_less():
    """0 late of 299 hold it in the first look, in later ones 0 of 528: 0.99**528 is half a percent."""
    for late in (0, 2):
        assert holds(late, late, 100 + holds(late, late, 100).wanted).answer == "yes"
    assert [holds(1, 1, 1000, allowed=share).answer for share in (0.01, 0.001)] == ["yes", "undecided"]
    assert [bursts(late) for late in ([True] * 20, [1, 0, 1, 1], [1, 0, 0, 1])] == [1, 1, 2]
    assert [holds(20, groups, 1000).answer for groups in (20, 1)] == ["no", "undecided"], "one burst says less"
    assert [holds(0, 0, n).answer for n in (298, 299)] == ["undecided", "yes"]
    assert [holds(0, 0, n, looks=2).answer for n in (527, 528)] == ["undecided", "yes"]
    assert [holds(3, 3, 81, looks=looks).answer for looks in (1, 2)] == ["no", "undecided"]


def test_another_run_compiles_again_and_may_choose_other_kernels_whose_difference_only_turns_tell():
    one, other = (Cell((Windows.of([ms] * 24, session=name),), TIGHT) for name, ms in (("a", 1.0), ("b", 1.06)))
    assert compare_runs(other, one).answer() == "slower"
    compiled = [replace(each, is_compiled=True) for each in (other, one)]
    assert compare(*compiled).answer() == "slower", "in one run"
    for processes in (1, 50):
        pair = compare_runs(*(replace(each, placements=each.placements * processes) for each in compiled))
        assert (pair.answer(), pair.wants()) == ("undecided", "measuring both in turns")
    assert compare_runs(replace(compiled[0], placements=cell(1.3).placements), compiled[1]).answer() == "slower"


def test_what_others_took_explains_a_trend_only_as_a_whole():
    """Windows fall by 20%; without what others took of the first ones they rise."""
    ms, taken = np.linspace(10.0, 8.0, 24), np.linspace(0.4, 0.0, 24)
    assert drift(Windows.of(ms)) is not None
    assert drift(Windows.of(ms, taken=taken)) is None
    assert drift(Windows.of(ms, taken=taken / 20)) is not None


def test_one_measurement_in_two_runs_is_certain_and_another_is_not():
    one, other = (Cell((Windows.of(ms),), TIGHT) for ms in ([1.0, 1.01, 0.99] * 8, [1.0, 1.01, 0.98] * 8))
    assert (compare_runs(one, one).is_certain, compare_runs(one, other).is_certain) == (True, False)


def test_turns_go_on_while_a_comparison_with_the_baseline_alone_may_be_decided():
    """The second cell is twice as fast as both others; only the ratio of the third to the baseline is undecided."""
    cells = [cell(2.0, n=6, seed=1), cell(1.0, n=6, seed=2), cell(2.04, n=6, seed=3)]
    noisy = [*cells[:2], cell(2.04, n=6, seed=4, noise=0.02)]
    assert (is_settled(cells, 0.999), is_settled(noisy, 0.999)) == (True, False)


def test_the_interval_of_totals_is_that_of_students_t_from_six_windows_on_and_has_no_negative_end():
    low, high = total_ratio([0.9, 1.1] * 6, [1.0] * 12)[1]
    inflation = (1 + 2 / 12) / (1 - 2 / 12)  # of twelve windows, correlated by 2 / 12 at least
    noise = np.sqrt(12 / 11 * 12 * 0.1**2 * inflation) / 12
    assert np.log(high / low) / 2 == pytest.approx(t_distribution.ppf(0.975, 11 / inflation) * noise)
    assert [total_ratio([1.0, 1.1, 0.9, 1.0, 1.1, 1.0][:n], [1.0] * n)[1] is None for n in (5, 6)] == [True, False]
    ratio, (low, high) = total_ratio(np.random.default_rng(0).lognormal(0, 1.5, 8), np.ones(8))
    assert 0 < low < ratio < high
    for parts, wholes in (([0.0], [1.0]), ([1.0], [0.0]), ([1.0, 1.0], [1.0]), ([], [])):
        with pytest.raises(ValueError, match="above 0"):
            total_ratio(parts, wholes)


def test_the_noise_of_two_totals_adds_up():
    noisy, exact = [9.0, 11.0] * 4, [10.0] * 8
    calls, spread = [1.0] * 8, Spread(0.018, 30.0)
    once, twice = (compare_totals((noisy, calls), (other, calls), spread) for other in (exact, noisy))
    # Cochran: n / (n - 1) of the squares over the square of the sum; of eight windows, correlated by 2 / 8.
    assert once.noise == pytest.approx(8 / 7 * 8 / 80**2 * (1 + 0.25) / (1 - 0.25))
    assert twice.noise == pytest.approx(2 * once.noise)
    assert once.placement == pytest.approx(2 * 0.018**2)


def test_windows_are_checked():
    with pytest.raises(ValueError, match="above 0"):
        Windows.of([1.0, 0.0])
    with pytest.raises(ValueError, match="turn"):
        Windows.of([1.0], turns=[1, 2])


def test_the_slope_and_its_interval_are_those_of_the_line():
    draw = np.random.default_rng(0).standard_normal(400)
    line = fit_line(np.exp(1e-3 * np.arange(400) + 0.01 * draw))
    assert (line.span, line.begin) == (399, pytest.approx(1.0, rel=0.01))
    assert line.slope == pytest.approx((np.exp(0.399) - 1) / 399, rel=0.02)
    low, high = line.interval
    error = 0.01 / np.sqrt(400**3 / 12)  # of an ordinary least-squares slope
    assert low < line.slope < high
    assert line.reach / 399 == pytest.approx(1.96 * error, rel=0.3)


def test_without_common_turns_the_noise_of_two_cells_adds_up():
    one, other, steady = cell(2.0, session=""), cell(1.0, seed=1, session=""), cell(1.0, noise=0.0, session="")
    apart = compare(one, steady).noise, compare(other, steady).noise
    assert compare(one, other).noise == pytest.approx(sum(apart))
    assert min(apart) > 0


def test_two_odd_windows_of_forty_are_trimmed():
    times = np.exp(0.001 * np.random.default_rng(3).standard_normal(40))
    odd = times.copy()
    odd[[7, 30]] *= 20  # a mean of the logarithms would move by 15%
    with_odd, without = (Cell((Windows.of(each, session=""),), TIGHT) for each in (odd, times))
    assert abs(compare(with_odd, without).log_ratio) < 0.002
