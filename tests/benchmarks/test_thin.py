"""Reducing a run to what is committed: docs/results/thin.py."""

import importlib.util
import json
import shutil
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
    folder = Path(shutil.copytree(RESULTS / "h200_energy", tmp_path / "run"))
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
    assert len((tmp_path / "thinned" / "results.jsonl").read_text().splitlines()) == 9
    assert load_run(tmp_path / "thinned").records == load_run(run).records


def test_the_environment_names_no_folder_of_the_machine(thin, run, tmp_path):
    thin([run], tmp_path / "thinned")
    text = (tmp_path / "thinned" / "environment.json").read_text()
    assert "/somewhere" not in text
    assert json.loads(text)["command"].endswith("energy]' seconds=5")
