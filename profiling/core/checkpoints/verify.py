"""Is a checkpoint file on disk the one that was published? Asked after a download, and again at every load."""

from __future__ import annotations

import hashlib
from pathlib import Path

from profiling.core.checkpoints.manifest import Entry
from profiling.errors import InputError


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, 64 hexadecimal digits. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch_command(entry: Entry) -> str:
    """Return what to type to download `entry`."""
    return f"python -m profiling.checkpoints {entry.name}"


def verify(entry: Entry) -> str:
    """Hash the file of `entry` and return the digest; before its first download there is nothing to compare with.

    Raises InputError when the file is missing, unreadable, or not the one recorded.
    """
    if not entry.file.is_file():
        problem = "is not a file" if entry.file.exists() else "is missing"
        raise InputError(f"checkpoint '{entry.path}' {problem}: type {fetch_command(entry)}")
    try:
        found = sha256_of(entry.file)
    except OSError as error:
        raise InputError(f"checkpoint '{entry.path}' cannot be read: {error.strerror}") from None
    if entry.sha256 is not None and found != entry.sha256:
        raise InputError(
            f"checkpoint '{entry.path}' is not the published file: its sha256 is {found}, {source_of(entry)} says "
            f"{entry.sha256}; it is left as it is: move it away, then type {fetch_command(entry)}"
        )
    return found


def source_of(entry: Entry) -> str:
    """Name the file that says what the digest must be."""
    return "the manifest" if entry.given_sha256 else f"'{entry.lock.name}'"
