"""Rounds: one record of several, and an interval that the drift between them is in."""

from dataclasses import replace

import numpy as np
import pytest

from profiling.results.records import Record
from profiling.results.rounds import rounds_done, samples_by_round, with_round
from profiling.results.stats import ratio_interval, rounds_interval, summarize


def played(samples, **latency) -> Record:
    wall = {**summarize(samples).to_json(), "stopped_by": "interval"}
    metrics = {"wall_ms": wall, "latency": latency, "fps": {"mean": 3000 / wall["mean"], "min": 0.0, "max": 0.0}}
    return Record("t", "c", "v", "ok", metrics=metrics, frames_per_call=3, prepare={"seconds": samples[0]})


def test_the_record_of_two_rounds_holds_the_samples_of_both():
    first = with_round(None, played([1.0, 3.0], settled=True, descheduled=2, sm_clock_min_mhz=5), 1, 2)
    assert (rounds_done(first), len(first.rounds)) == (1, 1)
    second = played([5.0, 7.0, 9.0], settled=False, descheduled=3, sm_clock_min_mhz=4)
    both = Record.from_json(with_round(first, second, 2, 2).to_json())
    assert rounds_done(both) == 2
    wall = both.metrics["wall_ms"]
    assert (wall["n"], wall["p50"], wall["mean"], wall["samples"]) == (5, 5.0, 5.0, [1.0, 3.0, 5.0, 7.0, 9.0])
    assert [part["wall_ms"]["p50"] for part in both.rounds] == [2.0, 7.0]
    assert [part["prepare"]["seconds"] for part in both.rounds] == [1.0, 5.0]
    assert [list(samples) for samples in samples_by_round(both)] == [[1.0, 3.0], [5.0, 7.0, 9.0]]
    assert both.metrics["fps"] == pytest.approx({"mean": 600.0, "min": 3000 / 9, "max": 3000.0})
    assert both.metrics["latency"] == {"settled": False, "descheduled": 5, "sm_clock_min_mhz": 4}
    assert wall["ci95"][0] < 3 < 7 < wall["ci95"][1], "either round may be the one that is drawn"


def test_a_round_that_is_not_ok_is_what_the_cell_is():
    first = with_round(None, played([1.0, 3.0]), 1, 2)
    failed = replace(played([2.0]), status="failed", reason="planted")
    cell = with_round(first, failed, 2, 2)
    assert (cell.status, cell.reason, cell.rounds) == ("failed", "round 2 of 2: planted", None)
    assert cell.metrics == failed.metrics


def test_a_record_without_rounds_is_one():
    record = played([1.0, 2.0])
    assert rounds_done(record) == 1
    assert [list(samples) for samples in samples_by_round(record)] == [[1.0, 2.0]]
    assert samples_by_round(Record("t", "c", "v", "ok")) == ()


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
    assert narrow < 80, "samples alone do not know of the drift between rounds"


def test_equal_rounds_make_no_wider_an_interval_than_their_samples_give():
    samples = 10 + np.random.default_rng(0).standard_normal(300)
    together, apart = rounds_interval([samples]), rounds_interval(np.split(samples, 5))
    assert apart[1] - apart[0] < 1.8 * (together[1] - together[0])


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
