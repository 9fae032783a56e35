"""The edge that `compare` and `history` share: the options of both, and what they did not foresee, in one line."""

from __future__ import annotations

import argparse
import traceback
from collections.abc import Sequence
from pathlib import Path

from profiling.reporting.format import one_line
from profiling.reporting.terminal import print_what_it_can


def read_options(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Add the options of both to `parser` and read the command line; the terminal need not know every character."""
    parser.add_argument("--markdown", action="store_true", help="tables as Markdown, for a pull request")
    parser.add_argument(
        "--html", metavar="FILE", type=Path, help="write a page too, FILE.html in a folder that is there"
    )
    print_what_it_can()
    return parser.parse_args(arguments)


def unforeseen(error: Exception) -> str:
    """Return what was raised and the file and line of it: `TypeError: … (side.py:40)`.

    A traceback would end the command with 1, which says `slower`.
    """
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    said = one_line(error)
    return f"{type(error).__name__}{': ' if said else ''}{said}{place}"
