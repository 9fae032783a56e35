"""Reducing a run to what is committed: docs/results/thin.py."""

import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from profiling.report.run_data import load_run

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"


@pytest.fixture
def thin():
    spec = importlib.util.spec_from_file_location("thin", RESULTS / "thin.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.thin


@pytest.fixture
def run(tmp_path):
    """Return a run folder with two lines for each cell, of its begin and of its end, and a cut line of a killed run."""
    folder = Path(shutil.copytree(RESULTS / "h200_main", tmp_path / "run"))
    ended = (folder / "results.jsonl").read_text().splitlines()
    begun = [json.dumps({**json.loads(line), "status": "failed", "reason": "has not ended"}) for line in ended]
    (folder / "results.jsonl").write_text("\n".join([*begun, *ended, ended[0][:50]]) + "\n")
    environment = json.loads((folder / "environment.json").read_text())
    environment["command"] += " hydra.run.dir=/somewhere/run seconds=5"
    environment["variables"] = {"HOME": "/somewhere"}
    (folder / "environment.json").write_text(json.dumps(environment))
    return folder


def test_a_thinned_run_renders_as_before(thin, run, tmp_path):
    thin([run], tmp_path / "thinned")
    assert len((tmp_path / "thinned" / "results.jsonl").read_text().splitlines()) == 12
    assert load_run(tmp_path / "thinned").records == load_run(run).records


def test_the_environment_names_no_folder_of_the_machine(thin, run, tmp_path):
    thin([run], tmp_path / "thinned")
    text = (tmp_path / "thinned" / "environment.json").read_text()
    assert "/somewhere" not in text
    assert json.loads(text)["command"].endswith("generic_forward seconds=5")


def git(*words):
    return subprocess.run(["git", *words], cwd=RESULTS, capture_output=True, text=True)


@pytest.mark.skipif(git("rev-parse", "--is-shallow-repository").stdout != "false\n", reason="needs the whole history")
def test_results_name_a_clean_revision_of_this_history():
    code = {file.parent.name: json.loads(file.read_text())["tool_git"] for file in RESULTS.glob("*/environment.json")}
    named = re.findall(r"\| ([0-9a-f]{7}) \|$", (RESULTS / "README.md").read_text(), re.MULTILINE)
    assert len(named) > len(code), "each run and most tables name one"
    for revision in (*named, *(each["revision"] for each in code.values())):
        assert git("merge-base", "--is-ancestor", revision, "HEAD").returncode == 0, revision
    assert not [name for name, each in code.items() if each["dirty"]]
