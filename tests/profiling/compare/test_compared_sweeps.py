"""`python -m profiling.compare` of two sweeps, and sweeps in `python -m profiling.history`."""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from planted_runs import WRONG, cell, dated, noisy, write_run

from profiling.compare import output
from profiling.compare.__main__ import main
from profiling.compare.output import Comparison, compare_sweeps
from profiling.history import read_history
from profiling.results.sweep import Sweep, SweepJob, write_sweep


def sweep_of(
    folder: Path, jobs: Mapping[str, float | None], *, seed: int = 0, when: str = "2026-01-01", **records
) -> Path:
    """Write a sweep with a run of one cell for each job: its overrides, and the median of its windows in ms."""
    folder.mkdir(parents=True)
    planned = []
    for number, (words, p50) in enumerate(jobs.items()):
        planned.append(SweepJob(number=number, folder=str(number), overrides=tuple(words.split())))
        if p50 is not None:
            record = cell("compile", noisy(p50, seed=seed + number), **records)
            write_run(folder / str(number), record, environment=dated(f"{when}T00:00:0{number}+00:00"))
    plan = Sweep(target="generic_forward", launcher="local", began=when, argv=(), jobs=tuple(planned))
    write_sweep(folder, plan)
    return folder


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """A and B, whose jobs stand in another order; one is 20% slower in B, one is only in A and one only in B."""
    a = {"dtype=a frames=1 seed=0": 4.0, "dtype=a frames=2 seed=0": 8.0, "dtype=b frames=1 seed=0": 3.0}
    b = {"dtype=a frames=2 seed=9": 9.6, "dtype=a frames=1 seed=9": 4.0, "dtype=b frames=2 seed=9": 6.0}
    return sweep_of(tmp_path / "a", a), sweep_of(tmp_path / "b", b, seed=50)


def compared(a: Path, b: Path, glob: str | None = None) -> Comparison:
    return compare_sweeps((a, b), 0.05, glob)


def test_jobs_are_matched_by_the_overrides_that_differ(two: tuple[Path, Path]) -> None:
    found = {each.job: (each.verdict, each.reason) for each in compared(*two).cells}
    assert found == {
        "dtype=a frames=1": ("same", ""),
        "dtype=a frames=2": ("slower", ""),
        "dtype=b frames=1": ("not compared", "B: has no such job"),
        "dtype=b frames=2": ("not compared", "A: has no such job"),
    }


def test_one_table_of_verdicts_and_the_exit_code_of_runs(
    two: tuple[Path, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([*map(str, two), "--threshold", "0.05", "--html", str(tmp_path / "page.html")]) == 1
    out = capsys.readouterr().out
    assert "2 jobs in both, by dtype, frames." in out
    assert re.search(r"dtype=a frames=2\s+net\s+compile\s+8\.\d+\s+9\.\d+\s+1\.\d+ .*slower", out)
    assert "4 cells: 1 slower, 2 not compared, 1 same." in out
    assert out.startswith("B is slower than A by more than 5% in 1 cell (exit code 1).")
    assert "frames=2" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(("second", "code"), [({"n=1": 4.0, "n=2": 8.0}, 0), ({"n=1": 4.0, "n=2": None}, 2)])
def test_the_exit_code(tmp_path: Path, second: dict[str, float | None], code: int) -> None:
    a, b = sweep_of(tmp_path / "a", {"n=1": 4.0, "n=2": 8.0}), sweep_of(tmp_path / "b", second, seed=70)
    assert compared(a, b).exit_code == code


def test_equal_code_in_many_jobs_is_never_called_slower(tmp_path: Path) -> None:
    """Runs differ by 0.6% as equal code may: of 30 alone, one or two would be called so at 95%."""
    luck = np.random.default_rng(5).normal(1, 0.006, (2, 30))
    a, b = (
        sweep_of(tmp_path / name, {f"n={n}": 4.0 * float(luck[side, n]) for n in range(30)}, seed=500 * side)
        for side, name in enumerate("ab")
    )
    assert {each.verdict for each in compare_sweeps((a, b), 0.01).cells} == {"undecided"}


def test_a_sweep_and_a_run_are_refused_with_what_to_type(
    two: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", cell("compile", noisy(4.0)))
    assert main([str(run), str(two[1])]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{two[1]} is a sweep of 3 runs, and {run} is none" in line
    assert f"-m profiling.compare {run} {two[1] / '0'}" in line


def test_overrides_with_sweeps_are_refused(two: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*map(str, two), "dtype=float16"]) == 2
    assert "is a sweep. To compare sweeps, leave dtype=float16 out" in capsys.readouterr().err


def test_of_many_cells_the_slower_ones_come_first(
    two: tuple[Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "_CONSOLE", 1)
    assert main([*map(str, two), "--threshold", "0.05"]) == 1
    out = capsys.readouterr().out
    assert "3 of 4 rows are left out here." in out
    assert "frames=2" in out
    assert "dtype=b" not in out


def test_cells_of_a_glob(two: tuple[Path, Path]) -> None:
    found = compared(*two, "*.eager").cells
    assert all("no cell that matches" in each.reason or "has no such job" in each.reason for each in found)


def test_the_runs_of_sweeps_are_points_of_a_history(tmp_path: Path) -> None:
    jobs = {"component.net.inputs.frames=1 seed=0": 4.0, "component.net.inputs.frames=2 seed=0": 8.0}
    first = sweep_of(tmp_path / "one", jobs)
    second = sweep_of(tmp_path / "two", {key: 2.0 * (place + 1) for place, key in enumerate(jobs)}, when="2026-02-01")
    history = read_history(first, second)
    assert sorted(title.rpartition(" · ")[2] for title in history) == ["frames=1", "frames=2"]
    for title, series in history.items():
        assert [point.run for point in series] == [f"{name}/{int(title[-1]) - 1}" for name in ("one", "two")]
        assert series[1].vs_first.value == pytest.approx(2, rel=0.02)


def test_what_changes_the_recipe_stands_behind_the_variant(tmp_path: Path) -> None:
    jobs = {"variant.compile.mode=fast variant.other.x=1": 4.0, "variant.compile.mode=slow variant.other.x=2": 8.0}
    ((series),) = read_history(sweep_of(tmp_path / "s", jobs)).values()
    assert [point.variant for point in series] == ["compile, mode=fast", "compile, mode=slow"]


def test_a_wrong_run_of_a_sweep_is_no_point(tmp_path: Path) -> None:
    good, bad = sweep_of(tmp_path / "good", {"seed=0": 4.0}), sweep_of(tmp_path / "bad", {"seed=0": 1.0}, parity=WRONG)
    ((series),) = read_history(good, bad).values()
    assert [point.run for point in series] == ["good/0"]
