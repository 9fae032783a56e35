"""Errors in the user's input, printed in one line (other exceptions get a traceback), and functions for their text."""

from __future__ import annotations

import difflib
import shlex
import shutil
import sys
from collections.abc import Collection, Iterable
from pathlib import Path


class InputError(Exception):
    """The user's input is wrong. The message is one line: the wrong value, the reason, and the next thing to type."""

    exit_code = 2


class MissingExtraError(Exception):
    """An optional package is not installed: the cell that needs it is skipped, not failed."""


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """Return `" Did you mean 'compile'?"` with up to three `options` that are similar to `word`, or `""` for none."""
    near = difflib.get_close_matches(word, sorted(set(options)), n=3)
    return f" Did you mean {' or '.join(repr(option) for option in near)}?" if near else ""


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Raise an InputError unless the value of option `name` is one of `choices`."""
    if value not in choices:
        raise InputError(f"{name}={value} is none of {', '.join(choices)}.{did_you_mean(str(value), choices)}")


def check_whole(name: str, value: object, least: int = 1, most: int | None = None) -> None:
    """Raise an InputError unless the value of option `name` is a whole number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        limits = f"at least {least}" if most is None else f"{least} to {most}"
        raise InputError(f"{name}={value!r} must be a whole number, {limits}.")


def install_hint(package: str | None) -> str:
    """Return `jinja2 is not installed. To install it: python -m pip install jinja2`, for this interpreter."""
    return f"{package} is not installed. To install it: {python_command()} -m pip install {package}"


def python_command() -> str:
    """Return the command that starts this interpreter in the working directory, so that printed commands can be pasted.

    It is `python` if that is this interpreter, else its path, relative to the working directory if it lies below it.
    """
    this, cwd = Path(sys.executable), Path.cwd()
    if shutil.which("python") == str(this):
        return "python"
    return shlex.quote(str(this.relative_to(cwd) if this.is_relative_to(cwd) else this))
