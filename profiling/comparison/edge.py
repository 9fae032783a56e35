"""What a comparison or a history did not foresee, in one line: a traceback would end with 1, which says `slower`."""

from __future__ import annotations

import traceback
from pathlib import Path

from profiling.reporting.format import one_line


def unforeseen(error: Exception) -> str:
    """Return what was raised and the file and line of it: `TypeError: … (side.py:40)`."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    said = one_line(error)
    return f"{type(error).__name__}{': ' if said else ''}{said}{place}"
