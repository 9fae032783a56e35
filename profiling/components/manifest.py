"""The published checkpoint files: listed in `checkpoints/manifest.yaml`, recorded in `lock.yaml`, verified by SHA-256.

The publisher gives no digests. `lock.yaml` therefore records the digest of each file at its first download, is
committed, and every later download and load is checked against it. This module does not import torch.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
import yaml
from msgspec import Meta
from yaml.composer import ComposerError

from profiling.errors import InputError, did_you_mean, printable, python_command
from profiling.results.run_folder import write_text

MANIFEST = Path(__file__).resolve().parents[2] / "checkpoints" / "manifest.yaml"
_LOCK_HEADER = """\
# sha256 and size in bytes of each file in manifest.yaml, recorded at its first download and checked ever after.
# Commit this file. Remove an entry only to accept a new version of a published file.
"""
_MOST_BYTES = 256 * 1024  # of a manifest or lock file: some thousand entries
_LONGEST_PART = 240  # bytes of a file's or folder's name: most file systems allow 255, `.part.etag` is appended
_Text = Annotated[str, Meta(pattern=r"\A[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,200}\Z")]
_Sha256 = Annotated[str, Meta(pattern="^[0-9a-fA-F]{64}$")]


class Locked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file at its first download: SHA-256 (64 hexadecimal digits) and size in bytes."""

    sha256: _Sha256
    size: Annotated[int, Meta(gt=0)]


class _LockFile(msgspec.Struct, forbid_unknown_fields=True):
    files: dict[str, Locked] | None = None


class _Listed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}\Z")]  # part of a command and a file name
    components: Annotated[tuple[_Text, ...], Meta(min_length=1)]
    size_class: _Text
    path: Annotated[str, Meta(min_length=1, max_length=1000)]
    url: Annotated[str, Meta(pattern=r"\Ahttps?://[^/\s]+/[^\s\x00-\x1f\x7f]*\Z", max_length=2000)]
    sha256: _Sha256 | None = None


class _ManifestFile(msgspec.Struct, forbid_unknown_fields=True):
    files: Annotated[list[_Listed], Meta(min_length=1)]


class Entry(_Listed, frozen=True, kw_only=True):
    """A published file: its name, the components whose weights it holds, its source and its destination.

    `path` is relative to the repository root, `file` is the full path on this machine. `sha256` is the required digest,
    or None before the first download; `sha256_source` names the file that requires it.
    """

    file: Path
    lock: Path
    sha256_source: str

    @property
    def download_command(self) -> str:
        """The shell command that downloads this file."""
        return f"{python_command()} -m profiling.checkpoints {self.name}"


def select(entries: Sequence[Entry], names: Sequence[str]) -> tuple[Entry, ...]:
    """Return the entries with these names or with these components; all entries if `names` is empty.

    Raises InputError for an unknown name, with similar known names.
    """
    known = {name for entry in entries for name in (entry.name, *entry.components)}
    for name in names:
        if name not in known:
            listed = ", ".join(entry.name for entry in entries)
            raise InputError(f"no checkpoint '{name}'.{did_you_mean(name, known)} There are: {listed}")
    wanted = set(names)
    return tuple(entry for entry in entries if not wanted or wanted & {entry.name, *entry.components})


def load_manifest(source: Path = MANIFEST) -> tuple[Entry, ...]:
    """Return the entries of a manifest, in file order, with the digests and sizes in the `lock.yaml` beside it.

    Paths in a manifest are relative to the parent of its folder.

    Raises InputError when either file is unreadable or invalid, or when they disagree about a digest.
    """
    try:
        if not source.exists():
            raise InputError(f"manifest '{source}' does not exist: name one with --manifest PATH")
        listed = msgspec.convert(_read_yaml(source), _ManifestFile).files
        for field in ("name", "path"):
            _check_distinct(field, [getattr(item, field) for item in listed])
        lock = source.resolve().with_name("lock.yaml")
        recorded = read_lock(lock)
        entries = tuple(_entry(item, lock, recorded.get(item.name)) for item in listed)
        own = {file.name.casefold() for file in (source, source.resolve(), lock)}
        for entry in entries:
            if PurePosixPath(entry.path).parts[1].casefold() in {*own, ".locks"}:
                raise ValueError(f"'{entry.name}': path '{entry.path}' is a file that the downloads themselves use")
        return entries
    except (OSError, ValueError) as error:
        raise InputError(f"manifest '{source}' is invalid: {error}") from None


def _check_distinct(field: str, values: Sequence[str]) -> None:
    """Raise a ValueError for two equal values; some file systems do not distinguish upper and lower case."""
    first: dict[str, str] = {}
    for value in values:
        other = first.setdefault(value.casefold(), value)
        if other is not value:
            case = "" if other == value else f" and '{other}', which differ only in case"
            raise ValueError(f"two entries have the {field} '{value}'{case}")
    for value in values:
        for folder in PurePosixPath(value.casefold()).parents:
            if str(folder) in first:
                raise ValueError(
                    f"the {field} '{first[str(folder)]}' is a file, and another entry's '{value}' is in it"
                )


def _entry(listed: _Listed, lock: Path, locked: Locked | None) -> Entry:
    folder, parts = lock.parent.name, PurePosixPath(listed.path).parts
    if len(parts) < 2 or parts[0] != folder or ".." in parts or "/".join(parts) != listed.path:
        raise ValueError(f"'{listed.name}': path must be a file inside '{folder}/', not '{listed.path}'")
    if not listed.path.isprintable() or any(len(part.encode()) > _LONGEST_PART for part in parts):
        raise ValueError(f"'{listed.name}': path '{printable(listed.path, 60)}' is too long or cannot be printed")
    if listed.path.casefold().endswith((".part", ".part.etag")):
        raise ValueError(f"'{listed.name}': path '{listed.path}' has the name of an unfinished download")
    _check_url(listed)
    sha256 = listed.sha256.lower() if listed.sha256 else None
    if sha256 and locked and sha256 != locked.sha256:
        raise ValueError(
            f"'{listed.name}': sha256 {sha256} disagrees with {locked.sha256} in '{lock}'. If a new version of the "
            "file was published, remove its entry from the lock file"
        )
    required = sha256 or (locked.sha256 if locked else None)
    source = "the manifest" if sha256 else f"'{lock.name}'"
    fields: dict[str, Any] = msgspec.structs.asdict(listed) | {"sha256": required}
    return Entry(**fields, file=lock.parent.parent / listed.path, lock=lock, sha256_source=source)


def _check_url(listed: _Listed) -> None:
    """Raise a ValueError, which never holds the url, because it can hold a password."""
    try:
        parsed = urlsplit(listed.url)
        valid = bool(parsed.hostname) and parsed.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise ValueError(f"'{listed.name}': the host or port of its url is invalid")


def read_lock(lock: Path) -> dict[str, Locked]:
    """Return digest and size by name; empty when the file does not exist. Raises InputError when it is invalid."""
    try:
        if not lock.exists():
            return {}
        return msgspec.convert(_read_yaml(lock) or {}, _LockFile).files or {}
    except (OSError, ValueError) as error:
        raise InputError(f"lock file '{lock}' is invalid ({error}): restore it with git checkout") from None


def record(lock: Path, name: str, seen: Locked) -> bool:
    """Add `name` to the lock file in one atomic step; return False when the same record is already there.

    The caller must exclude other writers. Raises InputError when another digest is recorded, OSError when the file
    cannot be written.
    """
    files = read_lock(lock)
    if name in files:
        if files[name] != seen:
            raise InputError(f"{name}: sha256 is {seen.sha256}, but '{lock}' records {files[name].sha256}")
        return False
    files[name] = seen
    text = _LOCK_HEADER + yaml.safe_dump({"files": msgspec.to_builtins(dict(sorted(files.items())))}, sort_keys=False)
    write_text(lock, text)
    return True


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, 64 hexadecimal digits. Raises OSError.

    A process hashes a file once as long as its size and modification time stay the same, because a cell loads the
    weights twice: for the float32 reference and for the measured module.
    """
    status = path.stat()
    return _hash_file(path, (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns))


@functools.lru_cache
def _hash_file(path: Path, _version: tuple[int, ...]) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify(entry: Entry) -> str:
    """Return the SHA-256 of the entry's file, after comparing it with the required one (if there is one yet).

    Raises InputError when the file is missing, unreadable, or has another digest than the recorded one.
    """
    if not entry.file.is_file():
        problem = "is not a file" if entry.file.exists() else "is missing"
        raise InputError(f"checkpoint '{entry.path}' {problem}. To download it: {entry.download_command}")
    try:
        sha256 = sha256_of(entry.file)
    except OSError as error:
        raise InputError(f"checkpoint '{entry.path}' cannot be read: {error.strerror}") from None
    if entry.sha256 is not None and sha256 != entry.sha256:
        raise InputError(
            f"checkpoint '{entry.path}' is not the published file: its sha256 is {sha256}, {entry.sha256_source} "
            f"requires {entry.sha256}. The file was not changed. Move it away, then run: {entry.download_command}"
        )
    return sha256


class _Loader(yaml.SafeLoader):
    """YAML without aliases: with them, a few lines can stand for gigabytes, or hold themselves."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            problem = "aliases (*name) are not accepted"
            raise ComposerError(problem=problem, problem_mark=self.peek_event().start_mark)
        return super().compose_node(parent, index)


def _read_yaml(path: Path) -> Any:
    """Raise OSError or ValueError; the latter holds a line number and no text of the file, where passwords can be."""
    if not path.is_file():  # reading a pipe or a device would never end
        raise ValueError("it is not a regular file")
    with path.open("rb") as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"it is larger than {_MOST_BYTES} bytes")
    text = content.decode()
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise ValueError(f"{line}{error.problem}") from None
    except Exception as error:  # PyYAML raises anything for false tags and depth: KeyError, RecursionError, …
        raise ValueError(f"it is not valid YAML ({type(error).__name__})") from None
