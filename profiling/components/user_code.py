"""Finds lines of user code: Python outside torch, Triton, this package and the standard library.

Error messages and reports name such a line, so that a reader sees the model's code and not the frames of a framework.
Installed packages other than torch and Triton (transformers, for example) count as user code: they may define networks.
"""

from __future__ import annotations

import linecache
import os
import re
import sys
import sysconfig
import traceback
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

_TOOL = f"{Path(__file__).resolve().parents[1]}{os.sep}"
_TORCH = find_spec("torch")  # not imported: reading a compile log needs no torch
_LIBRARIES = tuple(
    f"{folder}{os.sep}"
    for folder in (sysconfig.get_paths()["stdlib"], *((_TORCH and _TORCH.submodule_search_locations) or ()))
)
_SITE_PACKAGES = re.compile(r"^.*[/\\](?:site|dist)-packages[/\\]")
_FRAMEWORKS = ("torch", "triton")
_CODE_LENGTH = 120


@dataclass(frozen=True)
class SourceLine:
    """A line of a file and its code: the expression that ran, if Python recorded its position, else the whole line."""

    file: str
    number: int
    code: str

    def __str__(self) -> str:
        """Return `net.py:12 (x.sum().item())`, the file relative to the working directory."""
        return f"{short_path(self.file, Path.cwd())}:{self.number} ({self.code})"


def is_user_code(file: str) -> bool:
    """Return whether `file`, a code object's `co_filename`, belongs to the user.

    It is False for torch, Triton, this package, the standard library, code without a file and code from inductor.
    """
    cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if file.startswith(("<", _TOOL)) or "torchinductor" in file or (cache and file.startswith(cache)):
        return False
    package = _SITE_PACKAGES.sub("", file)
    if package != file:  # checked first: site-packages may lie in the standard library's folder
        return Path(package).parts[0] not in _FRAMEWORKS
    return not file.startswith(_LIBRARIES)


def running_line() -> SourceLine | None:
    """Return the innermost line of user code that this thread is running, or None."""
    for frame, number in traceback.walk_stack(sys._getframe(1)):
        if is_user_code(file := frame.f_code.co_filename):
            return SourceLine(file, number, code_at(file, number))
    return None


def raising_line(trace: TracebackType | None) -> SourceLine | None:
    """Return the innermost line of user code in a traceback, with the expression that raised, or None."""
    for entry in reversed(traceback.extract_tb(trace)):
        if not is_user_code(entry.filename) or entry.lineno is None:
            continue
        code = code_at(entry.filename, entry.lineno)
        if entry.lineno == entry.end_lineno and entry.colno is not None:
            code = linecache.getline(entry.filename, entry.lineno)[entry.colno : entry.end_colno].strip()
        return SourceLine(entry.filename, entry.lineno, code)
    return None


def code_at(file: str, number: int) -> str:
    """Return the code on a line of a file, at most 120 characters; empty where it cannot be read."""
    return linecache.getline(file, number).strip()[:_CODE_LENGTH]


def short_path(file: str, root: Path) -> str:
    """Return `file` relative to `root`; in an installed package, from the package's name on; else unchanged."""
    try:
        return Path(file).relative_to(root).as_posix()
    except ValueError:
        return _SITE_PACKAGES.sub("", file)
