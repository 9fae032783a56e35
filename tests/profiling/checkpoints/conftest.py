from __future__ import annotations

from collections.abc import Iterator

import pytest
from http_server import Server, serving
from published import Published


@pytest.fixture
def server(monkeypatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving() as server:
        yield server


@pytest.fixture
def published(tmp_path, server) -> Published:
    return Published(tmp_path, server)
