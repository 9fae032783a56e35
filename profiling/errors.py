"""Errors of the user's input, printed in one line (any other exception gets a traceback), and help for their text."""

from __future__ import annotations

import difflib
import shlex
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path


class InputError(Exception):
    """The input is wrong. The message is one line: what was wrong, with what, and what to type next."""

    exit_code = 2


class MissingExtraError(Exception):
    """An optional package is not installed: the cell that needs it is skipped, not failed."""


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """Return `" Did you mean 'compile'?"` with the nearest of `options` (at most three), or `""` when none is near."""
    near = difflib.get_close_matches(word, sorted(set(options)), n=3)
    return f" Did you mean {' or '.join(repr(option) for option in near)}?" if near else ""


def install_hint(package: str | None) -> str:
    """Return `jinja2 is not installed. To install it: python -m pip install jinja2`, with this interpreter."""
    return f"{package} is not installed. To install it: {python_command()} -m pip install {package}"


def python_command() -> str:
    """Return how a shell in the working directory starts this interpreter, so that printed commands run as pasted.

    `python` if that is this interpreter, else its path, relative to the working directory if it lies below it.
    """
    this, cwd = Path(sys.executable), Path.cwd()
    if shutil.which("python") == str(this):
        return "python"
    return shlex.quote(str(this.relative_to(cwd) if this.is_relative_to(cwd) else this))
