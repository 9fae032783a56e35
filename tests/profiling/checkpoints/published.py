"""A repository with a manifest of its own, and a server that publishes the files of that manifest."""

from __future__ import annotations

from pathlib import Path

import yaml
from http_server import Remote, Server

from profiling.components.manifest import Entry, load_manifest, select


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
