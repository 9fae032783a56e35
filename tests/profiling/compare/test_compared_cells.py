"""Verdicts and exit codes on cells whose times are known; different work is never compared."""

import dataclasses
import re
import shutil
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from planted_runs import WRONG, cell, failed, loop, noisy, write_run

from profiling.compare.cells import compared_cells, different_work, exit_code, read_run
from profiling.history import read_history
from profiling.results.measured import Metrics, Prepare
from profiling.results.stats import summarize

T = 0.02
RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results"


@pytest.fixture
def runs(tmp_path):
    def make(a, b):
        return read_run(write_run(tmp_path / "a", *a)), read_run(write_run(tmp_path / "b", *b))

    return make


def pair(factor, *, turns="together", spread=0.002, n=24, **more):
    """A cell of 10 ms in A and one of `factor` times as long in B; `more` is of the latter."""
    one, other = (noisy(10 * ratio, seed=seed, spread=spread, n=n) for seed, ratio in ((1, 1), (2, factor)))
    return [cell(windows_ms=one, turns=turns)], [cell(windows_ms=other, turns=turns, **more)]


OTHERS = "38% of the CPU went to other processes in B"


#: Recipes that replace no kernel: what they run is the same in all committed runs, whose networks have not changed.
PLAIN = ("baseline", "compile", "compile+cuda_graph")


def test_equal_cells_of_committed_runs_are_not_called_different():
    runs = [read_run(path.parent) for path in sorted(RESULTS.glob("*/results.jsonl"))]
    compared = [cell for one, other in combinations(runs, 2) for cell in compared_cells(one, other)]
    found = [cell for cell in compared if cell.pair is not None and cell.variant in PLAIN]
    assert len(found) >= 20
    assert {cell.verdict for cell in found} <= {"same", "undecided"}, "compiled again, kernels may be others"


def test_other_inputs_are_other_work(tmp_path):
    one, two = (
        read_run(write_run(tmp_path / name, cell("v", noisy(ms), turns=name, inputs=inputs)))
        for name, ms, inputs in zip("ab", (8, 4), ("x 64×8", "x 4×8"), strict=True)
    )
    assert [len(points) for points in read_history(tmp_path).values()] == [1, 1]
    shutil.rmtree(tmp_path / "b")
    write_run(tmp_path / "b", cell("v", noisy(4), turns="b"))
    (series,) = read_history(tmp_path).values()
    assert len(series) == 2, "an upgrade does not end the series of records that do not have them"
    older = [replace(record, inputs=None) for record in two.records]
    (again,) = compared_cells(one, dataclasses.replace(two, records=tuple(older)))
    assert again.verdict == "faster", "a record without them is no other work"


@pytest.mark.parametrize(
    ("factor", "options", "verdict", "code", "reason"),
    [
        (1.005, {}, "same", 0, ""),
        (1.1, {}, "slower", 1, ""),
        (0.9, {}, "faster", 0, ""),
        (
            1.005,
            {"turns": ""},
            "undecided",
            2,
            "measuring both in turns would tell",
        ),  # two runs tell less than turns
        (1.1, {"turns": ""}, "slower", 1, ""),
        (1.0, {"spread": 0.2}, "undecided", 2, r".* times the windows would tell"),
        (0.992, {"spread": 0.02}, "undecided", 0, ".* would tell"),  # the same or faster
        (1.2, {"n": 3}, "undecided", 2, "more time would tell"),  # there is no interval
        (1.1, {"lost": 0.03}, "slower", 1, OTHERS.replace("38", "3")),
        (1.1, {"lost": 0.38}, "undecided", 2, f"a quiet machine would tell; {OTHERS}"),
        (3.0, {"lost": 0.38}, "slower", 1, OTHERS),
    ],
)
def test_a_known_factor_is_found_in_either_direction(runs, factor, options, verdict, code, reason):
    a, b = runs(*pair(factor, **options))
    (compared,) = compared_cells(a, b)
    assert (compared.verdict, exit_code([compared], T)) == (verdict, code)
    assert re.fullmatch(reason, compared.reason)
    low, high = compared.interval or (0, np.inf)
    assert low < factor < high
    assert (compared.interval is None) == ("n" in options)
    assert (compared.a_ms, compared.b_ms) == pytest.approx((10, 10 * factor), rel=0.15 if "spread" in options else 0.01)
    (back,) = compared_cells(b, a)
    assert back.pair.ratio == pytest.approx(1 / compared.pair.ratio)


@pytest.mark.parametrize(
    ("factor", "verdict", "codes"),
    [(1.03, "slower", {0.02: 1, 0.03: 2, 0.05: 0}), (1.004, "same", {0.0041: 2, 0.01: 0})],  # the same within 1%
)
def test_a_threshold_decides_which_slowdown_passes(runs, factor, verdict, codes):
    (compared,) = compared_cells(*runs(*pair(factor)))
    assert compared.verdict == verdict
    assert {threshold: exit_code([compared], threshold) for threshold in codes} == codes, compared.interval


def test_a_compiled_cell_of_two_runs_does_not_widen_the_limit_of_others(runs):
    once, other = (noisy(10, seed=seed) for seed in (3, 4))
    compiled = {"prepare": Prepare(seconds=1.0, graphs=1)}
    (eager,), (slower,) = pair(1.1, turns="")
    a = [eager, cell("w", once, turns="", **compiled)]
    of_eager, of_compiled = compared_cells(*runs(a, [slower, cell("w", other, turns="", **compiled)]))
    assert (of_eager.limit(), of_compiled.limit()) == (0.05, 0.15)
    assert of_eager.is_worse()
    assert not of_compiled.is_worse()
    assert exit_code([of_eager, of_compiled]) == 1
    assert exit_code([of_eager, of_compiled], 0.15) == 0


def test_a_run_compared_with_itself_is_the_same_however_noisy(runs):
    records = [cell("v", noisy(10, spread=0.2)), cell("w", noisy(3, n=2))]
    cells = compared_cells(*runs(records, records))
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
        ([V, replace(W, inputs="x 1")], [V, replace(W, inputs="x 2")], "different work: inputs x 1 → x 2", 2),
        ([V, replace(W, parameters=1)], [V, replace(W, parameters=2)], "", 0),  # in turns: what the change added
        ([V, W], [V, replace(W, parameters=7)], "", 0),
    ],
)
def test_a_cell_that_cannot_be_compared_has_a_reason(runs, a, b, reason, code):
    cells = compared_cells(*runs(a, b))
    assert cells[0].verdict == "same"
    if reason:
        assert reason in cells[1].reason
        assert (cells[1].verdict, cells[1].interval, cells[1].unmatched) == ("not compared", None, code == 2)
    assert exit_code(cells, T) == code


def test_loops_are_compared_by_their_windows_where_those_were_kept(runs):
    kept, bare = (replace(loop(ms), variant=name) for name, ms in (("kept", noisy(10, seed=1)), ("bare", ())))
    slower = replace(loop(noisy(30, seed=2)), variant="kept")
    compared, undecided = compared_cells(*runs([kept, bare], [slower, bare]))
    assert (compared.verdict, compared.pair.ratio) == ("slower", pytest.approx(3, rel=0.01))
    assert (undecided.verdict, undecided.reason) == ("undecided", "more time would tell")
    assert exit_code([undecided], T) == 2


def test_a_loop_of_different_work_is_not_compared():
    """How work is run, and a value that one record lacks, are no different work."""
    for options, difference in (
        ({"work": {"steps": 1, "guidance": 1.5}}, "steps 4 → 1"),
        ({"work": {"steps": 4, "guidance": None}}, "guidance 1.5 → off"),
        ({"deliver": "device"}, "deliver host → device"),
        ({"pace": "realtime"}, "pace free → realtime"),
        ({"schedule": "overlap"}, ""),
        ({"gc": "on"}, ""),
        ({"work": {}}, ""),
    ):
        assert different_work(loop(), loop(**options)) == difference, options
