"""What the commands `compare` and `history` share: the options --markdown and --html, and their output."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from profiling.errors import InputError, install_hint, print_text, printable, reason_of
from profiling.report.page import Section, render_page
from profiling.report.render import console_text, markdown_text
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


def show(options: argparse.Namespace, title: str, heading: Sequence[str], sections: Sequence[Section]) -> bool:
    """Print the sections, and write their page where --html asks for it, whole or not at all.

    Says on stderr where the page is, or why it was not written (False).
    """
    as_markdown = options.markdown
    print_text(markdown_text(title, heading, sections) if as_markdown else console_text(heading, sections, ()))
    path: Path | None = options.html
    if path is None:
        return True
    try:
        write_text(path, render_page(title, heading, sections))
    except Exception as error:  # a fault of the page must not turn the printed result into a traceback
        missing = isinstance(error, ModuleNotFoundError)
        reason = install_hint(error.name) if missing else reason_of(error)
        print(f"error: {printable(f'{path} was not written: {reason}')}", file=sys.stderr)
        return False
    print(f"open in a browser: {printable(path)}", file=sys.stderr)
    return True
