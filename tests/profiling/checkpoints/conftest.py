from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoint_repository import Published
from loopback import Loopback, serving


@pytest.fixture
def server(monkeypatch) -> Iterator[Loopback]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving() as server:
        yield server


@pytest.fixture
def published(tmp_path, server) -> Published:
    return Published(tmp_path, server)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that a user without rights can reach, which pytest's own folders are not."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)
