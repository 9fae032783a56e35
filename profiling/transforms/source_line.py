"""Where in the user's code are we? Asked while torch is calling us back from the middle of it."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path

import torch

#: Code that is never the user's: torch, and the tracer itself.
OURS = (str(Path(torch.__file__).parent), str(Path(__file__).parent))


def source_line() -> str:
    """Return `file:line: text` of the innermost frame outside of torch and the tracer."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(OURS):
        frame = frame.f_back
    name, line = frame.f_code.co_filename, frame.f_lineno
    return f"{name}:{line}: {linecache.getline(name, line).strip()}"
