"""The fixture that runs the main job as a user does."""

import subprocess
from pathlib import Path

import pytest
from as_user import Outcome, command, environment


@pytest.fixture
def profile(tmp_path):
    """Run the main job with `overrides` in a folder outside the repository."""

    def run(*overrides: str, folder: Path | None = None, **extra: str) -> Outcome:
        folder = folder or tmp_path / "run"
        done = subprocess.run(
            command(folder, *overrides), cwd=tmp_path, env=environment(**extra), capture_output=True, text=True
        )
        return Outcome(done.returncode, done.stdout, done.stderr, folder)

    return run


@pytest.fixture
def realtime(tmp_path):
    """Play the loop with `overrides` in a folder outside the repository."""
    count = 0

    def run(*overrides: str, folder: Path | None = None) -> Outcome:
        nonlocal count
        count += 1
        folder = folder or tmp_path / f"realtime{count}"
        start = command(
            folder, *overrides, target="realtime", quick=("device=cpu", "scale=tiny", "threads=1", "ceilings=off")
        )
        done = subprocess.run(start, cwd=tmp_path, env=environment(), capture_output=True, text=True)
        return Outcome(done.returncode, done.stdout, done.stderr, folder)

    return run
