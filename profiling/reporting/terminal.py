"""What the commands print to: a terminal, whose encoding may know less than the tables do."""

from __future__ import annotations

import io
import sys


def print_what_it_can() -> None:
    """Make a terminal without × show a ? from here on, and not a traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
