"""Options and the page of the commands `compare` and `history`: --markdown, --html, errors in one line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from profiling.errors import InputError, install_hint, printable, reason_of
from profiling.results.run_folder import write_text


def parse_options(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Add the options of both commands to `parser` and parse the command line."""
    parser.add_argument("--markdown", action="store_true", help="print tables as Markdown, for a pull request")
    parser.add_argument("--html", metavar="FILE", type=Path, help="also write a page with all rows (name it *.html)")
    return parser.parse_intermixed_args(arguments)  # options may stand between and after the others


def check_page_path(path: Path | None) -> None:
    """Refuse a path that no page can be written to, before anything is read: it must not replace records.

    Raises:
        InputError: it does not end in .html, it is a folder, or its folder is missing.

    """
    if path is not None and (path.suffix != ".html" or path.is_dir() or not path.parent.is_dir()):
        raise InputError(f"--html {path}: name a file that ends in .html, in a folder that exists.")


def write_page(path: Path, render: Callable[[], str]) -> bool:
    """Write the page, whole or not at all, and say on stderr where it is, or why it was not written (False)."""
    try:
        write_text(path, render())
    except Exception as error:  # a fault of the page must not turn the printed result into a traceback
        missing = isinstance(error, ModuleNotFoundError)
        reason = install_hint(error.name) if missing else reason_of(error)
        print(f"error: {printable(f'{path} was not written: {reason}')}", file=sys.stderr)
        return False
    print(f"open in a browser: {printable(path)}", file=sys.stderr)
    return True
