"""Where in the user's code something happens: the innermost line that is neither torch's nor the engine's."""

from __future__ import annotations

import linecache
import os
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import torch

_NOT_THE_USERS = tuple(f"{Path(file).parent}{os.sep}" for file in (torch.__file__, __file__))
_STANDARD_LIBRARY = str(Path(os.__file__).parent)


@dataclass(frozen=True)
class Place:
    """A line of a file, and the code on it that was running (the whole line where the part is not known)."""

    file: str
    line: int
    code: str

    def __str__(self) -> str:
        """Return `net.py:12 (code)`."""
        return f"{_short(self.file)}:{self.line} ({self.code})"


def current_place() -> Place | None:
    """Return the line of user code that is running now."""
    frame = sys._getframe(1)
    while frame is not None:
        if _is_the_users(frame.f_code.co_filename):
            file, line = frame.f_code.co_filename, frame.f_lineno
            return Place(file, line, linecache.getline(file, line).strip())
        frame = frame.f_back
    return None


def place_of(trace: TracebackType | None) -> Place | None:
    """Return the innermost line of user code in a traceback, with the expression that raised."""
    for entry in reversed(traceback.extract_tb(trace)):
        if not _is_the_users(entry.filename) or entry.lineno is None:
            continue
        code = linecache.getline(entry.filename, entry.lineno)
        if entry.lineno == entry.end_lineno and entry.colno is not None:
            code = code[entry.colno : entry.end_colno]
        return Place(entry.filename, entry.lineno, code.strip())
    return None


def _is_the_users(file: str) -> bool:
    return not (file.startswith((*_NOT_THE_USERS, "<")) or str(Path(file).parent) == _STANDARD_LIBRARY)


def _short(file: str) -> str:
    path = Path(file)
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return "/".join(path.parts[-2:])
