"""A small repository with a manifest of its own, and the helpers of these tests."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from loopback import Loopback, Remote

from profiling.core.checkpoints.manifest import Entry, load_manifest


class Published:
    """A repository in a folder of its own and a server that publishes the files of its manifest."""

    def __init__(self, root: Path, server: Loopback):
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
        """Read anew, as a new process would."""
        (entry,) = load_manifest(self.manifest).select([name])
        return entry

    def file(self, name: str) -> Path:
        return self.root / "checkpoints" / "vaes" / f"{name}.pt"

    def leftovers(self) -> list[str]:
        return sorted(path.name for path in self.root.rglob("*.part*"))


@contextmanager
def without_rights() -> Iterator[None]:
    """Permissions bind everyone but root: be nobody for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def some_bytes(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
