"""The file of a page: refused before anything is read where it cannot be, and written whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from profiling.comparison.edge import unforeseen
from profiling.errors import InputError
from profiling.results.run_folder import write_text

_SUFFIX = ".html"


class LostPageError(Exception):
    """A page could not be made or written: what the text says stands all the same."""


def checked_file(file: Path) -> Path:
    """Return `file`, which a page may be written to.

    Raises:
        InputError: its folder is missing, it is a folder, or its name is not that of a page: a slip of the pen must
            not replace the records of a run.

    """
    if file.is_dir():
        raise InputError(f"--html {file} is a folder. Name a file in it: --html {file / 'page.html'}")
    if file.suffix != _SUFFIX:
        raise InputError(f"--html {file} does not end in {_SUFFIX}. Name a page: --html {file.with_suffix(_SUFFIX)}")
    if not file.parent.is_dir():
        raise InputError(f"--html {file}: there is no folder {file.parent}. Make it first: mkdir -p {file.parent}")
    return file


def write_page(file: Path, render: Callable[[], str]) -> str:
    """Write the page that `render` makes; return the line that says where it is.

    Raises:
        LostPageError: what a page needs is not installed, the file cannot be written, or a number or name is one that
            a page has no place for; the message says which.

    """
    try:
        write_text(file, render())
    except ModuleNotFoundError as error:
        cause = f"{error.name} is not installed. pip install {error.name}"
        raise LostPageError(f"{file} was not written: {cause}") from None
    except OSError as error:
        cause = f"{error.strerror or type(error).__name__}. Name another file with --html."
        raise LostPageError(f"{file} was not written: {cause}") from None
    except Exception as error:  # whatever else: the text stands
        raise LostPageError(f"{file} was not written: {unforeseen(error)}. Leave --html out.") from None
    return f"open in a browser: {file}"
