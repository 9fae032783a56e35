"""`python -m profiling.compare` as a CI job calls it, on the committed runs and on copies with a planted change."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from planted_runs import ENVIRONMENT, cell, in_rounds, noisy, two_runs, write_run

from profiling.compare import command, output
from profiling.compare.__main__ import main
from profiling.report.table import WIDTH
from profiling.results.jsonl import RESULTS_FILE

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "docs" / "results"
WITHOUT = """
import runpy, sys
blocked, *arguments = sys.argv[1:]
for name in blocked.split(","):
    sys.modules[name] = None
sys.argv = ["compare", *arguments]
runpy.run_module("profiling.compare", run_name="__main__")
"""


def compare_without(blocked, *arguments):
    command = [sys.executable, "-c", WITHOUT, blocked, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


def edited(tmp_path, change, variant):
    """Return a copy of a committed run with `change` done to the record of `variant`."""
    run = tmp_path / "edited"
    shutil.copytree(RESULTS / "h200_training_step", run)
    lines = [json.loads(line) for line in (run / RESULTS_FILE).read_text().splitlines()]
    for line in lines:
        if line["variant"] == variant:
            change(line)
    (run / RESULTS_FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def slower(line):
    wall = line["metrics"]["wall_ms"]
    wall["samples"] = [1.04 * sample for sample in wall["samples"]]


def row(text, variant):
    return next(line for line in text.splitlines() if variant in line.split())


def test_a_committed_run_compared_with_itself_without_torch():
    run = RESULTS / "h200_world_model_step"
    done = compare_without("torch,triton,hydra,omegaconf", run, run / RESULTS_FILE)
    assert done.returncode == 0, done.stderr
    assert "do not differ" in done.stdout
    assert "(1) both runs hold the same samples" in done.stdout
    assert done.stdout.endswith("3 cells: 3 same.\nNo cell of B is slower than A by more than 2% (exit code 0).\n")


def test_a_slowdown_is_found_and_its_direction_known(tmp_path, capsys):
    run = edited(tmp_path, slower, "compile")
    committed = RESULTS / "h200_training_step" / RESULTS_FILE
    assert main([str(committed), str(run)]) == 1
    printed = capsys.readouterr().out
    assert "1.040" in row(printed, "compile")
    assert "slower" in row(printed, "compile")
    assert "same" in row(printed, "cuda_graph")
    assert printed.splitlines()[-1] == "B is slower than A by more than 2% in 1 cell (exit code 1)."
    assert main([str(run), str(committed)]) == 0
    assert "faster" in row(capsys.readouterr().out, "compile")
    assert main([str(committed), str(run), "--threshold", "0.05"]) == 0
    assert main([str(committed), str(run), "--cells", "*.cuda_graph"]) == 0


def test_a_cell_that_crashed_stops_ci(tmp_path, capsys):
    run = edited(tmp_path, lambda line: line.update(status="failed", reason="planted"), "compile")
    assert main([str(RESULTS / "h200_training_step"), str(run)]) == 2
    printed = capsys.readouterr().out
    assert "B is failed (planted)" in printed
    assert printed.splitlines()[-1].startswith("Cannot tell for ")


def test_runs_without_a_common_cell_say_that_nothing_was_compared(capsys):
    assert main([str(RESULTS / "h200_training_step"), str(RESULTS / "h200_launch_overhead")]) == 2
    assert "Nothing was compared" in capsys.readouterr().out.splitlines()[-1]


def test_possible_explanations_come_before_the_cells(tmp_path, capsys):
    run = edited(tmp_path, lambda line: line["prepare"].update(seconds=1000.0), "compile")
    path = run / "environment.json"
    path.write_text(path.read_text().replace('"driver": "', '"driver": "9'))
    assert main([str(RESULTS / "h200_training_step"), str(run), "--markdown"]) == 0
    printed = capsys.readouterr().out
    assert printed.index("versions.driver") < printed.index("### Cells") < printed.index("preparation (s)")
    assert "1000" in printed


@pytest.mark.parametrize("runs", [("h200_five_variants", "h200"), ("h200_realtime", "h200_realtime_overlap")])
def test_lines_fit_the_console(capsys, runs):
    main([str(RESULTS / name) for name in runs])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= WIDTH


def test_one_round_does_not_contain_drift(tmp_path, capsys):
    one, many = write_run(tmp_path / "a", cell(samples=noisy(1))), in_rounds(cell(samples=noisy(1, seed=3)), 50, 50)
    two, three = write_run(tmp_path / "b", many), write_run(tmp_path / "c", many)
    assert main([str(one), str(two), "--threshold", "0.05"]) == 0
    assert "One round" in capsys.readouterr().out
    assert main([str(two), str(three), "--threshold", "0.05"]) == 0
    assert "One round" not in capsys.readouterr().out


def test_fewer_passes_are_not_faster(tmp_path, capsys):
    """The committed loop with half the frame times: a gain, until the record says that it made half the passes."""
    runs = {"a": {"steps": 4}, "same": {}, "less": {"steps": 1}}
    for name, changed in runs.items():
        shutil.copytree(RESULTS / "h200_realtime", tmp_path / name)
        file = tmp_path / name / RESULTS_FILE
        records = [json.loads(line) for line in file.read_text().splitlines()]
        for record in records:
            record["realtime"] |= {"steps": 4, **changed}
            stem = f"{record['component']}.{record['variant']}"
            times = noisy(20 if name == "a" else 10, seed=len(name))
            (tmp_path / name / "cells").mkdir(exist_ok=True)
            np.savez(tmp_path / name / "cells" / f"{stem}.frames.npz", frame_ms=np.array(times))
        file.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert main([str(tmp_path / "a"), str(tmp_path / "same")]) == 0
    assert "2 faster" in capsys.readouterr().out
    assert main([str(tmp_path / "a"), str(tmp_path / "less")]) == 2
    printed = capsys.readouterr().out
    assert "different work: steps 4 → 1" in printed
    assert "2 not compared" in printed


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["{nothing}", "{run}"], "does not exist"),
        (["{run}", "{empty}"], "is no run"),
        (["{run}", "{text}"], "holds no record"),
        (["{run}", "{run}", "--threshold", "2"], "2%"),
        (["{run}", "{run}", "--cells", "nothing.*"], "There are: net.baseline"),
    ],
)
def test_wrong_input_is_one_line_and_code_two(tmp_path, capsys, arguments, error):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("no record\n")
    places = {name: tmp_path / name for name in ("nothing", "empty", "text")}
    places["run"] = write_run(tmp_path / "run", cell(samples=noisy(1)))
    assert main([argument.format(**places) for argument in arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert error in printed.err


def test_damage_is_reported_in_one_line_and_the_rest_is_compared(tmp_path, capsys):
    a, b = two_runs(tmp_path, threads="many")
    lines = [json.loads(line) for line in (b / RESULTS_FILE).read_text().splitlines()]
    lines[0]["metrics"]["wall_ms"]["samples"][3] = "1"
    (b / RESULTS_FILE).write_text("\n".join([*map(json.dumps, lines), '{"schema": 2, "target']))
    assert main([str(a), str(b)]) == 1
    printed = capsys.readouterr().out
    (line,) = [line for line in printed.splitlines() if line.startswith("B: ignored")]
    assert "1 line without a record and 2 damaged fields (net.unchanged: metrics.wall_ms.samples," in line
    assert "environment.json: threads" in printed
    assert "fewer than 6 samples were kept" in printed


@pytest.fixture
def runs(tmp_path):
    return [str(write_run(tmp_path / name, cell(samples=noisy(1)))) for name in "ab"]


def broken(*_):
    raise TypeError("planted\nin two lines")


def test_an_unexpected_error_is_one_line_and_never_exit_code_one(runs, capsys, monkeypatch):
    monkeypatch.setattr(output, "cell_changes", broken)
    assert main(runs) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert "TypeError: planted in two lines (test_compare_command.py:" in printed.err
    assert "--cells" in printed.err


@pytest.mark.parametrize(
    ("name", "error"),
    [("nowhere/page.html", "mkdir -p"), ("folder.html", "Name a file in it"), ("b/results.jsonl", "results.html")],
)
def test_a_page_that_cannot_be_written_there_is_refused_first(tmp_path, capsys, runs, name, error):
    (tmp_path / "folder.html").mkdir()
    before = (tmp_path / "b" / RESULTS_FILE).read_bytes()
    assert main([*runs, "--html", str(tmp_path / name)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert error in printed.err
    assert (tmp_path / "b" / RESULTS_FILE).read_bytes() == before


def full(*_):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("module", "name", "fault", "error"),
    [
        (command, "write_text", full, "No space left on device"),
        (output, "render_page", broken, "TypeError: planted in two lines"),
    ],
)
def test_a_page_that_fails_costs_neither_text_nor_exit_code(tmp_path, capsys, monkeypatch, module, name, fault, error):
    a, b = two_runs(tmp_path)
    monkeypatch.setattr(module, name, fault)
    assert main([str(a), str(b), "--html", str(tmp_path / "page.html")]) == 1
    printed = capsys.readouterr()
    assert "(exit code 1)" in printed.out
    assert error in printed.err
    assert len(printed.err.splitlines()) == 1
    assert not (tmp_path / "page.html").exists()


def test_the_text_needs_neither_jinja2_nor_plotly(tmp_path):
    a, b = two_runs(tmp_path)
    done = compare_without("torch,plotly,jinja2", a, b, "--html", tmp_path / "page.html")
    assert done.returncode == 1
    assert "(exit code 1)" in done.stdout
    assert re.search(r"error: .*page\.html was not written: \w+ is not installed\. .* -m pip install", done.stderr)
    assert len(done.stderr.splitlines()) == 1


def test_every_environment_is_read(tmp_path, capsys):
    """A value of another type anywhere in it is ignored, and the cells are compared."""
    one = str(write_run(tmp_path / "whole", cell(samples=noisy(1))))
    for number, key in enumerate(ENVIRONMENT):
        for place, junk in enumerate(("text", 5, None, [1, 2], {}, True)):
            environment = {**ENVIRONMENT, key: junk}
            other = write_run(tmp_path / f"{number}_{place}", cell(samples=noisy(1)), environment=environment)
            assert main([one, str(other)]) == 0, (key, junk)
            assert capsys.readouterr().err == ""
