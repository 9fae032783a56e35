"""Verdicts and exit codes on cells whose times are known; different work is never compared."""

from dataclasses import replace as with_fields

import numpy as np
import pytest
from msgspec.structs import replace
from planted_runs import WARM, WRONG, cell, failed, in_rounds, loop, measured, noisy, write_run

from profiling.compare.cells import compare_cells, different_work, exit_code
from profiling.compare.loaded_run import read_run
from profiling.results.frames import write_series
from profiling.results.loop import SoundWindow

T = 0.02


@pytest.fixture
def runs(tmp_path):
    def make(a, b):
        return read_run(write_run(tmp_path / "a", *a)), read_run(write_run(tmp_path / "b", *b))

    return make


@pytest.mark.parametrize(("factor", "verdict", "code"), [(1.0, "same", 0), (1.1, "slower", 1), (0.9, "faster", 0)])
def test_a_known_factor_is_found_in_either_direction(runs, factor, verdict, code):
    a, b = runs([cell(samples=noisy(10, seed=1))], [cell(samples=noisy(10 * factor, seed=2))])
    (compared,) = compare_cells(a, b, T)
    assert (compared.verdict, exit_code([compared], T)) == (verdict, code)
    assert compared.interval[0] < factor < compared.interval[1]
    assert compared.a_ms == pytest.approx(10, rel=0.01)
    assert compared.b_ms == pytest.approx(10 * factor, rel=0.01)
    (back,) = compare_cells(b, a, T)
    assert back.ratio == pytest.approx(1 / compared.ratio)


@pytest.mark.parametrize(
    ("clock", "factor", "verdict"),
    [(1980, 1.1, "slower"), (1750, 1.1, "cannot tell"), (1750, 1.3, "slower"), (1750, 0.9, "faster")],
)
def test_a_difference_that_the_clocks_could_make_is_no_verdict(runs, clock, factor, verdict):
    a, b = (
        [replace(made, metrics=replace(made.metrics, latency=replace(WARM, sm_clock_median_mhz=mhz)))]
        for made, mhz in ((cell(samples=noisy(10, seed=1)), 1980), (cell(samples=noisy(10 * factor, seed=2)), clock))
    )
    (compared,) = compare_cells(*runs(a, b), T)
    assert compared.verdict == verdict
    assert ("SM clock 1980 against 1750 MHz" in compared.reason) == (clock == 1750)


def test_a_gain_that_the_clocks_could_make_may_hide_slower_code(runs):
    """At 1980 instead of 1750 MHz it takes 5% less time: at equal clocks it could be 7% slower."""
    a, b = (
        [replace(made, metrics=replace(made.metrics, latency=replace(WARM, sm_clock_median_mhz=mhz)))]
        for made, mhz in ((cell(samples=noisy(10, seed=1)), 1750), (cell(samples=noisy(9.5, seed=2)), 1980))
    )
    (compared,) = compare_cells(*runs(a, b), T)
    assert compared.interval[1] < 1 - T
    assert (compared.verdict, exit_code([compared], T)) == ("cannot tell", 2)


def test_noise_as_wide_as_the_threshold_cannot_tell(runs):
    a, b = runs([cell(samples=noisy(10, spread=0.2, seed=1))], [cell(samples=noisy(10, spread=0.2, seed=2))])
    (compared,) = compare_cells(a, b, T)
    assert compared.verdict == "cannot tell"
    assert compared.interval[0] < 1 < compared.interval[1]
    assert exit_code([compared], T) == 2, "it may be slower by more than the threshold"
    assert exit_code([with_fields(compared, interval=(0.9, 1 + T / 2))], T) == 0, "the same or faster: not slower"


def test_surely_slower_but_by_less_than_the_threshold_passes(runs):
    a, b = runs([cell(samples=noisy(10, spread=0.001, seed=1))], [cell(samples=noisy(10.3, spread=0.001, seed=2))])
    (compared,) = compare_cells(a, b, 0.02)
    assert (compared.verdict, exit_code([compared], 0.02)) == ("slower", 1)
    (compared,) = compare_cells(a, b, 0.05)
    assert (compared.verdict, exit_code([compared], 0.05)) == ("same", 0)
    assert exit_code([with_fields(compared, verdict="slower", ratio=1.04)], 0.05) == 0


def test_a_difference_within_the_threshold_with_a_wider_interval_cannot_tell(runs):
    """Surely slower, by 1.5%: with an interval that reaches beyond 2% nobody can say that it is too much."""
    times = (noisy(10 * factor, spread=0.03, seed=seed) for factor, seed in ((1.0, 1), (1.016, 2)))
    a, b = runs(*([cell(samples=samples)] for samples in times))
    (compared,) = compare_cells(a, b, T)
    (back,) = compare_cells(b, a, T)
    assert back.verdict == "cannot tell"
    assert 1 < compared.interval[0] < compared.ratio < 1 + T < compared.interval[1]
    assert (compared.verdict, exit_code([compared], T)) == ("cannot tell", 2)
    assert "within the threshold" in compared.reason


def disturbed(record, share):
    """The record, of whose timed window other processes took that share."""
    return replace(record, metrics=replace(record.metrics, latency=replace(WARM, cpu_lost_share=share)))


@pytest.mark.parametrize(("busy", "factor"), [("A", 0.9), ("A", 1.0), ("A", 1.03), ("B", 0.97), ("B", 1.0), ("B", 1.1)])
def test_nothing_is_told_of_a_run_that_others_disturbed(runs, factor, busy):
    a, b = cell(samples=noisy(10, seed=1)), cell(samples=noisy(10 * factor, seed=2))
    a, b = (disturbed(a, 0.38), b) if busy == "A" else (a, disturbed(b, 0.38))
    (compared,) = compare_cells(*runs([a], [b]), T)
    assert (compared.verdict, compared.interval, exit_code([compared], T)) == ("cannot tell", None, 2)
    assert compared.reason == f"other processes took 38% of the CPU in {busy}"


def test_little_that_others_took_changes_no_verdict(runs):
    a, b = cell(samples=noisy(10, seed=1)), disturbed(cell(samples=noisy(11, seed=2)), 0.05)
    (compared,) = compare_cells(*runs([a], [b]), T)
    assert (compared.verdict, compared.reason, exit_code([compared], T)) == ("slower", "", 1)


@pytest.mark.parametrize(("share", "verdict"), [(0.3, "slower"), (0.6, "cannot tell")])
def test_a_slowdown_beyond_what_others_took_is_told(runs, share, verdict):
    """Twice as slow: without what others took, 1.4 times, or not at all."""
    a, b = cell(samples=noisy(10, seed=1)), disturbed(cell(samples=noisy(20, seed=2)), share)
    assert [compared.verdict for compared in compare_cells(*runs([a], [b]), T)] == [verdict]


def test_a_disturbed_run_that_is_clearly_faster_would_be_faster_still_alone(runs):
    a, b = cell(samples=noisy(11, seed=1)), disturbed(cell(samples=noisy(10, seed=2)), 0.38)
    assert [compared.verdict for compared in compare_cells(*runs([a], [b]), T)] == ["faster"]


def test_more_cells_make_wider_intervals(runs):
    names = [f"v{i}" for i in range(12)]
    a, b = runs([cell(name, noisy(10, seed=1)) for name in names], [cell(name, noisy(10.1, seed=2)) for name in names])
    one = ("net", "v0")
    alone = compare_cells(*(with_fields(run, records={one: run.records[one]}) for run in (a, b)), T)
    together = compare_cells(a, b, T)
    width = [compared.interval[1] - compared.interval[0] for compared in (alone[0], together[0])]
    assert width[1] > 1.2 * width[0], "z of 1 - 0.05 / 12 over z of 0.95 is 1.46"


def test_a_run_compared_with_itself_is_the_same_however_noisy(runs):
    records = [cell("v", noisy(10, spread=0.2)), cell("w", noisy(3))]
    cells = compare_cells(*runs(records, records), 0.001)
    assert {(compared.verdict, compared.interval) for compared in cells} == {("same", (1.0, 1.0))}
    assert exit_code(cells, 0.001) == 0


V, W = cell("v", noisy(1)), cell("w", noisy(1))


@pytest.mark.parametrize(
    ("a", "b", "reason", "code"),
    [
        ([V, W], [V], "only in A", 2),
        ([V], [V, W], "only in B", 0),
        ([V, W], [V, failed("w")], "B is failed (planted)", 2),
        ([V, failed("w")], [V, W], "A is failed (planted)", 0),
        ([V, failed("w")], [V, failed("w")], "A is failed", 0),
        ([V, W], [V, cell("w", noisy(1), parity=WRONG)], "B fails its parity check", 2),
        ([V, cell("w")], [V, cell("w")], "no times in A and B", 0),
        ([V, W], [V, cell("w")], "no times in B", 2),
        ([V, W], [V, replace(W, scale="tiny")], "different work: scale full → tiny", 2),
        ([V, W], [V, replace(W, parameters=None)], "", 0),
        ([V, cell("w", [1.0] * 5)], [V, cell("w", [1.0] * 9)], "fewer than 6", 2),
    ],
)
def test_a_cell_that_cannot_be_compared_has_a_reason(runs, a, b, reason, code):
    cells = compare_cells(*runs(a, b), T)
    assert cells[0].verdict == "same"
    assert reason in cells[1].reason
    if reason:
        assert cells[1].verdict in ("not compared", "cannot tell")
        assert cells[1].interval is None
    assert exit_code(cells, T) == code


def with_samples(samples, p50=1.0):
    """A cell that records p50, whatever its samples are."""
    metrics = measured(1.0)
    return cell("w", metrics=replace(metrics, wall_ms=replace(metrics.wall_ms, p50=p50, samples=tuple(samples))))


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (with_samples([0.0] * 100), "not above 0 in B"),
        (with_samples([1.0] * 49 + [-1.0] * 51), "not above 0 in B"),
        (with_samples([1e308] * 100), "not above 0 in B"),
        (with_samples(noisy(1), p50=0.0), "no times in B"),
        (with_samples(noisy(1), p50=-1.0), "no times in B"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_samples_that_are_no_times_are_not_compared(runs, wrong, reason):
    a, b = runs([V, W], [V, wrong])
    cells = compare_cells(a, b, T)
    assert cells[1].verdict == "not compared"
    assert reason in cells[1].reason
    assert (cells[1].b_ms, cells[1].ratio, cells[1].interval) == (None, None, None)
    assert exit_code(cells, T) == 2
    back = compare_cells(b, a, T)
    assert reason.replace("in B", "in A") in back[1].reason
    assert exit_code(back, T) == 0, "A had nothing that B could lose"


@pytest.mark.filterwarnings("error")
def test_times_that_are_mostly_0_have_no_interval(runs):
    (compared,) = compare_cells(*runs([cell("w", [0.0] * 49 + [1.0] * 51)], [W]), T)
    assert (compared.verdict, compared.interval) == ("cannot tell", None)
    assert exit_code([compared], T) == 2


def test_nothing_compared_is_no_pass(runs):
    assert exit_code(compare_cells(*runs([failed("w")], [failed("w")]), T), T) == 2


@pytest.mark.parametrize("sizes", [(50, 50), (50, 49), (100, 0)])
def test_rounds_count_where_they_divide_the_samples(runs, sizes):
    records = [in_rounds(cell(samples=noisy(1, seed=seed)), *sizes) for seed in (1, 2)]
    (compared,) = compare_cells(*runs(*([record] for record in records)), T)
    assert compared.rounds == (2 if sizes == (50, 50) else 1)


def keep_frames(run, times, stem="realtime.v"):
    (run.folder / "cells").mkdir(exist_ok=True)
    write_series(run.folder / "cells" / f"{stem}.frames.npz", {"frame_ms": np.asarray(times)})


def test_loops_are_compared_by_their_frames_where_those_were_kept(runs):
    a, b = runs([loop(10.0)], [loop(11.0)])
    (compared,) = compare_cells(a, b, T)
    assert (compared.verdict, compared.ratio, compared.interval) == ("cannot tell", pytest.approx(1.1), None)
    assert exit_code([compared], T) == 2
    keep_frames(a, noisy(10, n=50, seed=1))
    keep_frames(b, [*noisy(11, n=50, seed=2), np.nan])
    (compared,) = compare_cells(a, b, T)
    assert (compared.verdict, exit_code([compared], T)) == ("slower", 1)


def test_frames_that_cannot_be_read_leave_the_other_cells_compared(runs):
    a, b = runs([V, loop(10.0)], [V, loop(11.0)])
    keep_frames(a, noisy(10, n=50, seed=1))
    keep_frames(b, noisy(11, n=50, seed=2))
    (b.folder / "cells" / "realtime.v.frames.npz").write_bytes(b"no archive")
    same, compared = compare_cells(a, b, T)
    assert same.verdict == "same"
    assert (compared.verdict, compared.ratio, compared.interval) == ("cannot tell", pytest.approx(1.1), None)
    assert "realtime.v.frames.npz cannot be read" in compared.reason
    assert exit_code([same, compared], T) == 2


@pytest.mark.parametrize("frames", [[np.nan] * 50, []])
def test_a_round_without_a_frame_is_none(runs, frames):
    a, b = runs([loop(rounds=2)], [loop(rounds=2)])
    for run in (a, b):
        keep_frames(run, noisy(10, n=50, seed=1), "realtime.v.round1")
        keep_frames(run, frames, "realtime.v.round2")
    (compared,) = compare_cells(a, b, T)
    assert (compared.verdict, compared.rounds) == ("same", 1)


def test_loops_in_rounds_use_the_frames_of_every_round(runs):
    a, b = runs([loop(rounds=2)], [loop(rounds=2)])
    for run, seed in ((a, 1), (b, 5)):
        keep_frames(run, noisy(10, n=50, seed=seed), "realtime.v.round1")
        keep_frames(run, noisy(12, n=50, seed=seed + 1), "realtime.v.round2")
    (compared,) = compare_cells(a, b, T)
    assert compared.interval[0] < 0.86, "a round of A and the other of B: 10 / 12"
    assert compared.interval[1] > 1.16
    assert compared.verdict == "cannot tell"


EXACT = SoundWindow(window="exact", decoded=120, window_latents=120)
DIFFERENT = [
    ({"steps": 1}, "steps 4 → 1"),
    ({"guidance": None}, "guidance 1.5 → off"),
    ({"guidance": 3.0}, "guidance 1.5 → 3.0"),
    ({"deliver": "device"}, "deliver host → device"),
    ({"commit": "separate"}, "commit fused → separate"),
    ({"pace": "realtime"}, "pace free → realtime"),
    ({"sound": SoundWindow(window="windowed", decoded=15, window_latents=120)}, "sound decoded 30 → 15"),
    ({"sound": EXACT}, "sound window windowed → exact, sound decoded 30 → 120"),
]


@pytest.mark.parametrize(("options", "difference"), DIFFERENT)
def test_a_loop_of_different_work_is_not_compared(options, difference):
    assert different_work(loop(), loop(**options)) == difference


@pytest.mark.parametrize("options", [{"schedule": "overlap"}, {"gc": "on"}, {"steps": None, "guidance": None}])
def test_how_work_is_run_and_a_missing_value_are_no_different_work(options):
    assert different_work(loop(), loop(**options)) == ""


def test_an_exact_window_is_the_same_without_its_number_of_latents():
    assert different_work(loop(sound=EXACT), loop(sound=SoundWindow(window="exact"))) == ""


def test_different_work_has_no_ratio_and_is_no_pass(runs):
    a, b = ([cell(samples=noisy(ms), parameters=count)] for ms, count in ((2, 1), (1, 2)))
    (compared,) = compare_cells(*runs(a, b), T)
    assert (compared.verdict, compared.ratio, compared.unmatched) == ("not compared", None, True)
    assert compared.reason == "different work: parameters 1 → 2"
