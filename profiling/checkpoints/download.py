"""Download one published file over HTTP. Its final name appears only after its size, format and SHA-256 are verified.

What has arrived stays in `NAME.part` and is resumed by the next attempt or the next run. `NAME.part.etag` holds the
server's version of the file (ETag, else Last-Modified), so that parts of two versions are never joined.

The server is not trusted: the size it announces is checked against the disk before and during the download, its answer
has a time limit and its body a least rate, and what it says is printed without escape sequences, passwords and tokens.

Plain requests, because pooch deletes a partial file and huggingface_hub downloads a file anew in the next run.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urljoin

import requests
import urllib3
from filelock import FileLock, Timeout

from profiling.components.checkpoint_format import check_format
from profiling.components.manifest import Entry, Locked, record, sha256_of, verify
from profiling.errors import LONGEST, InputError, printable

Progress = Callable[[int, int], None]  # (bytes received, bytes of the whole file)
Notice = Callable[[str], None]
_CHUNK = 256 * 1024
_TRANSIENT_STATUS = {408, 425, 429, 500, 502, 503, 504}
_MOST_REDIRECTS = 10
_SIZE = "[0-9]{1,20}"  # bytes; Python refuses to convert numbers of more than 4300 digits
_VERSION = re.compile("[ -~]{1,1000}")  # what can be sent back as If-Range


class DownloadError(Exception):
    """The network, the server or the disk failed: what failed and why, in one line without passwords and tokens."""

    exit_code = 1

    def __init__(self, message: object) -> None:
        super().__init__(_public(message))


class _AttemptError(Exception):
    """One attempt ended early; another one can succeed."""


@dataclass(frozen=True)
class Retries:
    """How long a download is continued before it fails. What has arrived by then is kept.

    Attributes:
        attempts: most attempts in a row that fail at once or are slower than `least_rate`.
        backoff_s: seconds before the second attempt, doubled after each.
        timeout_s: longest wait for an answer or for the next bytes, and the window of the rate.
        least_rate: bytes a second; an attempt that is slower over `timeout_s` is ended.
        total_s: seconds for the whole download.

    """

    attempts: int = 5
    backoff_s: float = 1.0
    timeout_s: float = 60.0
    least_rate: float = 10_000.0
    total_s: float = 24 * 3600.0


def download(
    entry: Entry,
    progress: Progress = lambda received, total: None,
    notice: Notice = lambda line: None,
    retries: Retries | None = None,
) -> str:
    """Make sure that the file of `entry` is on disk and verified; return a short description of what was done.

    `notice` gets a line each time the download has to wait.
    Raises InputError when a file with another SHA-256 is on disk or arrives. Raises DownloadError when the network, the
    server or the disk fails, or when what arrives is no checkpoint. What has arrived is kept and resumed by the next
    call if the server gives its file a version. Each message, also that of the KeyboardInterrupt, says whether it is
    kept.
    """
    part = _Part(entry.file.with_name(entry.file.name + ".part"))
    try:
        if not entry.file.exists():
            entry.file.parent.mkdir(parents=True, exist_ok=True)
            with _exclusive(entry, f"{entry.name}.download", notice):
                if not entry.file.exists():  # another process may have downloaded it meanwhile
                    return _download(entry, part, progress, notice, retries or Retries())
        return _verify_existing(entry)
    except OSError as error:
        raise DownloadError(_disk_problem(entry, part, error)) from None


def _download(entry: Entry, part: _Part, progress: Progress, notice: Notice, retries: Retries) -> str:
    try:
        _receive(entry.url, part, progress, notice, retries)
    except OSError as error:
        raise DownloadError(f"{_disk_problem(entry, part, error)}{part.kept()}") from None
    except DownloadError as error:
        raise DownloadError(f"{error}{part.kept()}") from None
    except KeyboardInterrupt:
        raise KeyboardInterrupt(part.kept()) from None
    try:
        check_format(part.path, entry.file.suffix)
    except InputError as error:
        part.discard()
        raise DownloadError(f"what {entry.url} sends {error}. It was deleted. Check the url in the manifest") from None
    size, sha256 = part.size, sha256_of(part.path)
    if entry.sha256 is not None and sha256 != entry.sha256:
        part.discard()
        raise InputError(
            f"the file at {_public(entry.url)} has sha256 {sha256}, {entry.sha256_source} requires {entry.sha256}. The "
            "download was deleted. If a new version was published, remove the recorded sha256 and repeat the command"
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
    try:
        check_format(entry.file, entry.file.suffix)
    except InputError as error:
        raise InputError(f"checkpoint '{entry.path}' {error}. It was not recorded") from None
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
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def version(self) -> str | None:
        """Return the version of the remote file that these bytes belong to; None if they cannot be resumed."""
        if not self.size or not self._etag.is_file():
            return None
        text = self._etag.read_text(encoding="latin-1")
        return text if _VERSION.fullmatch(text) else None

    def kept(self) -> str:
        """Delete what cannot be resumed; return the end of a message that says what is kept, "" for nothing."""
        size = self.size
        arrived = _mib(size) + ("" if self.total is None else f" of {_mib(self.total)}")
        with suppress(OSError):  # the message is about the disk already
            if self.version():
                return f"; {arrived} have arrived and are kept"
            self.discard()
            if size:
                return (
                    f"; {arrived} had arrived and were deleted, because the server gives its file no version to resume"
                )
        return ""

    def check_space(self) -> None:
        """Raise an OSError when the rest of the file does not fit on the disk."""
        free, missing = shutil.disk_usage(self.path.parent).free, (self.total or 0) - self.size
        if free < missing:
            raise OSError(errno.ENOSPC, f"{_mib(free)} are free on the disk, and {_mib(missing)} are still to arrive")

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
    began = since = time.monotonic()
    failures, most = 0, part.size
    while True:
        try:
            return _attempt(url, part, progress, retries, began + retries.total_s)
        except _AttemptError as error:
            now, arrived = time.monotonic(), part.size - most
            # Bytes alone are no progress: a server that sends one and closes would be asked forever.
            failures = 1 if arrived > 0 and arrived >= retries.least_rate * (now - since) else failures + 1
            since, most = now, max(most, part.size)
            if failures >= retries.attempts:
                raise DownloadError(f"{url}: {error}; gave up after {failures} attempts") from None
            wait_s = retries.backoff_s * 2 ** (failures - 1)
            if now + wait_s > began + retries.total_s:
                raise DownloadError(f"{url}: {error}; gave up after {now - began:.3g} s") from None
            notice(f"{error}; retrying in {wait_s:g} s")
            time.sleep(wait_s)


def _attempt(url: str, part: _Part, progress: Progress, retries: Retries, end: float) -> None:
    headers = {"Accept-Encoding": "identity"}  # a range counts bytes of the file, not of its compressed form
    version = part.version()
    if version:
        headers |= {"Range": f"bytes={part.size}-", "If-Range": version}
    else:
        part.discard()

    with _answer(url, headers, retries.timeout_s) as response:
        part.total = total = _read_head(response, part, version)

        def received(size: int) -> None:
            part.check_space()  # with each chunk, because other programs fill the disk meanwhile
            progress(size, total)
            if time.monotonic() > end:
                raise DownloadError(f"{url}: not finished after {retries.total_s:g} s")

        received(part.size)
        part.append(_body(response, total - part.size, retries), received)
    if part.size != total:
        raise _AttemptError(f"the connection closed after {part.size} of {total} bytes")


class _Session(requests.Session):
    """Leaves redirects to `_follow`: requests reads the body of a redirect into memory, however long it is."""

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        return None


def _answer(url: str, headers: dict[str, str], timeout_s: float) -> requests.Response:
    """Request `url`, follow redirects, and return the answer with its body unread.

    It is requested in a daemon thread, which is left behind after `timeout_s`: name resolution, and headers that arrive
    byte by byte, have no time limit of their own.
    """
    answer: Future[requests.Response] = Future()

    def request() -> None:
        try:
            answer.set_result(_follow(url, headers, timeout_s))
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=request, daemon=True).start()
    try:
        return answer.result(timeout_s)
    except DownloadError:
        raise
    except TimeoutError:
        raise _AttemptError(f"no answer within {timeout_s:.3g} s") from None
    except Exception as error:  # requests lets errors of urllib3, ssl, idna and of Python's URL parser through
        # A certificate that is refused, or a bundle of them that cannot be read, is refused again.
        transient = isinstance(error, requests.ConnectionError | requests.Timeout)
        if transient and not isinstance(error, requests.exceptions.SSLError):
            raise _AttemptError(_cause(error)) from None
        raise DownloadError(f"{url}: {_cause(error)}") from None


def _follow(url: str, headers: dict[str, str], timeout_s: float) -> requests.Response:
    target = url
    with _Session() as session:
        for _ in range(_MOST_REDIRECTS + 1):
            response = session.get(target, headers=headers, stream=True, timeout=timeout_s)
            if not response.is_redirect:
                return response
            response.close()
            schemes = ("https",) if target.startswith("https:") else ("http", "https")
            target = urljoin(target, requests.Session.get_redirect_target(session, response))
            if target.partition("://")[0] not in schemes:
                raise DownloadError(f"{url} redirects to {_public(target, 300)}, which is not {' or '.join(schemes)}")
    raise DownloadError(f"{url}: more than {_MOST_REDIRECTS} redirects")


def _body(response: requests.Response, missing: int, retries: Retries) -> Iterator[bytes]:
    """Yield at most `missing` bytes, each chunk as soon as it has arrived, and not decompressed.

    Raises _AttemptError when the connection fails or is slower than the least rate.
    """
    window_end, arrived = time.monotonic() + retries.timeout_s, 0
    while missing:
        try:
            chunk = response.raw.read1(min(_CHUNK, missing), decode_content=False)
        except urllib3.exceptions.ProtocolError:  # the connection was closed
            return
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise _AttemptError(_cause(error)) from None
        if not chunk:
            return
        missing, arrived = missing - len(chunk), arrived + len(chunk)
        yield chunk
        if (now := time.monotonic()) > window_end:
            if arrived < retries.least_rate * retries.timeout_s:
                raise _AttemptError(f"only {arrived} bytes arrived in {retries.timeout_s:g} s")
            window_end, arrived = now + retries.timeout_s, 0


def _read_head(response: requests.Response, part: _Part, version: str | None) -> int:
    """Check status and headers, delete what cannot be continued, and return the size of the whole file in bytes."""
    status, headers = response.status_code, response.headers
    etag = headers.get("ETag", "")
    # A weak ETag (W/) promises the same meaning, not the same bytes.
    offered = etag if etag and not etag.startswith("W/") else headers.get("Last-Modified", "")
    reason = f"HTTP {status} {printable(response.reason or '', 100)}"
    if status in _TRANSIENT_STATUS:
        raise _AttemptError(reason)
    span = re.fullmatch(rf"bytes (?:({_SIZE})-({_SIZE})|\*)/({_SIZE})", headers.get("Content-Range", ""))
    if (offered or version) != version:
        span = None  # of another version
    if status == 416 and span and int(span[3]) == part.size:
        return part.size  # everything had arrived already
    resumed = status == 206 and span and span[1] == str(part.size) and int(span[2]) < int(span[3])
    if status in (206, 416) and not resumed:
        part.discard()
        raise _AttemptError(f"HTTP {status} does not match the requested range")
    if status not in (200, 206):
        raise DownloadError(f"{response.url}: {reason}: check the url in the manifest")
    length = headers.get("Content-Length", "")
    encoding = headers.get("Content-Encoding", "identity"), headers.get("Transfer-Encoding", "identity")
    if not re.fullmatch(_SIZE, length) or encoding != ("identity", "identity"):
        raise DownloadError(f"{response.url}: the server does not send the file's size, truncation is undetectable")
    if span and resumed:
        return int(span[3])
    part.restart(offered if _VERSION.fullmatch(offered) else None)
    return int(length)


def _public(text: object, limit: int = LONGEST) -> str:
    """Return `text` printable, and its URLs without password and query, which is often a token."""
    plain = re.sub(r"\?[^\s'\"]+?(?=[:;,.]?(?:\s|['\"]|$))", "?…", re.sub(r"//[^/\s]*@", "//", str(text)))
    return printable(plain, limit)


def _cause(error: Exception) -> str:
    """Return the innermost cause in one line: requests wraps it in three exceptions with object addresses."""
    while isinstance(inner := getattr(error, "reason", None) or (error.args or [None])[-1], Exception):
        error = inner
    return _public(re.sub(r"^<[^>]*>: |^\w+\(.*?\): ", "", printable(error)) or type(error).__name__, 300)


def _disk_problem(entry: Entry, part: _Part, error: OSError) -> str:
    path, root = Path(error.filename or part.path), entry.lock.parent.parent
    return f"cannot write '{path.relative_to(root) if path.is_relative_to(root) else path}': {error.strerror or error}"


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
