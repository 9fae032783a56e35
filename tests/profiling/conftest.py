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
