"""Fixtures that run the main job, a search and the loop as a user does, in a folder outside the repository."""

from pathlib import Path

import pytest
from as_user import Outcome, outcome_of


@pytest.fixture
def profile(tmp_path):
    """Run the main job with `overrides`."""

    def run(*overrides: str, folder: Path | None = None, **extra: str) -> Outcome:
        return outcome_of(folder or tmp_path / "run", *overrides, cwd=tmp_path, variables=extra)

    return run


@pytest.fixture
def tune(tmp_path):
    """Search recipes with `overrides`."""

    def run(*overrides: str, folder: Path | None = None) -> Outcome:
        return outcome_of(folder or tmp_path / "tune", *overrides, target="tune", cwd=tmp_path)

    return run


@pytest.fixture
def realtime(tmp_path):
    """Run the loop with `overrides`, each time in a new folder."""
    count = 0

    def run(*overrides: str, folder: Path | None = None) -> Outcome:
        nonlocal count
        count += 1
        quick = ("device=cpu", "scale=tiny", "threads=1", "ceilings=off")
        folder = folder or tmp_path / f"realtime{count}"
        return outcome_of(folder, *overrides, target="realtime", quick=quick, cwd=tmp_path)

    return run
