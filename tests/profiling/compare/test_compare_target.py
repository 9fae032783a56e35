"""`python -m profiling.compare` as a CI job calls it, on the committed runs and on copies with a planted change."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hand_made import cell, noisy, write_run

from profiling.compare import main

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "docs" / "results"
WITHOUT_TORCH = """
import runpy, sys
for name in ("torch", "triton", "hydra", "omegaconf"):
    sys.modules[name] = None
sys.argv = ["compare", *sys.argv[1:]]
runpy.run_module("profiling.compare", run_name="__main__")
"""


def edited(tmp_path, change, variant):
    """Return a copy of a committed run with `change` done to the record of `variant`."""
    run = tmp_path / "edited"
    shutil.copytree(RESULTS / "h200_training_step", run)
    lines = [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]
    for line in lines:
        if line["variant"] == variant:
            change(line)
    (run / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def slower(line):
    wall = line["metrics"]["wall_ms"]
    wall["samples"] = [1.04 * sample for sample in wall["samples"]]


def row(text, variant):
    return next(line for line in text.splitlines() if variant in line.split())


def test_a_committed_run_against_itself_without_torch():
    run = str(RESULTS / "h200_world_model_step")
    command = [sys.executable, "-c", WITHOUT_TORCH, run, f"{run}/results.jsonl"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "Nothing that is known differs" in done.stdout
    assert done.stdout.count("the same samples") == 3
    assert "3 same" in done.stdout


def test_a_slowdown_is_found_and_its_direction_known(tmp_path, capsys):
    run = edited(tmp_path, slower, "compile")
    committed = RESULTS / "h200_training_step" / "results.jsonl"
    assert main([str(committed), str(run)]) == 1
    printed = capsys.readouterr().out
    assert "1.040×" in row(printed, "compile")
    assert "slower" in row(printed, "compile")
    assert "same" in row(printed, "cuda_graph")
    assert main([str(run), str(committed)]) == 0
    assert "faster" in row(capsys.readouterr().out, "compile")
    assert main([str(committed), str(run), "--threshold", "0.05"]) == 0
    assert main([str(committed), str(run), "--cells", "*.cuda_graph"]) == 0


def test_a_cell_that_crashed_stops_ci(tmp_path, capsys):
    run = edited(tmp_path, lambda line: line.update(status="failed", reason="planted"), "compile")
    assert main([str(RESULTS / "h200_training_step"), str(run)]) == 2
    assert "B is failed (planted)" in capsys.readouterr().out


def test_what_could_explain_it_stands_before_the_cells(tmp_path, capsys):
    run = edited(tmp_path, lambda line: line["prepare"].update(seconds=1000.0), "compile")
    path = run / "environment.json"
    path.write_text(path.read_text().replace('"driver": "', '"driver": "9'))
    assert main([str(RESULTS / "h200_training_step"), str(run), "--markdown"]) == 0
    printed = capsys.readouterr().out
    assert printed.index("versions.driver") < printed.index("### Cells") < printed.index("prepare s")
    assert "1000" in printed


def test_rounds_change_what_is_said_of_drift(tmp_path, capsys):
    rounds = tuple({"wall_ms": {"n": 50}} for _ in range(2))
    one, many = write_run(tmp_path / "a", cell(samples=noisy(1))), cell(samples=noisy(1, seed=3), rounds=rounds)
    two, three = write_run(tmp_path / "b", many), write_run(tmp_path / "c", many)
    assert main([str(one), str(two)]) == 0
    assert "One round" in capsys.readouterr().out
    assert main([str(two), str(three)]) == 0
    assert "One round" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["{nothing}", "{run}"], "does not exist"),
        (["{run}", "{empty}"], "is no run"),
        (["{run}", "{text}"], "holds no record"),
        (["{run}", "{run}", "--threshold", "2"], "2%"),
        (["{run}", "{run}", "--cells", "nothing.*"], "There are: net.baseline"),
    ],
)
def test_what_cannot_be_read_is_one_line_and_code_two(tmp_path, capsys, arguments, told):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("no record\n")
    places = {name: tmp_path / name for name in ("nothing", "empty", "text")}
    places["run"] = write_run(tmp_path / "run", cell(samples=noisy(1)))
    assert main([argument.format(**places) for argument in arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert told in printed.err
