"""The judge on many pairs at once, and on cells of two runs."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from profiling.results.judge import BETWEEN_RUNS, RESOLUTION, Answer, Cell, Pair, Spread, Windows, compare, judged

EQUAL = Spread(0.0025, 1e6)


def pair(ratio: float, error: float = 0.01) -> Pair:
    """A ratio whose logarithm has this standard error."""
    return Pair(float(np.log(ratio)), error**2, 1e6, 0.0, 1e6)


def answers(pairs: Mapping[Any, Pair], resolution: float = RESOLUTION, tests: int = 0) -> dict[Any, Answer]:
    return {name: each.answer(resolution=resolution) for name, each in judged(pairs, resolution, tests).items()}


def test_what_is_claimed_of_one_pair_is_not_claimed_of_one_among_many() -> None:
    likely = pair(1.025)
    assert answers({"v": likely}) == {"v": "slower"}
    among = {"v": likely, "far": pair(0.8), **{f"equal {n}": pair(1.0, 0.002) for n in range(18)}}
    found = answers(among)
    assert (found.pop("v"), found.pop("far"), set(found.values())) == ("undecided", "faster", {"same"})


def test_the_interval_beside_an_answer_is_the_one_that_it_was_given_by() -> None:
    """1.025 ± 0.02 excludes 1 alone; among 20 pairs that is not known, and the interval that is shown holds 1."""
    among = {"v": pair(1.025), "far": pair(0.8), **{f"equal {n}": pair(1.0, 0.002) for n in range(18)}}
    found = judged(among)
    low, high = found["v"].interval() or (0.0, 0.0)
    assert low < 1 < high
    assert (among["v"].interval() or (0.0, 0.0))[0] > 1
    assert found["equal 0"].interval() == among["equal 0"].interval()


@pytest.mark.parametrize(("taken", "wanted"), [(0.0, "over 10 times the time (seconds=)"), (0.5, "a quiet machine")])
def test_sixteen_times_the_time_is_more_than_a_run_can_give_and_others_are_named_first(
    taken: float, wanted: str
) -> None:
    assert Pair(float(np.log(1.05)), 0.1**2, 1e6, 0.0, 1e6, taken=taken).wants() == wanted


def test_pairs_that_were_chosen_from_more_count_as_all_of_them() -> None:
    assert answers({"v": pair(1.025)}, tests=10) == {"v": "undecided"}


def test_the_resolution_is_that_of_the_reader() -> None:
    assert [answers({0: pair(1.03, 0.002)}, resolution)[0] for resolution in (0.01, 0.05)] == ["slower", "same"]


@pytest.mark.parametrize("placements", [1, 10])
def test_more_processes_of_two_runs_do_not_remove_what_two_hosts_differ_by(placements: int) -> None:
    noise = np.random.default_rng(0).normal(1, 1e-4, (2, placements, 24))
    one, other = (Cell(tuple(Windows.of(ms.tolist()) for ms in run), EQUAL) for run in noise)
    low, high = compare(one, other).interval() or (1.0, 1.0)
    assert high - low > 2 * 1.9 * np.sqrt(2) * BETWEEN_RUNS


def test_an_undecided_pair_of_two_runs_wants_turns() -> None:
    windows = (Windows.of(np.random.default_rng(0).normal(1, 1e-3, 24).tolist(), session="x"),)
    one, other = Cell(windows, EQUAL), Cell((Windows.of([1.02] * 24),), EQUAL)
    assert compare(other, one).wants().endswith("times as many processes, in turns")
    assert compare(one, one).wants() == "2 times as many processes"


def test_a_process_without_common_turns_does_not_make_the_others_better_known() -> None:
    """A baseline stays for a second group of cells; its control took turns with the first group only."""
    noise = np.random.default_rng(0).normal(1, 1e-3, (3, 12))
    first, control, other = (
        Windows.of(ms.tolist(), range(start, start + 12), session="x")
        for ms, start in zip(noise, (12, 0, 12), strict=True)
    )
    alone = compare(Cell((other,), EQUAL), Cell((first,), EQUAL))
    assert compare(Cell((other,), EQUAL), Cell((first, control), EQUAL)) == alone
