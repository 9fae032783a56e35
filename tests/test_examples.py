"""The examples run as they are, at their tiny size on a CPU, and leave what they promise."""

import os
import sys
from pathlib import Path

import pytest
from warm_process import run_warm

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "docs" / "examples"
#: Of each example, what it prints and the run that it saves.
EXPECTED = {
    "profile_module": ("60 FPS: ", "runs/decoder"),
    "use_prepared_step": ("it was prepared for float32 [1, 64]", None),
    "own_metric": ("clipped: {'share': 0.", None),
    "record_frames": ("Stage budget, medians", "runs/my_loop"),
}


@pytest.mark.parametrize("example", sorted(path.stem for path in EXAMPLES.glob("*.py")))
def test_an_example_runs(example, tmp_path):
    printed, run = EXPECTED[example]
    variables = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{EXAMPLES}", "CUDA_VISIBLE_DEVICES": ""}
    done = run_warm([sys.executable, "-m", example], cwd=tmp_path, env=variables)
    assert done.returncode == 0, done.stderr
    assert printed in done.stdout
    assert run is None or (tmp_path / run / "report.html").is_file()
