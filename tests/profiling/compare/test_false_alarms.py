"""How often the comparison is wrong, on noise of the H200 that the committed runs hold.

The noise goes through the timed loop itself, on a fake clock: how many samples there are is what the loop decides, with
the limits that a user has who names none.
"""

import numpy as np
import pytest
from planted_runs import cell, in_rounds, write_run
from stored_noise import stored_series

from profiling.compare.cells import compare_cells, exit_code
from profiling.compare.loaded_run import read_run
from profiling.metrics.sampling import Sample, SamplingLimits, collect

COMPARISONS = 40
#: Neighbouring samples that stay together: longer than the blocks that the comparison itself draws.
BLOCK = 10


def replay(series, rng):
    """Times without an end, with the noise and the trends of the stored ones."""
    while True:
        yield from series[(rng.integers(series.size) + np.arange(BLOCK)) % series.size]


def timed(series, rng, factor):
    """What the loop keeps of calls that take `factor` times as long as the stored ones."""
    times, now = replay(series, rng), [0.0]

    def take():
        wall = factor * next(times)
        now[0] += wall / 1e3
        return Sample(wall)

    samples, _ = collect(take, SamplingLimits(), lambda: now[0], lambda: None)
    return [sample.wall for sample in samples]


def run_of(folder, series, rng, *, rounds, slowdown=1.0, drift=0.0):
    times = [timed(series, rng, slowdown * (1 + drift * rng.standard_normal())) for _ in range(rounds)]
    record = cell(samples=list(np.concatenate(times)))
    return read_run(write_run(folder, in_rounds(record, *map(len, times)) if rounds > 1 else record))


@pytest.fixture
def compared(tmp_path):
    """Compare `COMPARISONS` pairs of runs, each of the noise of another stored cell."""

    def compare(**planted):
        every = [series for _, series in stored_series()]
        chosen = np.random.default_rng(7).permutation(len(every))[:COMPARISONS]
        found = []
        for index in chosen:
            rng = np.random.default_rng(int(index))
            drift, rounds = planted.get("drift", 0.0), planted["rounds"]
            a = run_of(tmp_path / f"a{index}", every[index], rng, rounds=rounds, drift=drift)
            b = run_of(tmp_path / f"b{index}", every[index], rng, **planted)
            found.append(compare_cells(a, b, 0.02))
        return found

    return compare


@pytest.mark.parametrize(("rounds", "drift"), [(1, 0.0), (5, 0.015)])
def test_equal_runs_are_called_different_at_most_twice_in_forty(compared, rounds, drift):
    found = compared(rounds=rounds, drift=drift)
    assert sum(cells[0].verdict in ("slower", "faster") for cells in found) <= 2
    assert sum(exit_code(cells, 0.02) == 1 for cells in found) <= 2


@pytest.mark.parametrize(("rounds", "least"), [(1, 36), (5, 38)])
def test_a_slowdown_of_three_percent_is_found_or_cannot_be_told(compared, rounds, least):
    """A few stored series jump between two times, by 2.5% to 30%: of these one round cannot tell, and says so.

    It may miss that of one: its 95% interval is that of the samples, and holds no jumps of the machine.
    """
    codes = [exit_code(cells, 0.02) for cells in compared(rounds=rounds, slowdown=1.03)]
    assert codes.count(1) >= least
    assert codes.count(0) <= (rounds == 1)


def test_without_rounds_drift_between_runs_is_taken_for_a_difference(compared):
    """The purpose of rounds: with one round per run, the same drift is a false alarm more often than 2 in 40."""
    found = compared(rounds=1, drift=0.015)
    assert sum(cells[0].verdict in ("slower", "faster") for cells in found) > 2
