"""Sweeps, read."""

import json
from pathlib import Path

import pytest
from make_record import record
from table import promise

import profiling.compare.__main__ as compare
import profiling.report.__main__ as report
from profiling.results.jsonl import append_record
from profiling.results.sweep import SWEEP_FILE, Sweep, SweepJob, write_sweep


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Three jobs; the second took 4 ms a call."""
    folder = tmp_path / "sweep"
    for number in range(3):
        (folder / str(number)).mkdir(parents=True)
        append_record(folder / str(number), record(p50=3.0 + number))
        (folder / str(number) / "environment.json").write_text('{"device": {"type": "cuda", "name": "GPU"}}')
    jobs = tuple(SweepJob(number=n, folder=str(n), overrides=(f"seed={n}",)) for n in range(3))
    plan = Sweep(target="generic_forward", launcher="local", began="2026-01-02T03:04:05+00:00", argv=(), jobs=jobs)
    write_sweep(folder, plan)
    return folder


@promise("damaged sweep")
@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("0/results.jsonl", '{"schema": 99}\n', "cannot be read"),
        ("0/results.jsonl", "no record\n", "results.jsonl: 1 damaged or cut-off line skipped"),
        ("0/environment.json", "[", "environment.json is damaged"),
    ],
)
def test_damage_in_one_run_costs_that_run(sweep, file, text, words, capsys):
    (sweep / file).write_text(text)
    assert report.main([str(sweep)]) == 0
    out = capsys.readouterr().out
    line = next(line for line in out.splitlines() if line.startswith("job 0 (seed=0)"))
    assert words in line
    assert "4.000" in out
    assert (sweep / "report.html").stat().st_size


@promise("damaged sweep")
def test_a_cut_off_plan(sweep, capsys):
    (sweep / SWEEP_FILE).write_text('{"schema": 1, "jobs"')
    assert report.main([str(sweep)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert report.main([str(sweep / "1")]) == 0


@promise("damaged sweep")
def test_a_folder_outside(sweep, capsys):
    plan = json.loads((sweep / SWEEP_FILE).read_text())
    plan["jobs"][0]["folder"] = "../elsewhere"
    (sweep / SWEEP_FILE).write_text(json.dumps(plan))
    assert report.main([str(sweep)]) == 0
    assert "../elsewhere lies outside of the sweep" in capsys.readouterr().out


@promise("sweep option")
def test_what_only_runs_have(sweep, capsys):
    assert report.main([str(sweep), "--format", "junit"]) == 2
    assert "--format junit is of a run" in capsys.readouterr().err
    assert not (sweep / "report.md").exists()
    assert compare.main([str(sweep / "0"), str(sweep)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "-m profiling.history" in line
