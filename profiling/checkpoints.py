"""Download the published weights and verify them: `python -m profiling.checkpoints [NAME ...]` or `make checkpoints`.

What has arrived stays in `FILE.part`, and the next attempt or run resumes it. `FILE.part.etag` holds the server's
version of the file, so that bytes of two versions are never joined.
"""

from __future__ import annotations

import argparse
import fcntl
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from profiling.components.manifest import MANIFEST, Entry, check_digest, load_manifest
from profiling.errors import InputError, did_you_mean, reason_of, working_directory

PAUSES_S = (1.0, 2.0, 4.0, 8.0)  # before the second attempt, the third, …


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0: all files are verified, 1: network, server or disk failed, 2: wrong name or file, 130: interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m profiling.checkpoints",
        description="Download the published checkpoints that are missing, or resume the download, and verify all.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="a file or component of the manifest (default: all)")
    parser.add_argument("--manifest", type=Path, default=MANIFEST, metavar="PATH", help="list of published files")
    options = parser.parse_args(arguments)
    try:
        working_directory()  # which the commands that are printed refer to
        with options.manifest.open("rb") as manifest:
            _wait_for_other_processes(manifest.fileno())
            entries = _select(load_manifest(options.manifest), options.names)
            return max([_fetch(entry, options.manifest.with_name("lock.yaml")) for entry in entries], default=0)
    except (InputError, OSError) as error:
        return _fail(reason_of(error), 2)
    except KeyboardInterrupt:
        return _fail("interrupted. To go on, repeat the command", 130)


def _wait_for_other_processes(descriptor: int) -> None:
    """Lock the manifest until it is closed: one process at a time downloads and writes `lock.yaml`."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("another process is downloading, waiting", flush=True)
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _select(entries: Sequence[Entry], names: Sequence[str]) -> list[Entry]:
    """Return the entries with these names or components; all entries if `names` is empty."""
    known = {name for entry in entries for name in (entry.name, *entry.components)}
    for name in names:
        if name not in known:
            hint = f"{did_you_mean(name, known)} There are: {', '.join(entry.name for entry in entries)}"
            raise InputError(f"no checkpoint '{name}'.{hint}")
    return [entry for entry in entries if not names or {*names} & {entry.name, *entry.components}]


def _fetch(entry: Entry, lock: Path) -> int:
    """Download and verify one file, print what was done, and return the exit code."""
    part, etag = Path(f"{entry.path}.part"), Path(f"{entry.path}.part.etag")
    try:
        file = entry.path if entry.path.exists() else part
        if file == part:
            part.parent.mkdir(parents=True, exist_ok=True)
            _download(entry, part, etag)
        sha256 = check_digest(entry, file)
        if entry.sha256 is None:
            from profiling.components.checkpoint import read  # imports torch

            read(file)  # only weights are recorded: a server may send a login page
            with lock.open("a", encoding="utf-8") as stream:
                stream.write(f"{entry.name}: {sha256}\n")
        file.replace(entry.path)
        etag.unlink(missing_ok=True)
    except InputError as error:
        part.unlink(missing_ok=True)
        etag.unlink(missing_ok=True)
        return _fail(f"{entry.name}: {error}", 2)
    except (OSError, ValueError) as error:  # those of requests among them
        return _fail(f"{entry.name}: {reason_of(error)}. To go on: {entry.download_command}", 1)
    print(f"{entry.name}: {entry.path}: sha256 {'verified' if entry.sha256 else f'recorded in {lock.name}'}")
    return 0


def _download(entry: Entry, part: Path, etag: Path) -> None:
    """Make attempts until `part` is complete. Raises OSError or ValueError."""
    import requests
    from rich.progress import DownloadColumn, Progress, TransferSpeedColumn

    with Progress(*Progress.get_default_columns(), DownloadColumn(True), TransferSpeedColumn()) as bar:
        task = bar.add_task(entry.name, total=None)
        for pause_s in (*PAUSES_S, None):
            try:
                return _receive(entry.url, part, etag, lambda n, total: bar.update(task, completed=n, total=total))
            except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError) as error:
                if pause_s is None:
                    raise
                print(f"{entry.name}: {reason_of(error)}; trying again in {pause_s:g} s", flush=True)
                time.sleep(pause_s)


def _receive(url: str, part: Path, etag: Path, progress: Callable[[int, int], None]) -> None:
    """Request what is missing of `part`. Raises requests.ConnectionError where another request can succeed."""
    import requests

    version = etag.read_text() if etag.exists() else ""
    start = part.stat().st_size if version and part.exists() else 0
    resume = {"Range": f"bytes={start}-", "If-Range": version} if start else {}
    headers = {"Accept-Encoding": "identity"} | resume  # a range counts bytes of the file, not of its compressed form
    with requests.get(url, headers=headers, stream=True, timeout=60) as response:
        status, answer = response.status_code, response.headers
        offered = answer.get("ETag") or answer.get("Last-Modified", "")
        span = answer.get("Content-Range", "")
        if status == 416 and span == f"bytes */{start}":
            return  # everything had arrived
        if status == 416 or (status == 206 and not (offered == version and span.startswith(f"bytes {start}-"))):
            part.unlink(missing_ok=True)
            raise requests.ConnectionError(f"HTTP {status} does not continue what had arrived")
        if status in (408, 429) or status >= 500:
            raise requests.ConnectionError(f"HTTP {status} {response.reason}")
        response.raise_for_status()
        start = start if status == 206 else 0
        if "Content-Length" not in answer:
            raise requests.RequestException("the server does not give the file's size, so that a cut could not be seen")
        total = start + int(answer["Content-Length"])
        with part.open("ab" if start else "wb") as file:
            etag.write_text(offered)  # after old bytes are gone: they must not be taken for the new version
            for chunk in response.iter_content(2**18):
                file.write(chunk)
                progress(file.tell(), total)
    if (size := part.stat().st_size) != total:
        raise requests.ConnectionError(f"the connection closed after {size} of {total} bytes")


def _fail(message: object, exit_code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return exit_code


if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(
            signal.SIGINT, signal.default_int_handler
        )  # not an exit at once, which would lose what has arrived
    sys.exit(main())
