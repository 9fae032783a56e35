"""The list of published checkpoint files (`checkpoints/manifest.yaml`), checked when it is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import yaml

from profiling.core.checkpoints.lock import SHA256, Locked, read_lock
from profiling.errors import InputError, did_you_mean

MANIFEST = Path(__file__).resolve().parents[3] / "checkpoints" / "manifest.yaml"
_REQUIRED = ("name", "components", "size_class", "path", "url")


@dataclass(frozen=True)
class Entry:
    """One published file: what is in it, where it is, where it goes, and what it must be.

    `file` is `path` on this machine; `locked` is what the lock file `lock` recorded for `name`, if anything.
    """

    name: str
    components: tuple[str, ...]
    size_class: str
    path: str
    url: str
    file: Path
    lock: Path
    given_sha256: str | None = None
    locked: Locked | None = None

    def __post_init__(self) -> None:
        """Raise InputError, naming the entry, when a field is wrong or manifest and lock file disagree."""
        for field in ("name", "size_class", "path", "url"):
            if not isinstance(getattr(self, field), str) or not getattr(self, field):
                raise InputError(f"'{self.name}': {field} must be a text, not {getattr(self, field)!r}")
        if not self.components or not all(isinstance(component, str) for component in self.components):
            raise InputError(f"'{self.name}': components must be a list of names")
        if urlsplit(self.url).scheme not in ("http", "https") or not urlsplit(self.url).hostname:
            raise InputError(f"'{self.name}': url must begin with https:// (or http://), not '{self.url}'")
        parts, folder = PurePosixPath(self.path).parts, self.lock.parent.name
        if len(parts) < 2 or parts[0] != folder or ".." in parts:
            raise InputError(f"'{self.name}': path must stay inside '{folder}/', not '{self.path}'")
        if self.given_sha256 and not SHA256.fullmatch(self.given_sha256):
            raise InputError(f"'{self.name}': sha256 must be 64 hexadecimal digits, not '{self.given_sha256}'")
        if self.given_sha256 and self.locked and self.given_sha256 != self.locked.sha256:
            raise InputError(
                f"'{self.name}': sha256 {self.given_sha256} disagrees with {self.locked.sha256} in '{self.lock}': "
                "remove the entry from the lock file to accept a file that was published anew"
            )

    @property
    def sha256(self) -> str | None:
        """The digest the file must have: the manifest's, else the lock file's, else None before the first download."""
        return self.given_sha256 or (self.locked.sha256 if self.locked else None)


@dataclass(frozen=True)
class Manifest:
    """All entries of a manifest file, in its order."""

    source: Path
    entries: tuple[Entry, ...]

    def select(self, names: Sequence[str]) -> tuple[Entry, ...]:
        """Pick entries by their names or by a component in them; no names means all.

        Raises InputError for a name that is neither, with what is near to it.
        """
        options = {name for entry in self.entries for name in (entry.name, *entry.components)}
        for name in names:
            if name not in options:
                known = ", ".join(entry.name for entry in self.entries)
                raise InputError(f"no checkpoint '{name}'.{did_you_mean(name, options)} There are: {known}")
        wanted = set(names)
        return tuple(entry for entry in self.entries if not wanted or wanted & {entry.name, *entry.components})

    def of_file(self, path: Path) -> Entry | None:
        """Find the entry whose file `path` is, or None when the manifest does not know it."""
        return next((entry for entry in self.entries if entry.file.resolve() == path.resolve()), None)


def load_manifest(source: Path = MANIFEST) -> Manifest:
    """Read a manifest and the `lock.yaml` beside it.

    Paths in it begin at the parent of the manifest's folder and stay inside that folder.
    Raises InputError when either file is missing, unreadable or wrong.
    """
    try:
        content = yaml.safe_load(source.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"manifest '{source}' does not exist: name one with --manifest PATH") from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InputError(f"manifest '{source}' cannot be read: {' '.join(str(error).split())}") from None
    raw_entries = content.get("files") if isinstance(content, dict) else None
    if not isinstance(raw_entries, list) or not raw_entries:
        raise InputError(f"manifest '{source}' must hold a list named 'files'")
    lock = source.resolve().with_name("lock.yaml")
    recorded = read_lock(lock)
    try:
        entries = tuple(_entry(raw, lock, recorded) for raw in raw_entries)
        _refuse_duplicates(entries)
    except InputError as error:
        raise InputError(f"manifest '{source}': {error}") from None
    return Manifest(source, entries)


def _entry(raw: Any, lock: Path, recorded: dict[str, Locked]) -> Entry:
    if not isinstance(raw, dict):
        raise InputError(f"each of 'files' must be a mapping, not {raw!r}")
    label = f"'{raw.get('name', '(no name)')}'"
    for key in _REQUIRED:
        if key not in raw:
            raise InputError(f"{label} lacks the key '{key}'")
    for key in raw:
        if key not in (*_REQUIRED, "sha256"):
            raise InputError(f"{label} has the unknown key '{key}'.{did_you_mean(str(key), (*_REQUIRED, 'sha256'))}")
    if not isinstance(raw["components"], list):
        raise InputError(f"{label}: components must be a list of names")
    fields = {key: raw[key] for key in ("name", "size_class", "url")}
    return Entry(
        **fields,
        path=str(raw["path"] or ""),
        components=tuple(raw["components"]),
        file=lock.parent.parent / str(raw["path"]),
        lock=lock,
        given_sha256=str(raw["sha256"]).lower() if raw.get("sha256") else None,
        locked=recorded.get(str(raw["name"])),
    )


def _refuse_duplicates(entries: Sequence[Entry]) -> None:
    for field in ("name", "path"):
        values = [getattr(entry, field) for entry in entries]
        for value in values:
            if values.count(value) > 1:
                raise InputError(f"two entries have the {field} '{value}'")
