"""Fetch one published file: nothing stands under its final name before its size and its sha256 are right."""

from __future__ import annotations

from pathlib import Path

from profiling.core.checkpoints.claim import claim, replace
from profiling.core.checkpoints.lock import Locked, record
from profiling.core.checkpoints.manifest import Entry
from profiling.core.checkpoints.part import Part
from profiling.core.checkpoints.transfer import DownloadError, Patience, Say, Tick, transfer
from profiling.core.checkpoints.verify import fetch_command, sha256_of, source_of, verify
from profiling.errors import InputError


def download(
    entry: Entry,
    tick: Tick = lambda done, total: None,
    say: Say = lambda line: None,
    patience: Patience | None = None,
) -> str:
    """Make the file of `entry` be there, whole and checked, and return what was done in a few words.

    `tick` hears the bytes here and in all as they come, `say` a line when something has to be waited for.
    Raises InputError when a file with another sha256 is there or arrives, DownloadError when the network, the server
    or the disk fails (what had arrived is kept and gone on with at the next call).
    """
    if entry.file.exists():
        return _already_there(entry)
    part: Part | None = None
    path = entry.file.with_name(entry.file.name + ".part")
    try:
        entry.file.parent.mkdir(parents=True, exist_ok=True)
        with claim(path, lambda: say("another process is downloading it, waiting")) as file:
            part = Part(path, file)
            try:
                if entry.file.exists():  # that other process was faster
                    return _already_there(entry)
                return _fetch(entry, part, tick, say, patience or Patience())
            finally:
                if not part.size:
                    part.discard()
    except OSError as error:
        raise DownloadError(_disk_message(entry, error, part)) from None


def _fetch(entry: Entry, part: Part, tick: Tick, say: Say, patience: Patience) -> str:
    try:
        transfer(entry.url, part, tick, say, patience)
    except DownloadError as error:
        raise DownloadError(f"{error}; to try again, type {fetch_command(entry)}") from None
    part.flush()
    size, sha256 = part.size, sha256_of(part.path)
    if entry.sha256 is not None and sha256 != entry.sha256:
        part.restart(None)
        raise InputError(
            f"what {entry.url} sent has sha256 {sha256}, {source_of(entry)} says {entry.sha256}; it was thrown away: "
            f"type {fetch_command(entry)} to try again, or remove the recorded sha256 if the file was published anew"
        )
    # Before the final name: a crash in between leaves a whole part, never a file that nothing vouches for.
    record(entry.lock, entry.name, Locked(sha256, size))
    replace(part.path, entry.file)
    part.forget_version()
    return f"downloaded, {_mib(size)}, sha256 {'checked' if entry.sha256 else 'recorded in ' + entry.lock.name}"


def _already_there(entry: Entry) -> str:
    sha256 = verify(entry)
    if entry.sha256 is not None:
        return "ok, not downloaded"
    try:
        new = record(entry.lock, entry.name, Locked(sha256, entry.file.stat().st_size))
    except OSError as error:
        raise DownloadError(f"cannot write '{entry.lock}': {error.strerror}") from None
    return "ok, not downloaded" + (f"; sha256 recorded in {entry.lock.name}" if new else "")


def _disk_message(entry: Entry, error: OSError, part: Part | None) -> str:
    where = error.filename or (part.path if part else entry.file)
    message = f"cannot write '{_short(Path(where), entry)}': {error.strerror}"
    if part is not None and part.total is not None:
        have = part.path.stat().st_size if part.path.exists() else 0
        message += f"; the file needs {_mib(part.total)}, {_mib(have)} of it are here and kept"
    return f"{message}; make room or give the permission, then type {fetch_command(entry)}"


def _short(where: Path, entry: Entry) -> Path:
    root = entry.lock.parent.parent
    return where.relative_to(root) if where.is_relative_to(root) else where


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
