"""Verdicts and exit codes on cells whose times are known; different work is never compared."""

import pytest
from msgspec.structs import replace
from planted_runs import WRONG, cell, failed, loop, noisy, write_run

from profiling.compare.cells import different_work, exit_code, judged, matched_cells, read_run
from profiling.results.measured import Metrics
from profiling.results.stats import summarize

T = 0.02


def compare_cells(a, b):
    return judged(matched_cells(a, b))


@pytest.fixture
def runs(tmp_path):
    def make(a, b):
        return read_run(write_run(tmp_path / "a", *a)), read_run(write_run(tmp_path / "b", *b))

    return make


def pair(factor, *, turns="together", spread=0.002, **more):
    """A cell of 10 ms in A and one of `factor` times as long in B; `more` is of the latter."""
    one = cell(windows_ms=noisy(10, seed=1, spread=spread), turns=turns)
    return [one], [cell(windows_ms=noisy(10 * factor, seed=2, spread=spread), turns=turns, **more)]


@pytest.mark.parametrize(
    ("turns", "factor", "verdict", "code"),
    [
        *(("together", 1.005, "same", 0), ("together", 1.1, "slower", 1), ("together", 0.9, "faster", 0)),
        *(("", 1.005, "undecided", 2), ("", 1.1, "slower", 1)),
    ],
)
def test_a_known_factor_is_found_in_either_direction(runs, turns, factor, verdict, code):
    """Two runs after each other tell less than turns."""
    a, b = runs(*pair(factor, turns=turns))
    (compared,) = compare_cells(a, b)
    assert (compared.verdict, exit_code([compared], T)) == (verdict, code)
    assert compared.reason.endswith("in turns") == (verdict == "undecided")
    assert compared.interval[0] < factor < compared.interval[1]
    assert (compared.a_ms, compared.b_ms) == pytest.approx((10, 10 * factor), rel=0.01)
    (back,) = compare_cells(b, a)
    assert back.pair.ratio == pytest.approx(1 / compared.pair.ratio)


def test_noise_as_wide_as_the_threshold_is_undecided(runs):
    (compared,) = compare_cells(*runs(*pair(1.0, spread=0.2)))
    assert compared.interval[0] < 1 - T < 1 + T < compared.interval[1]
    assert (compared.verdict, exit_code([compared], T)) == ("undecided", 2)
    assert compared.reason.endswith("times the time (seconds=)")


def test_the_same_or_faster_passes(runs):
    (compared,) = compare_cells(*runs(*pair(0.992, spread=0.02)))
    assert compared.interval[0] < 0.99
    assert compared.interval[1] < 1 + T
    assert (compared.verdict, exit_code([compared], T)) == ("undecided", 0)


def test_slower_by_less_than_the_threshold_passes(runs):
    a, b = runs(*pair(1.03))
    (compared,) = compare_cells(a, b)
    assert compared.verdict == "slower"
    assert [exit_code([compared], threshold) for threshold in (0.02, 0.03, 0.05)] == [1, 2, 0]


@pytest.mark.parametrize(
    ("factor", "share", "verdict"), [(1.1, 0.38, "undecided"), (1.1, 0.03, "slower"), (3.0, 0.38, "slower")]
)
def test_what_others_took_widens_the_interval_and_is_named(runs, factor, share, verdict):
    (compared,) = compare_cells(*runs(*pair(factor, lost=share)))
    assert compared.verdict == verdict
    wanted = "wants a quiet machine; " if verdict == "undecided" else ""
    assert compared.reason == f"{wanted}{share:.0%} of the CPU went to other processes in B"


def test_a_run_compared_with_itself_is_the_same_however_noisy(runs):
    records = [cell("v", noisy(10, spread=0.2)), cell("w", noisy(3, n=2))]
    cells = compare_cells(*runs(records, records))
    assert {(compared.verdict, compared.reason) for compared in cells} == {("same", "one measurement, in both runs")}
    assert exit_code(cells, 0.001) == 0


V, W = (cell(name, noisy(1), turns="together") for name in "vw")
UNTIMED = cell("w")
SKIPPED = replace(UNTIMED, status="skipped", reason="needs a GPU")
ZERO = cell("w", metrics=Metrics(wall_ms=summarize([0.0] * 9)))


@pytest.mark.parametrize(
    ("a", "b", "reason", "code"),
    [
        ([V, W], [V], "only in A", 2),
        ([V], [V, W], "only in B", 0),
        ([V, W], [V, failed("w")], "B is failed (planted)", 2),
        ([V, failed("w")], [V, W], "A is failed (planted)", 0),
        ([V, failed("w")], [V, failed("w")], "A is failed", 0),
        ([V, SKIPPED], [V, SKIPPED], "skipped in both", 0),
        ([V, W], [V, replace(W, parity=WRONG)], "B fails its parity check", 2),
        ([V, UNTIMED], [V, UNTIMED], "no times in A and B", 0),
        ([V, W], [V, UNTIMED], "no times in B", 2),
        ([V, W], [V, ZERO], "no times in B", 2),
        ([V, ZERO], [V, W], "no times in A", 0),
        ([V, replace(W, parameters=1)], [V, replace(W, parameters=2)], "different work: parameters 1 → 2", 2),
        ([V, W], [V, replace(W, parameters=7)], "", 0),
    ],
)
def test_a_cell_that_cannot_be_compared_has_a_reason(runs, a, b, reason, code):
    cells = compare_cells(*runs(a, b))
    assert cells[0].verdict == "same"
    if reason:
        assert reason in cells[1].reason
        assert (cells[1].verdict, cells[1].interval, cells[1].unmatched) == ("not compared", None, code == 2)
    assert exit_code(cells, T) == code


def test_few_windows_have_a_ratio_without_an_interval(runs):
    a, b = ([cell(windows_ms=noisy(ms, n=3), turns="together")] for ms in (10, 12))
    (compared,) = compare_cells(*runs(a, b))
    assert (compared.verdict, compared.pair.ratio, compared.interval) == ("undecided", pytest.approx(1.2), None)
    assert compared.reason == "wants more time (seconds=)"
    assert exit_code([compared], T) == 2


def test_loops_are_compared_by_their_windows_where_those_were_kept(runs):
    kept, bare = (replace(loop(ms), variant=name) for name, ms in (("kept", noisy(10, seed=1)), ("bare", ())))
    slower = replace(loop(noisy(30, seed=2)), variant="kept")
    compared, undecided = compare_cells(*runs([kept, bare], [slower, bare]))
    assert (compared.verdict, compared.pair.ratio) == ("slower", pytest.approx(3, rel=0.01))
    assert (undecided.verdict, undecided.reason) == ("undecided", "wants more time (seconds=)")
    assert exit_code([undecided], T) == 2


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        ({"work": {"steps": 1, "guidance": 1.5}}, "steps 4 → 1"),
        ({"work": {"steps": 4, "guidance": None}}, "guidance 1.5 → off"),
        ({"deliver": "device"}, "deliver host → device"),
        ({"pace": "realtime"}, "pace free → realtime"),
        ({"schedule": "overlap"}, ""),
        ({"gc": "on"}, ""),
        ({"work": {}}, ""),
    ],
)
def test_a_loop_of_different_work_is_not_compared(options, difference):
    """How work is run, and a value that one record lacks, are no different work."""
    assert different_work(loop(), loop(**options)) == difference
