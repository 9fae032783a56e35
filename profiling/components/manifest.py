"""The published checkpoint files: listed in `checkpoints/manifest.yaml`, their SHA-256 in `checkpoints/lock.yaml`.

The publisher gives no digests. `lock.yaml` therefore records the digest of each file at its first download and is
committed; later downloads, and loads, are checked against it. This module does not import torch.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

import msgspec

from profiling.errors import InputError, python_command

MANIFEST = Path(__file__).resolve().parents[2] / "checkpoints" / "manifest.yaml"


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A published file: the components that use it, its place on this machine, its source, and its digest if known."""

    name: str
    components: tuple[str, ...]
    path: Path
    url: str
    sha256: str | None = None

    @property
    def download_command(self) -> str:
        """The shell command that downloads it."""
        return f"{python_command()} -m profiling.checkpoints {self.name}"


class _Manifest(msgspec.Struct, forbid_unknown_fields=True):
    files: tuple[Entry, ...]


def load_manifest(manifest: Path = MANIFEST) -> tuple[Entry, ...]:
    """Return the entries of a manifest, in file order, with the digests in the `lock.yaml` beside it.

    Paths in a manifest are relative to the parent of its folder. Raises InputError when either file is invalid.
    """
    lock, file = manifest.with_name("lock.yaml"), manifest
    try:
        root = manifest.resolve().parents[1]
        files = msgspec.yaml.decode(file.read_bytes(), type=_Manifest, dec_hook=lambda _, path: root / path).files
        file = lock
        digests = msgspec.yaml.decode(lock.read_bytes(), type=dict[str, str] | None) if lock.exists() else None
    except (OSError, ValueError) as error:
        raise InputError(f"'{file}' is invalid: {error}") from None
    return tuple(msgspec.structs.replace(item, sha256=(digests or {}).get(item.name, item.sha256)) for item in files)


def check_digest(entry: Entry, file: Path) -> str:
    """Return the SHA-256 of `file`, 64 hexadecimal digits. Raises InputError when `entry` requires another one."""
    sha256 = _digest(file, file.stat().st_size, file.stat().st_mtime_ns)
    if entry.sha256 not in (None, sha256):
        raise InputError(
            f"'{file}' is not the published file: its sha256 is {sha256}, and checkpoints/lock.yaml requires "
            f"{entry.sha256}. Move it away and run: {entry.download_command}. If a new version was published, first "
            f"remove the line of {entry.name} from lock.yaml"
        )
    return sha256


@functools.lru_cache  # a cell loads the weights twice: for the fp32 reference and for the measured module
def _digest(file: Path, _size: int, _modified_ns: int) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
