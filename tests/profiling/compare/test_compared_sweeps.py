"""Sweeps in `python -m profiling.history`, and refused by `python -m profiling.compare`."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from planted_runs import WRONG, cell, dated, noisy, write_run

from profiling.compare.__main__ import main
from profiling.history import read_history
from profiling.results.sweep import Sweep, SweepJob, write_sweep


def sweep_of(folder: Path, jobs: Mapping[str, float], *, when: str = "2026-01-01", **records) -> Path:
    """Write a sweep with a run of one cell for each job: its overrides, and the median of its windows in ms."""
    folder.mkdir()
    planned = []
    for number, (words, p50) in enumerate(jobs.items()):
        planned.append(SweepJob(number=number, folder=str(number), overrides=tuple(words.split())))
        record = cell("compile", noisy(p50, seed=number), **records)
        write_run(folder / str(number), record, environment=dated(f"{when}T00:00:0{number}+00:00"))
    plan = Sweep(target="generic_forward", launcher="local", began=when, argv=(), jobs=tuple(planned))
    write_sweep(folder, plan)
    return folder


def test_a_sweep_is_refused_with_what_to_type(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = (sweep_of(tmp_path / name, {"n=1": 4.0}) for name in "ab")
    for words in ([a / "0", b], [a, b]):
        assert main([*map(str, words)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "is a sweep. Name one of its runs" in line
        assert f"-m profiling.history {words[0]} {b}" in line


def test_the_runs_of_sweeps_are_points_of_a_history(tmp_path: Path) -> None:
    jobs = {"component.net.inputs.frames=1 seed=0": 4.0, "component.net.inputs.frames=2 seed=0": 8.0}
    first = sweep_of(tmp_path / "one", jobs)
    second = sweep_of(tmp_path / "two", {key: 2.0 * (place + 1) for place, key in enumerate(jobs)}, when="2026-02-01")
    history = read_history(first, second)
    assert sorted(title.rpartition(" · ")[2] for title in history) == ["frames=1", "frames=2"]
    for title, series in history.items():
        assert [point.run for point in series] == [f"{name}/{int(title[-1]) - 1}" for name in ("one", "two")]
        assert series[1].vs_first.value == pytest.approx(2, rel=0.02)


def test_what_changes_the_recipe_stands_behind_the_variant_and_a_wrong_run_is_no_point(tmp_path: Path) -> None:
    jobs = {"variant.compile.mode=fast variant.other.x=1": 4.0, "variant.compile.mode=slow variant.other.x=2": 8.0}
    good, bad = sweep_of(tmp_path / "good", jobs), sweep_of(tmp_path / "bad", {"seed=0": 1.0}, parity=WRONG)
    ((series),) = read_history(good, bad).values()
    assert [(point.run, point.variant) for point in series] == [
        *(("good/0", "compile, mode=fast"), ("good/1", "compile, mode=slow"))
    ]
