"""Download the published checkpoints: `python -m profiling.checkpoints [NAME ...]` (or `make checkpoints`)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from profiling.core.checkpoints.download import download
from profiling.core.checkpoints.manifest import MANIFEST, Entry, load_manifest
from profiling.core.checkpoints.progress import shown
from profiling.core.checkpoints.transfer import DownloadError
from profiling.errors import InputError

_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Download what is missing and return the exit code.

    0: all there and right; 1: the network, a server or the disk failed; 2: a wrong name, manifest, lock file or file.
    """
    parser = argparse.ArgumentParser(prog="python -m profiling.checkpoints", description="Download what is missing.")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="an entry or a component of the manifest; default: all"
    )
    parser.add_argument("--manifest", type=Path, default=MANIFEST, metavar="PATH", help="default: the repository's own")
    options = parser.parse_args(arguments)
    try:
        entries = load_manifest(options.manifest).select(options.names)
    except InputError as error:
        return _complain(str(error), error.exit_code)
    try:
        return max(_one(entry) for entry in entries)
    except KeyboardInterrupt:
        return _complain("interrupted; what has arrived is kept: type the same again to go on", _INTERRUPTED)


def _one(entry: Entry) -> int:
    console = Console()
    try:
        with shown(entry.name, console) as tick:
            done = download(entry, tick, lambda line: print(f"{entry.name}: {line}"))
    except (InputError, DownloadError) as error:
        return _complain(f"{entry.name}: {error}", error.exit_code)
    print(f"{entry.name}: {entry.path}: {done}")
    return 0


def _complain(message: str, exit_code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
