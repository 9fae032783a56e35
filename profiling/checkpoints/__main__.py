"""Download the published checkpoints: `python -m profiling.checkpoints [NAME ...]` (or `make checkpoints`)."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from profiling.components.manifest import MANIFEST, Entry, load_manifest, select
from profiling.errors import InputError

_LINE_EVERY_S = 10.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Download what is missing, verify what is there, and return the exit code.

    0: every file is on disk and verified; 1: the network, a server or the disk failed; 2: an unknown name, an invalid
    manifest or lock file, or a file with another SHA-256; 130: interrupted.
    """
    parser = argparse.ArgumentParser(
        prog="python -m profiling.checkpoints",
        description="Download the published checkpoints that are missing and verify the SHA-256 of all of them. "
        "An interrupted download is resumed by the same command.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="a file or component of the manifest (default: all)")
    parser.add_argument(
        "--manifest",
        type=Path,
        default=MANIFEST,
        metavar="PATH",
        help="list of published files (default: checkpoints/manifest.yaml)",
    )
    options = parser.parse_args(arguments)
    try:
        entries = select(load_manifest(options.manifest), options.names)
        return max(_download(entry) for entry in entries)
    except InputError as error:
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt as interruption:
        return _fail(f"interrupted{interruption}. To go on, repeat the command", 130)


def _download(entry: Entry) -> int:
    from profiling.checkpoints.download import DownloadError, download  # `--help` needs no HTTP client

    try:
        with _progress(entry.name) as progress:
            done = download(entry, progress, lambda line: print(f"{entry.name}: {line}"))
    except InputError as error:
        return _fail(f"{entry.name}: {error}", error.exit_code)
    except DownloadError as error:
        return _fail(f"{entry.name}: {error}. To try again: {entry.download_command}", error.exit_code)
    print(f"{entry.name}: {entry.path}: {done}")
    return 0


@contextmanager
def _progress(name: str) -> Iterator[Callable[[int, int], None]]:
    """Show a download as a live bar in a terminal, and as a line every ten seconds anywhere else."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console()
    if not console.is_terminal:
        yield _progress_lines(name)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    with Progress(*columns, TransferSpeedColumn(), TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(name, total=None)
        yield lambda received, total: bar.update(task, completed=received, total=total)


def _progress_lines(name: str) -> Callable[[int, int], None]:
    printed_at = float("-inf")

    def print_line(received: int, total: int) -> None:
        nonlocal printed_at
        if time.monotonic() - printed_at >= _LINE_EVERY_S:
            printed_at = time.monotonic()
            print(f"{name}: {received / 2**20:.1f} of {total / 2**20:.1f} MiB", flush=True)

    return print_line


def _fail(message: str, exit_code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return exit_code


if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # an interrupt keeps what has arrived
    sys.exit(main())
