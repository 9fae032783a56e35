"""Verdicts and exit codes on records whose times are known."""

from dataclasses import replace

import numpy as np
import pytest
from hand_made import cell, noisy, write_run

from profiling.comparison.judgement import exit_code, judge
from profiling.comparison.side import read_side
from profiling.results.frames import write_series

T = 0.02


@pytest.fixture
def sides(tmp_path):
    def make(a, b):
        return read_side(write_run(tmp_path / "a", *a)), read_side(write_run(tmp_path / "b", *b))

    return make


@pytest.mark.parametrize(
    ("factor", "verdict", "code"),
    [(1.0, "same", 0), (1.1, "slower", 1), (0.9, "faster", 0)],
)
def test_a_known_factor_is_found_in_either_direction(sides, factor, verdict, code):
    a, b = sides([cell(samples=noisy(10, seed=1))], [cell(samples=noisy(10 * factor, seed=2))])
    (judged,) = judge(a, b, T)
    assert (judged.verdict, exit_code([judged], T)) == (verdict, code)
    assert judged.interval[0] < factor < judged.interval[1]
    assert judged.a_ms == pytest.approx(10, rel=0.01)
    assert judged.b_ms == pytest.approx(10 * factor, rel=0.01)
    (back,) = judge(b, a, T)
    assert back.ratio == pytest.approx(1 / judged.ratio)


def test_noise_as_wide_as_the_threshold_cannot_tell_and_does_not_stop_ci(sides):
    a, b = sides([cell(samples=noisy(10, spread=0.2, seed=1))], [cell(samples=noisy(10, spread=0.2, seed=2))])
    (judged,) = judge(a, b, T)
    assert judged.verdict == "can't tell"
    assert judged.interval[0] < 1 < judged.interval[1]
    assert exit_code([replace(judged, ratio=1 + T / 2)], T) == 0
    assert exit_code([replace(judged, ratio=1 + 2 * T)], T) == 2, "it may be slower by more than the threshold"


def test_surely_slower_but_by_less_than_the_threshold_passes(sides):
    a, b = sides([cell(samples=noisy(10, spread=0.001, seed=1))], [cell(samples=noisy(10.3, spread=0.001, seed=2))])
    (judged,) = judge(a, b, 0.02)
    assert (judged.verdict, exit_code([judged], 0.02)) == ("slower", 1)
    (judged,) = judge(a, b, 0.05)
    assert (judged.verdict, exit_code([judged], 0.05)) == ("same", 0)
    assert exit_code([replace(judged, verdict="slower", ratio=1.04)], 0.05) == 0


def test_a_difference_within_the_threshold_is_none_that_matters(sides):
    """Surely slower, by 1.5%: with an interval that reaches beyond 2% nobody can say that it is too much."""
    times = (noisy(10 * factor, spread=0.03, seed=seed) for factor, seed in ((1.0, 1), (1.016, 2)))
    a, b = sides(*([cell(samples=samples)] for samples in times))
    (judged,) = judge(a, b, T)
    (back,) = judge(b, a, T)
    assert back.verdict == "can't tell"
    assert 1 < judged.interval[0] < judged.ratio < 1 + T < judged.interval[1]
    assert (judged.verdict, exit_code([judged], T)) == ("can't tell", 0)
    assert judged.reason == "the interval holds less and more than the threshold"


@pytest.mark.parametrize(("taken", "said"), [(9, False), (10, True)])
def test_times_that_other_programs_disturbed_are_called_so(sides, taken, said):
    quiet, slow = noisy(10, seed=1)[:100], cell(samples=noisy(11, seed=2)[:100])
    metrics = {**slow.metrics, "latency": {"descheduled": taken}}
    a, b = sides([cell(samples=quiet)], [replace(slow, metrics=metrics)])
    (judged,) = judge(a, b, T)
    assert (judged.verdict, exit_code([judged], T)) == ("slower", 1)
    assert judged.reason == ("other programs ran while B was timed" if said else "")


def test_more_cells_make_wider_intervals(sides):
    names = [f"v{i}" for i in range(12)]
    a, b = sides([cell(name, noisy(10, seed=1)) for name in names], [cell(name, noisy(10.1, seed=2)) for name in names])
    one = ("net", "v0")
    alone = judge(*(replace(side, records={one: side.records[one]}) for side in (a, b)), T)
    together = judge(a, b, T)
    width = [judged.interval[1] - judged.interval[0] for judged in (alone[0], together[0])]
    assert width[1] > 1.2 * width[0], "z of 1 - 0.05 / 12 over z of 0.95 is 1.46"


def test_a_run_against_itself_is_the_same_however_noisy(sides):
    records = [cell("v", noisy(10, spread=0.5)), cell("w", noisy(3))]
    a, b = sides(records, records)
    cells = judge(a, b, 0.001)
    assert {(judged.verdict, judged.interval) for judged in cells} == {("same", (1.0, 1.0))}
    assert exit_code(cells, 0.001) == 0


BAD = cell("w", status="failed", reason="planted")
WRONG = cell("w", noisy(1), parity={"rel_l2": 3.0, "passed": False})
V, W = cell("v", noisy(1)), cell("w", noisy(1))


@pytest.mark.parametrize(
    ("a", "b", "told", "code"),
    [
        ([V, W], [V], "only in A", 2),
        ([V], [V, W], "only in B", 0),
        ([V, W], [V, BAD], "B is failed (planted)", 2),
        ([V, BAD], [V, W], "A is failed (planted)", 0),
        ([V, BAD], [V, BAD], "A is failed", 0),
        ([V, W], [V, WRONG], "B is not right (parity)", 2),
        ([V, cell("w")], [V, cell("w")], "no times in A and B", 0),
        ([V, W], [V, cell("w")], "no times in B", 2),
        ([V, W], [V, replace(W, scale="tiny")], "not the same work: scale full → tiny", 2),
        ([V, cell("w", [1.0] * 5)], [V, cell("w", [1.0] * 9)], "fewer than 6", 2),
    ],
)
def test_what_cannot_be_compared_is_told(sides, a, b, told, code):
    a, b = sides(a, b)
    cells = judge(a, b, T)
    assert cells[0].verdict == "same"
    assert cells[1].verdict in ("not compared", "can't tell")
    assert told in cells[1].reason
    assert cells[1].interval is None
    assert exit_code(cells, T) == code


def with_samples(samples, p50=1.0):
    """A cell that says p50, whatever its samples are."""
    return cell("w", metrics={"wall_ms": {"n": 100, "p50": p50, "samples": samples}})


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (with_samples([0.0] * 100), "the samples of B are no times: their median is 0"),
        (with_samples([1.0] * 49 + [-1.0] * 51), "the samples of B are no times: their median is -1"),
        (with_samples([None] * 30 + [1.0] * 70), "the samples of B are no times: 30 of 100 are not finite"),
        (with_samples(["1"] * 2 + [1.0] * 98), "the samples of B are no times: 2 of 100 are not finite"),
        (with_samples([1.7e308] * 100), "the samples of B are no times: their median is inf"),
        (with_samples(noisy(1), p50=0.0), "no times in B"),
        (with_samples(noisy(1), p50=-1.0), "no times in B"),
        (with_samples(noisy(1), p50=None), "no times in B"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_samples_that_are_no_times_are_not_compared_and_the_reason_is_true(sides, wrong, told):
    a, b = sides([V, W], [V, wrong])
    cells = judge(a, b, T)
    assert (cells[1].verdict, cells[1].reason) == ("not compared", told)
    assert (cells[1].b_ms, cells[1].ratio, cells[1].interval) == (None, None, None)
    assert exit_code(cells, T) == 2
    back = judge(b, a, T)
    assert back[1].reason == told.replace("of B", "of A").replace("in B", "in A")
    assert exit_code(back, T) == 0, "A had nothing that B could lose"


@pytest.mark.filterwarnings("error")
def test_times_that_are_mostly_0_have_no_interval(sides):
    a, b = sides([cell("w", [0.0] * 49 + [1.0] * 51)], [W])
    (judged,) = judge(a, b, T)
    assert (judged.verdict, judged.interval) == ("can't tell", None)
    assert "times are 0" in judged.reason
    assert exit_code([judged], T) == 2


def test_nothing_compared_is_no_pass(sides):
    a, b = sides([BAD], [BAD])
    assert exit_code(judge(a, b, T), T) == 2


def loop(p50, rounds=None, **facts):
    section = {"frame_ms": {"n": 50, "p50": p50, "mean": p50}, "frames": 50, **facts}
    return cell("v", target="realtime", component="realtime", realtime=section, rounds=rounds)


def keep_frames(side, times, stem="realtime.v"):
    (side.folder / "cells").mkdir(exist_ok=True)
    write_series(side.folder / "cells" / f"{stem}.frames.npz", {"frame_ms": np.asarray(times)})


def test_loops_are_compared_by_their_frames_where_those_were_kept(sides):
    a, b = sides([loop(10.0)], [loop(11.0)])
    (judged,) = judge(a, b, T)
    assert (judged.verdict, judged.ratio, judged.interval) == ("can't tell", pytest.approx(1.1), None)
    assert exit_code([judged], T) == 2
    keep_frames(a, noisy(10, n=50, seed=1))
    keep_frames(b, [*noisy(11, n=50, seed=2), np.nan])
    (judged,) = judge(a, b, T)
    assert (judged.verdict, exit_code([judged], T)) == ("slower", 1)


def test_frames_that_cannot_be_read_cost_their_own_cell_alone(sides):
    a, b = sides([V, loop(10.0)], [V, loop(11.0)])
    keep_frames(a, noisy(10, n=50, seed=1))
    keep_frames(b, noisy(11, n=50, seed=2))
    (b.folder / "cells" / "realtime.v.frames.npz").write_bytes(b"no archive")
    same, judged = judge(a, b, T)
    assert same.verdict == "same"
    assert (judged.verdict, judged.ratio, judged.interval) == ("can't tell", pytest.approx(1.1), None)
    assert "cannot be read as series of frames" in judged.reason
    assert exit_code([same, judged], T) == 2


@pytest.mark.parametrize("frames", [[np.nan] * 50, []])
def test_a_round_without_a_frame_is_none(sides, frames):
    rounds = ({"frame_ms": {"n": 50}},) * 2
    a, b = sides([loop(10.0, rounds)], [loop(10.0, rounds)])
    for side in (a, b):
        keep_frames(side, noisy(10, n=50, seed=1), "realtime.v.round1")
        keep_frames(side, frames, "realtime.v.round2")
    (judged,) = judge(a, b, T)
    assert (judged.verdict, judged.rounds) == ("same", 1)


def test_loops_in_rounds_use_the_frames_of_every_round(sides):
    rounds = ({"frame_ms": {"n": 50}},) * 2
    a, b = sides([loop(10.0, rounds)], [loop(10.0, rounds)])
    for side, seed in ((a, 1), (b, 5)):
        keep_frames(side, noisy(10, n=50, seed=seed), "realtime.v.round1")
        keep_frames(side, noisy(12, n=50, seed=seed + 1), "realtime.v.round2")
    (judged,) = judge(a, b, T)
    assert judged.interval[0] < 0.86, "a round of A and the other of B: 10 / 12"
    assert judged.interval[1] > 1.16
    assert judged.verdict == "can't tell"
