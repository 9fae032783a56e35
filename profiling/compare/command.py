"""Options and output of the commands `compare` and `history`: --markdown, --html, errors in one line."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from profiling.errors import InputError, install_hint, printable, shell_words
from profiling.report.format import escaped
from profiling.report.page import Section
from profiling.report.table import console, markdown, wrapped_line
from profiling.results.run_folder import write_text

_SUFFIX = ".html"


def parse_options(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Add the options of both commands to `parser` and parse the command line."""
    parser.add_argument("--markdown", action="store_true", help="print tables as Markdown, for a pull request")
    parser.add_argument("--html", metavar="FILE", type=Path, help="also write a page with charts (name it *.html)")
    return parser.parse_intermixed_args(arguments)  # options may stand between and after the others


def describe_error(error: Exception) -> str:
    """Return the error and the file and line that raised it, in one line: `TypeError: … (cells.py:40)`."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {printable(error)}{place}"


def check_page_path(path: Path) -> None:
    """Refuse a path that no page can be written to, before anything is read.

    Raises:
        InputError: its folder is missing, it is a folder, or it does not end in .html: it must not replace records.

    """
    if path.is_dir():
        raise InputError(f"--html {path} is a folder. Name a file in it: {shell_words(['--html', path / 'page.html'])}")
    if path.suffix != _SUFFIX:
        page = shell_words(["--html", path.with_suffix(_SUFFIX)])
        raise InputError(f"--html {path} does not end in {_SUFFIX}. Name a page: {page}")
    if not path.parent.is_dir():
        mkdir = shell_words(["mkdir", "-p", path.parent])
        raise InputError(f"--html {path}: there is no folder {path.parent}. Make it first: {mkdir}")


def write_page(path: Path, render: Callable[[], str]) -> bool:
    """Write the page, whole or not at all, and say on stderr where it is, or why it was not written (False)."""
    try:
        write_text(path, render())
    except ModuleNotFoundError as error:
        reason = install_hint(error.name)
    except OSError as error:
        reason = f"{error.strerror or type(error).__name__}. Name another file with --html."
    except Exception as error:  # a fault of the page must not turn the printed result into a traceback
        reason = f"{describe_error(error)}. Leave --html out."
    else:
        print(f"open in a browser: {printable(path)}", file=sys.stderr)
        return True
    print(f"error: {printable(f'{path} was not written: {reason}')}", file=sys.stderr)
    return False


def section_text(section: Section, *, as_markdown: bool) -> str:
    """Return the section of a page as text: its lines, each table under its title, and the legend."""
    show = markdown if as_markdown else console
    titles = [f"### {escaped(table.title)}" if as_markdown else wrapped_line(table.title) for table in section.tables]
    parts = [f"{title}\n\n{show(table)}" for title, table in zip(titles, section.tables, strict=True) if table]
    legend = paragraph(section.legend, as_markdown=as_markdown)
    return "\n\n".join(filter(None, (paragraph(section.lines, as_markdown=as_markdown), *parts, legend)))


def paragraph(lines: Iterable[str], *, as_markdown: bool = False) -> str:
    """Return the lines, each broken to the width of the console, or as a Markdown list."""
    if as_markdown:
        return "\n".join(f"- {escaped(line)}" for line in lines)
    return "\n".join(map(wrapped_line, lines))
