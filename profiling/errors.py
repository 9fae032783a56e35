"""What the user got wrong, told apart from what we got wrong: the first is one line, the second a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(Exception):
    """The user gave something wrong: one line that says what was wrong, with what, and what to type next."""

    exit_code = 2


class MissingExtraError(Exception):
    """An optional dependency is not installed: what needs it is skipped, which is no failure."""


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """Return `" Did you mean 'compile'?"` with the nearest of `options` (at most three), or `""` when none is near."""
    near = difflib.get_close_matches(word, sorted(set(options)), n=3)
    return f" Did you mean {' or '.join(repr(option) for option in near)}?" if near else ""
