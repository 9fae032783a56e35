"""Energy in a comparison: a ratio with an interval, which no exit code depends on."""

import numpy as np
import pytest
from planted_runs import cell, noisy, write_run

from profiling.compare.loaded_run import read_run
from profiling.compare.output import compare_runs, compare_sweeps, comparison_text
from profiling.results.energy import Energy, EnergyWindow, energy_section
from profiling.results.sweep import Sweep, SweepJob, write_sweep


def energy_of(joules, *, windows=8, spread=0.005, seed=0):
    rng = np.random.default_rng(seed)
    each = [
        EnergyWindow(seconds=0.5, calls=(calls := 100.0 + number % 3), joules=float(joules * calls * (1 + noise)))
        for number, noise in enumerate(spread * rng.standard_normal(windows))
    ]
    return energy_section(each, idle_w=100.0)


def compared(tmp_path, a, b):
    cells = [cell("cuda_graph", noisy(5.0, seed=seed), turns="x", energy=energy) for seed, energy in enumerate((a, b))]
    return compare_runs(
        *(read_run(write_run(tmp_path / name, each)) for name, each in zip("AB", cells, strict=True)), 0.02
    )


@pytest.mark.parametrize(("joules", "verdict"), [(1.0, "undecided"), (1.04, "undecided"), (1.1, "more"), (0.7, "less")])
def test_equal_code_may_differ_by_some_percent(tmp_path, joules, verdict):
    comparison = compared(tmp_path, energy_of(1.0), energy_of(joules, seed=1))
    energy = comparison.cells[0].energy
    assert energy.verdict == verdict
    assert energy.pair.ratio == pytest.approx(joules, rel=0.01)
    low, high = energy.pair.interval()
    assert low < 0.96 * joules < 1.04 * joules < high
    assert comparison.exit_code == 0
    assert verdict in comparison_text(comparison, as_markdown=False).partition("Energy of a frame")[2]


@pytest.mark.parametrize(
    ("b", "verdict"),
    [
        (Energy(reason="the counter went back by 3 J"), "undecided: B: the counter went back by 3 J"),
        (energy_of(1.5, windows=4), "undecided"),
        (Energy(joules_per_call=2.0, joules_per_frame=2.0), "undecided: not measured in both"),
    ],
)
def test_what_cannot_be_compared(tmp_path, b, verdict):
    assert compared(tmp_path, energy_of(1.0), b).cells[0].energy.verdict == verdict


def test_a_run_without_energy_is_not_mentioned(tmp_path):
    comparison = compared(tmp_path, energy_of(1.0), None)
    assert comparison.cells[0].energy is None
    assert "Energy" not in comparison_text(comparison, as_markdown=True)


def test_the_energy_of_two_sweeps_is_compared_job_by_job(tmp_path):
    for name, factor in (("a", 1.0), ("b", 1.3)):
        folder, jobs = tmp_path / name, []
        folder.mkdir()
        for number, dtype in enumerate(("bfloat16", "float16")):
            jobs.append(SweepJob(number=number, folder=str(number), overrides=(f"dtype={dtype}",)))
            energy = energy_of(factor if number else 1.0, seed=number)
            write_run(
                folder / str(number), cell("cuda_graph", noisy(5.0, seed=int(10 * factor) + number), energy=energy)
            )
        write_sweep(folder, Sweep(target="generic_forward", launcher="local", began="", argv=(), jobs=tuple(jobs)))
    comparison = compare_sweeps((tmp_path / "a", tmp_path / "b"), 0.02)
    assert {each.job: each.energy.verdict for each in comparison.cells} == {
        "dtype=bfloat16": "undecided",
        "dtype=float16": "more",
    }
