"""A repository with a manifest of its own, and a server that publishes the files of that manifest."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from http_server import Remote, Server, serving

from profiling.components.manifest import Entry, load_manifest, select


def checkpoint(size: int, seed: int = 0) -> bytes:
    """Return a file of PyTorch's legacy format: five pickles (magic number, protocol, system, no weights) and noise."""
    head = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}.\x80\x02}.\x80\x02]."
    return head + random.Random(seed).randbytes(size - len(head))


class Published:
    """The repository in `root` and its server."""

    def __init__(self, root: Path, server: Server):
        self.root = root
        self.server = server
        self.manifest = root / "checkpoints" / "manifest.yaml"
        self.lock = root / "checkpoints" / "lock.yaml"
        self.manifest.parent.mkdir()
        self._files: list[dict] = []

    def publish(self, name: str, body: bytes, **more) -> Remote:
        remote = Remote(body)
        self.server.files[f"/{name}.pt"] = remote
        self._files.append(
            {
                "name": name,
                "components": [f"{name}_decoder", f"{name}_encoder"],
                "size_class": "1M",
                "path": f"checkpoints/vaes/{name}.pt",
                "url": f"{self.server.url}/{name}.pt",
            }
            | more
        )
        self.manifest.write_text(yaml.safe_dump({"files": self._files}))
        return remote

    def entry(self, name: str) -> Entry:
        """Read the entry anew, as a new process does."""
        (entry,) = select(load_manifest(self.manifest), [name])
        return entry

    def file(self, name: str) -> Path:
        return self.root / "checkpoints" / "vaes" / f"{name}.pt"

    def part(self, name: str) -> Path:
        return self.file(name).with_name(f"{name}.pt.part")

    def partial_files(self) -> list[str]:
        return sorted(path.name for path in self.root.rglob("*.part*"))


@pytest.fixture
def server(monkeypatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving() as server:
        yield server


@pytest.fixture
def published(tmp_path, server) -> Published:
    return Published(tmp_path, server)
