"""Fixtures that run the main job and the loop as a user does."""

from pathlib import Path

import pytest
from as_user import Outcome, command, finished


@pytest.fixture
def profile(tmp_path):
    """Run the main job with `overrides` in a folder outside the repository."""

    def run(*overrides: str, folder: Path | None = None, **extra: str) -> Outcome:
        folder = folder or tmp_path / "run"
        done = finished(command(folder, *overrides), tmp_path, **extra)
        return Outcome(done.returncode, done.stdout, done.stderr, folder)

    return run


@pytest.fixture
def tune(tmp_path):
    """Search recipes with `overrides` in a folder outside the repository."""

    def run(*overrides: str, folder: Path | None = None) -> Outcome:
        folder = folder or tmp_path / "tune"
        done = finished(command(folder, *overrides, target="tune"), tmp_path)
        return Outcome(done.returncode, done.stdout, done.stderr, folder)

    return run


@pytest.fixture
def realtime(tmp_path):
    """Run the loop with `overrides` in a folder outside the repository."""
    count = 0

    def run(*overrides: str, folder: Path | None = None) -> Outcome:
        nonlocal count
        count += 1
        folder = folder or tmp_path / f"realtime{count}"
        start = command(
            folder, *overrides, target="realtime", quick=("device=cpu", "scale=tiny", "threads=1", "ceilings=off")
        )
        done = finished(start, tmp_path)
        return Outcome(done.returncode, done.stdout, done.stderr, folder)

    return run
