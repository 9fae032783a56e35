"""Runs a function of a test module in a process of its own, whose Triton interprets kernels on the CPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def interpret(module, function):
    """Call `module.function()` in that process; a failure there fails the test."""
    pytest.importorskip("triton")
    paths = [str(ROOT), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(paths)}
    # Older versions of torch wrap compiled kernels only.
    code = f"import torch; torch.library.wrap_triton = lambda kernel: kernel; import {module} as m; m.{function}()"
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
