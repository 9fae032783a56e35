"""Download one published file over HTTP. Its final name appears only after its size and SHA-256 are verified.

What has arrived stays in `NAME.part` and is resumed by the next attempt or the next run. `NAME.part.etag` holds the
server's version of the file (ETag, else Last-Modified), so that parts of two versions are never joined.

Plain requests, because pooch deletes a partial file and huggingface_hub downloads a file anew in the next run.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import requests
from filelock import FileLock, Timeout

from profiling.components.manifest import Entry, Locked, record, sha256_of, verify
from profiling.errors import InputError

Progress = Callable[[int, int], None]  # (bytes received, bytes of the whole file)
Notice = Callable[[str], None]
_CHUNK = 256 * 1024
_TRANSIENT_STATUS = {408, 425, 429, 500, 502, 503, 504}
_TRANSIENT_ERROR = (requests.ConnectionError, requests.Timeout)


class DownloadError(Exception):
    """The network, the server or the disk failed: what failed and why, in one line."""

    exit_code = 1


class _AttemptError(Exception):
    """One attempt ended early; another one can succeed."""


@dataclass(frozen=True)
class Retries:
    """Most attempts in a row without a new byte, seconds before the second (doubled after each), read timeout."""

    attempts: int = 5
    backoff_s: float = 1.0
    timeout_s: float = 60.0


def download(
    entry: Entry,
    progress: Progress = lambda received, total: None,
    notice: Notice = lambda line: None,
    retries: Retries | None = None,
) -> str:
    """Make sure that the file of `entry` is on disk and verified; return a short description of what was done.

    `notice` gets a line each time the download has to wait.
    Raises InputError when a file with another SHA-256 is on disk or arrives. Raises DownloadError when the network, the
    server or the disk fails; what has arrived is kept and resumed by the next call.
    """
    part = _Part(entry.file.with_name(entry.file.name + ".part"))
    try:
        if not entry.file.exists():
            entry.file.parent.mkdir(parents=True, exist_ok=True)
            with _exclusive(entry, entry.name, notice):
                if not entry.file.exists():  # another process may have downloaded it meanwhile
                    return _download(entry, part, progress, notice, retries or Retries())
        return _verify_existing(entry)
    except OSError as error:
        raise DownloadError(_disk_problem(entry, part, error)) from None


def _download(entry: Entry, part: _Part, progress: Progress, notice: Notice, retries: Retries) -> str:
    _receive(entry.url, part, progress, notice, retries)
    size, sha256 = part.size, sha256_of(part.path)
    if entry.sha256 is not None and sha256 != entry.sha256:
        part.discard()
        raise InputError(
            f"the file at {entry.url} has sha256 {sha256}, {entry.sha256_source} requires {entry.sha256}. The download "
            "was deleted. If a new version was published, remove the recorded sha256 and repeat the command"
        )
    # Recorded before the rename: after a crash in between, no file without a record has its final name.
    _record(entry, Locked(sha256, size))
    part.path.replace(entry.file)
    part.discard()
    return f"downloaded, {_mib(size)}, sha256 {'verified' if entry.sha256 else 'recorded in ' + entry.lock.name}"


def _verify_existing(entry: Entry) -> str:
    sha256 = verify(entry)
    if entry.sha256 is not None:
        return "already downloaded, sha256 verified"
    _record(entry, Locked(sha256, entry.file.stat().st_size))
    return f"already downloaded, sha256 recorded in {entry.lock.name}"


def _record(entry: Entry, seen: Locked) -> None:
    with _exclusive(entry, entry.lock.name):
        record(entry.lock, entry.name, seen)


@contextmanager
def _exclusive(entry: Entry, name: str, notice: Notice = lambda line: None) -> Iterator[None]:
    """Exclude other processes from `name`; a process that is killed leaves nothing locked. Raises OSError."""
    folder = entry.lock.with_name(".locks")
    folder.mkdir(exist_ok=True)
    lock = FileLock(folder / f"{name}.lock")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        notice("another process is downloading it, waiting")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


class _Part:
    """The bytes that have arrived and the version of the remote file they belong to. Methods raise OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.total: int | None = None  # bytes of the whole file, once the server has sent its size
        self._etag = path.with_name(path.name + ".etag")

    @property
    def size(self) -> int:
        """Bytes that have arrived."""
        return self.path.stat().st_size if self.path.exists() else 0

    def version(self) -> str | None:
        """Return the version of the remote file that these bytes belong to; None if they cannot be resumed."""
        return self._etag.read_text(encoding="latin-1") or None if self.size and self._etag.is_file() else None

    def restart(self, version: str | None) -> None:
        """Delete what has arrived. What arrives next belongs to `version`; None means that it cannot be resumed."""
        self.discard()  # first: after a crash in between, old bytes must not be taken for the new version
        if version:
            self._etag.write_text(version, encoding="latin-1")

    def append(self, chunks: Iterator[bytes], received: Callable[[int], None]) -> None:
        """Append `chunks` and call `received` with the size so far; bytes written before an error are kept."""
        with self.path.open("ab", buffering=0) as file:
            for chunk in chunks:
                rest = memoryview(chunk)
                while rest:  # an unbuffered write may write less than it was given
                    rest = rest[file.write(rest) :]
                received(file.tell())
            os.fsync(file.fileno())

    def discard(self) -> None:
        """Delete the bytes and their version."""
        self.path.unlink(missing_ok=True)
        self._etag.unlink(missing_ok=True)


def _receive(url: str, part: _Part, progress: Progress, notice: Notice, retries: Retries) -> None:
    """Repeat attempts until `part` is complete. urllib3's Retry cannot: it repeats a request without a new Range."""
    failures, most = 0, part.size
    with requests.Session() as session:
        while True:
            try:
                return _attempt(session, url, part, progress, retries.timeout_s)
            except (*_TRANSIENT_ERROR, _AttemptError) as error:
                failures = 1 if part.size > most else failures + 1
                most = max(most, part.size)
                if failures >= retries.attempts:
                    raise DownloadError(f"{url}: {_cause(error)}; gave up after {failures} attempts") from None
                wait_s = retries.backoff_s * 2 ** (failures - 1)
                notice(f"{_cause(error)}; retrying in {wait_s:g} s")
            except requests.RequestException as error:
                raise DownloadError(f"{url}: {_cause(error)}") from None
            time.sleep(wait_s)


def _attempt(session: requests.Session, url: str, part: _Part, progress: Progress, timeout_s: float) -> None:
    headers = {"Accept-Encoding": "identity"}  # a range counts bytes of the file, not of its compressed form
    version = part.version()
    if version:
        headers |= {"Range": f"bytes={part.size}-", "If-Range": version}
    else:
        part.discard()
    with session.get(url, headers=headers, stream=True, timeout=timeout_s) as response:
        part.total = total = _read_head(response, part, version)
        free = shutil.disk_usage(part.path.parent).free
        if free < total - part.size:
            raise OSError(errno.ENOSPC, f"{_mib(free)} are free on the disk")
        progress(part.size, total)
        if part.size < total:
            with suppress(requests.exceptions.ChunkedEncodingError):  # cut off: the size check below reports it
                part.append(response.iter_content(_CHUNK), lambda received: progress(received, total))
    if part.size < total:
        raise _AttemptError(f"the connection closed after {part.size} of {total} bytes")
    if part.size > total:
        part.discard()
        raise _AttemptError(f"the server sent more than the {total} bytes it announced")


def _read_head(response: requests.Response, part: _Part, version: str | None) -> int:
    """Check status and headers, delete what cannot be continued, and return the size of the whole file in bytes."""
    status, headers = response.status_code, response.headers
    etag = headers.get("ETag", "")
    # A weak ETag (W/) promises the same meaning, not the same bytes.
    offered = etag if etag and not etag.startswith("W/") else headers.get("Last-Modified")
    if status in _TRANSIENT_STATUS:
        raise _AttemptError(f"HTTP {status} {response.reason}")
    span = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(\d+)", headers.get("Content-Range", ""))
    if status == 206 and span and span[1] == str(part.size) and (offered or version) == version:
        return int(span[2])
    if status == 416 and span and int(span[2]) == part.size:
        return part.size  # everything had arrived already
    if status in (206, 416):
        part.discard()
        raise _AttemptError(f"HTTP {status} does not match the requested range")
    if status != 200:
        raise DownloadError(f"{response.url}: HTTP {status} {response.reason}: check the url in the manifest")
    if not headers.get("Content-Length", "").isdigit() or headers.get("Content-Encoding", "identity") != "identity":
        raise DownloadError(f"{response.url}: the server does not send the file's size, truncation is undetectable")
    part.restart(offered)
    return int(headers["Content-Length"])


def _cause(error: Exception) -> str:
    """Return the innermost cause in one line: requests wraps it in three exceptions with object addresses."""
    while isinstance(inner := getattr(error, "reason", None) or (error.args or [None])[-1], Exception):
        error = inner
    text = " ".join(str(error).split())
    return re.sub(r"^<[^>]*>: |^\w+\(.*?\): ", "", text) or type(error).__name__


def _disk_problem(entry: Entry, part: _Part, error: OSError) -> str:
    path, root = Path(cast(str, error.filename) or part.path), entry.lock.parent.parent
    message = f"cannot write '{path.relative_to(root) if path.is_relative_to(root) else path}': {error.strerror}"
    if part.total is not None:
        message += f"; the file has {_mib(part.total)}, of which {_mib(part.size)} have arrived and are kept"
    return message


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
