"""Energy in a comparison: a ratio with an interval and a verdict, which no exit code depends on."""

import numpy as np
import pytest
from planted_runs import cell, noisy, write_run

from profiling.compare import output
from profiling.compare.__main__ import main
from profiling.compare.loaded_run import read_run
from profiling.compare.sweeps import SweepComparison
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
    cells = [cell("cuda_graph", noisy(5.0, seed=seed), energy=energy) for seed, energy in enumerate((a, b))]
    runs = [read_run(write_run(tmp_path / name, each)) for name, each in zip("AB", cells, strict=True)]
    return output.Comparison(*runs, threshold=0.02)


@pytest.mark.parametrize(
    ("joules", "verdict"), [(1.0, "same"), (1.02, "same"), (1.2, "more"), (0.7, "less"), (1.055, "more")]
)
def test_verdicts(tmp_path, joules, verdict):
    comparison = compared(tmp_path, energy_of(1.0), energy_of(joules, seed=1))
    (energy,) = comparison.energy
    assert energy.verdict == verdict
    assert energy.ratio == pytest.approx(joules, rel=0.01)
    low, high = energy.interval
    assert low < energy.ratio < high
    assert comparison.exit_code == 0
    text = output.comparison_text(comparison, as_markdown=False)
    assert "Energy of a frame" in text
    assert verdict in text.partition("Energy of a frame")[2]


def test_noisy_windows_cannot_tell(tmp_path):
    comparison = compared(tmp_path, energy_of(1.0, spread=0.2), energy_of(1.1, spread=0.2, seed=1))
    assert comparison.energy[0].verdict == "cannot tell"


@pytest.mark.parametrize(
    ("b", "reason"),
    [
        (Energy(reason="the driver's energy counter went back by 3 J"), "B: the driver's energy counter went back"),
        (energy_of(1.5, windows=4), "too few windows"),
        (Energy(joules_per_call=2.0, joules_per_frame=2.0), "not measured in both"),
    ],
)
def test_what_cannot_be_compared(tmp_path, b, reason):
    (energy,) = compared(tmp_path, energy_of(1.0), b).energy
    assert energy.verdict == "cannot tell"
    assert reason in energy.reason
    assert energy.interval is None


def test_a_run_without_energy_is_not_mentioned(tmp_path):
    comparison = compared(tmp_path, energy_of(1.0), None)
    assert comparison.energy == ()
    assert "Energy" not in output.comparison_text(comparison, as_markdown=True)


def test_the_energy_of_two_sweeps_is_compared_job_by_job(tmp_path, capsys):
    for name, factor in (("a", 1.0), ("b", 1.3)):
        folder, jobs = tmp_path / name, []
        folder.mkdir()
        for number, dtype in enumerate(("bfloat16", "float16")):
            jobs.append(SweepJob(number=number, folder=str(number), overrides=(f"dtype={dtype}",)))
            energy = energy_of(factor if number else 1.0, seed=number)
            write_run(folder / str(number), cell("cuda_graph", noisy(5.0, seed=number), energy=energy))
        write_sweep(folder, Sweep(target="generic_forward", launcher="local", began="", argv=(), jobs=tuple(jobs)))
    comparison = SweepComparison(tmp_path / "a", tmp_path / "b", 0.02)
    assert [(each.job, each.verdict) for each in comparison.energy] == [
        ("dtype=bfloat16", "same"),
        ("dtype=float16", "more"),
    ]
    (tmp_path / "pair").mkdir()
    single = compared(tmp_path / "pair", energy_of(1.0, seed=1), energy_of(1.3, seed=1)).energy[0]
    wide, narrow = (each.interval[1] - each.interval[0] for each in (comparison.energy[1], single))
    assert wide > narrow, "widened for the cells of both jobs"
    assert main([str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert "Energy of a frame" in capsys.readouterr().out
