"""HTTP into a part file: goes on where it stopped, starts again when the remote file changed, retries what may pass.

One loop retries connections, statuses and cut bodies alike, because each retry has to ask for what is missing by then
(urllib3's Retry repeats the request as it was, and would count apart from it).
"""

from __future__ import annotations

import errno
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass

import requests

from profiling.core.checkpoints.part import Part

Tick = Callable[[int, int], None]  # (bytes here, bytes in all)
Say = Callable[[str], None]
_CHUNK = 256 * 1024
_TRANSIENT_STATUS = {408, 425, 429, 500, 502, 503, 504}
_TRANSIENT = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)


class DownloadError(Exception):
    """The world outside failed (network, server, disk): one line that says what, and what to type next."""

    exit_code = 1


class _UnfinishedError(Exception):
    """An attempt ended early; another may do better."""


@dataclass(frozen=True)
class Patience:
    """How long to go on: attempts in a row without a new byte, and seconds before the second (doubled after each)."""

    attempts: int = 5
    backoff_s: float = 1.0
    timeout_s: float = 60.0  # without a byte


def transfer(url: str, part: Part, tick: Tick, say: Say, patience: Patience) -> None:
    """Fill `part` until it has as many bytes as the server says the file has, and `say` why it has to wait.

    Raises DownloadError when the server refuses or patience ends, OSError when the disk does.
    """
    failures, furthest = 0, part.size
    with requests.Session() as session:
        while True:
            try:
                return _attempt(session, url, part, tick, patience)
            except (*_TRANSIENT, _UnfinishedError) as error:
                failures = 1 if part.size > furthest else failures + 1
                furthest = max(furthest, part.size)
                if failures >= patience.attempts:
                    raise DownloadError(f"{url}: {_reason(error)}; gave up after {failures} attempts") from None
                wait_s = patience.backoff_s * 2 ** (failures - 1)
                say(f"{_reason(error)}; trying again in {wait_s:g} s")
            except requests.RequestException as error:
                raise DownloadError(f"{url}: {_reason(error)}") from None
            time.sleep(wait_s)


def _attempt(session: requests.Session, url: str, part: Part, tick: Tick, patience: Patience) -> None:
    headers = {"Accept-Encoding": "identity"}  # a range of a compressed body would be a range of something else
    version = part.version()
    if version:
        headers |= {"Range": f"bytes={part.size}-", "If-Range": version}
    else:
        part.restart(None)
    with session.get(url, headers=headers, stream=True, timeout=patience.timeout_s) as response:
        part.total = total = _begin(response, part, version)
        _check_room(part, total)
        tick(part.size, total)
        if part.size < total:
            for chunk in response.iter_content(_CHUNK):
                part.write(chunk)
                tick(part.size, total)
    if part.size < total:
        raise _UnfinishedError(f"the connection closed at {part.size} of {total} bytes")
    if part.size > total:
        part.restart(None)
        raise _UnfinishedError(f"the server sent more than the {total} bytes it announced")


def _begin(response: requests.Response, part: Part, version: str | None) -> int:
    """Read the answer's head, make `part` ready for its body, and return the size of the whole file in bytes."""
    status, headers = response.status_code, response.headers
    offered = _version(headers.get("ETag"), headers.get("Last-Modified"))
    if status in _TRANSIENT_STATUS:
        raise _UnfinishedError(f"HTTP {status} {response.reason}")
    span = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(\d+)", headers.get("Content-Range", ""))
    if status == 206 and span and span[1] == str(part.size) and (offered or version) == version:
        return int(span[2])
    if status == 416 and span and int(span[2]) == part.size:
        return part.size  # all of it had arrived already
    if status in (206, 416):
        part.restart(None)
        raise _UnfinishedError(f"HTTP {status} does not answer what was asked")
    if status != 200:
        raise DownloadError(f"{response.url}: HTTP {status} {response.reason}: is the url in the manifest still right?")
    if not headers.get("Content-Length", "").isdigit() or headers.get("Content-Encoding", "identity") != "identity":
        raise DownloadError(f"{response.url}: the server does not say how many bytes the file has")
    part.restart(offered)
    return int(headers["Content-Length"])


def _version(etag: str | None, modified: str | None) -> str | None:
    # A weak ETag (W/) promises the same meaning, not the same bytes.
    return etag if etag and not etag.startswith("W/") else modified


def _check_room(part: Part, total: int) -> None:
    free = shutil.disk_usage(part.path.parent).free
    if free < total - part.size:
        raise OSError(errno.ENOSPC, f"{free / 2**20:.1f} MiB are free on the disk")


def _reason(error: Exception) -> str:
    """Say the innermost cause in one line: requests wraps it in three layers of object addresses."""
    inner: object = error
    while isinstance(inner, Exception):
        deeper = getattr(inner, "reason", None) or (inner.args[-1] if inner.args else None)
        if not isinstance(deeper, Exception):
            break
        inner = deeper
    text = " ".join(str(inner).split())
    return re.sub(r"^<[^>]*>: |^\w+\(.*?\): ", "", text) or type(error).__name__
