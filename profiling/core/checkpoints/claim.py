"""One writer at a time for a file that is being made, across processes: two downloads of one file must not mix.

The file being made is its own lock (`flock`, POSIX), so a killed process leaves no lock behind.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import cast


@contextmanager
def claim(path: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[FileIO]:
    """Open `path` for appending, created when missing, and hold it alone until the block ends.

    Calls `waiting` once when another process holds it, then waits. Raises OSError when `path` cannot be opened.
    """
    while True:
        file = cast(FileIO, path.open("a+b", buffering=0))
        try:
            _hold(file, waiting)
            # The holder we waited for has usually renamed the file to its final name: writing on would spoil it.
            if _still_named(path, file):
                yield file
                return
        finally:
            file.close()  # gives the lock up as well


def _hold(file: FileIO, waiting: Callable[[], None]) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        waiting()
        fcntl.flock(file, fcntl.LOCK_EX)


def _still_named(path: Path, file: FileIO) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def replace(made: Path, final: Path) -> None:
    """Give a finished file its final name in one step that survives a power cut. Raises OSError."""
    made.replace(final)
    folder = os.open(final.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
