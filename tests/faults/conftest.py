"""Fixtures that run a target, as a user does or in this process, and the mark that these tests are slow."""

import importlib
import signal
import sys
from pathlib import Path

import pytest
from as_user import OUTSIDE, ROOT
from recorded_frames import make_recorder, planted  # noqa: F401 - fixtures
from swept import start_sweep  # noqa: F401 - a fixture
from user_fixtures import profile, realtime  # noqa: F401 - fixtures

from profiling.cli.app import launch


def pytest_collection_modifyitems(items):
    """Mark each test of this folder as slow: `make test-slow` and CI run them, `make test` does not."""
    for each in items:
        if each.path.is_relative_to(Path(__file__).parent):
            each.add_marker(pytest.mark.slow)


@pytest.fixture
def started(tmp_path, monkeypatch, capsys):
    """Run a target in this process, in an empty folder; return (exit code, error lines).

    `words` are the command line: a string is split at spaces. They replace those of `quick` with the same key.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    monkeypatch.syspath_prepend(str(OUTSIDE))
    monkeypatch.syspath_prepend(str(tmp_path))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}

    def start(words=(), *, target="generic_forward", config_dir=OUTSIDE, quick=(), run=None):
        words = words.split() if isinstance(words, str) else words
        given = {item.partition("=")[0].lstrip("+~") for item in words}
        defaults = [item for item in quick if item.partition("=")[0] not in given]
        monkeypatch.setattr(sys, "argv", ["-", f"--config-dir={config_dir}", *defaults, *words])
        if run is None:
            is_file = (ROOT / "profiling" / f"{target}.py").is_file()
            run = importlib.import_module(f"profiling.{target}" + ".__main__" * (not is_file)).run
        return launch(target, run), capsys.readouterr().err

    yield start
    for number, handler in handlers.items():
        signal.signal(number, handler)
