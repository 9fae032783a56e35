"""Errors in the user's input, printed in one line (other exceptions get a traceback), and the text of all messages.

Text from outside (names, exceptions, HTTP reasons, output of processes) becomes harmless by `printable`, and a command
that is printed to be pasted is made by `command` and `override`.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import re
import shlex
import shutil
import sys
import traceback
from collections.abc import Collection, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: Most characters of a message. A longer one loses its middle: its end says what to type next.
LONGEST = 2000
#: Most characters of a recorded command line, which has a word for each option.
LONGEST_COMMAND = 100_000
#: Escape sequences of terminals: colours and cursor (CSI), titles and links (OSC), and the short ones.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?|\x1b[ -~]"
)
#: Values that Hydra reads as text without quotes.
_PLAIN_VALUE = re.compile(r"(?!(?:null|true|false|nan|inf)\Z)[A-Z_/][A-Z0-9_./-]*", re.ASCII | re.IGNORECASE)
#: Numbers from here on are no times, shares or limits of anybody, and overflow when they are computed with.
_HUGE = 1e100
_MOST = 10**9
#: Most characters of a traceback; the text of an exception may be of any length.
_TRACEBACK = 100_000
_BREAKS = re.compile(r" *\n[ \n]*")
#: In the message of a step that must replace layers, and replaced none; and of a transform that is optional.
DID_NOTHING, CHANGES_NOTHING = "asked for, did nothing", "changes nothing"
#: Exit code after Ctrl-C.
INTERRUPTED = 130


class InputError(Exception):
    """The user's input is wrong. The message is one line: the wrong value, the reason, and the next thing to type."""

    exit_code = 2

    def __init__(self, message: object) -> None:
        super().__init__(printable(message))


class SkippedError(Exception):
    """A cell cannot run here, or its variant does not apply to the module: the cell is skipped, not failed."""


class NothingChangedError(SkippedError):
    """A step of a recipe changed nothing, although it was asked for: what it is named after would not be measured."""


class WrongOutputError(RuntimeError):
    """A prepared step returns other outputs than the module."""


class MissingExtraError(SkippedError):
    """An optional package is not installed."""


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """Return `" Did you mean 'compile'?"` with up to three `options` that are similar to `word`, or `""` for none."""
    near = difflib.get_close_matches(word, sorted(set(options)), n=3, cutoff=2 / 3)  # two of three letters are shared
    return f" Did you mean {' or '.join(repr(option) for option in near)}?" if near else ""


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Raise an InputError unless the value of option `name` is one of `choices`."""
    if value not in choices:
        raise InputError(f"{name}={value} is none of {', '.join(choices)}.{did_you_mean(str(value), choices)}")


def check_whole(name: str, value: object, least: int = 1, most: int = _MOST) -> None:
    """Raise an InputError unless the value of option `name` is a whole number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        limits = f"{least} to {most}" if most != _MOST else f"at least {least}, and at most {most}"
        raise InputError(f"{name}={value_text(value)} must be a whole number, {limits}.")


def check_number(
    name: str, value: object, *, above: float | None = None, least: float | None = None, below: float = _HUGE
) -> None:
    """Raise an InputError unless the value of option `name` is a finite number in the range that is named.

    It must be above `above`, at least `least`, and below `below`.
    """
    limits = [f"above {above:g}"] if above is not None else []
    limits += [f"at least {least:g}"] if least is not None else []
    limits += [f"below {below:g}"] if below < _HUGE else []
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not (-_HUGE if least is None else least) <= value < min(below, _HUGE)
        or (above is not None and value <= above)
    ):
        raise InputError(
            f"{name}={value_text(value)} must be a finite number{', ' * bool(limits)}{' and '.join(limits)}."
        )


def value_text(value: object) -> str:
    """Return a value as a message shows it; an int of more than 4300 digits has no text in Python."""
    return "a number of thousands of digits" if isinstance(value, int) and abs(value) > 10**60 else repr(value)


def install_hint(package: str | None) -> str:
    """Return `jinja2 is not installed. To install it: python -m pip install jinja2`, for this interpreter."""
    package = (package or "").partition(".")[0]
    return f"{package} is not installed. To install it: {command('-m', 'pip', 'install', package)}"


def missing_package(package: str) -> str | None:
    """Return `install_hint` of a package that cannot be imported, else None; a folder of that name is no package."""
    spec = find_spec(package)
    return install_hint(package) if spec is None or spec.origin is None else None


def printable(text: object, limit: int = LONGEST) -> str:
    """Return `text` on one line of at most `limit` characters, without escape sequences and control characters.

    Characters that cannot be printed (also lone surrogates and those that change the direction of text) become a space.
    A longer text loses its middle.
    """
    plain = _text_of(text)
    if len(plain) > 8 * limit:  # bounds the time
        plain = f"{plain[: 4 * limit]}\n{plain[-4 * limit :]}"
    plain = "".join(char if char.isprintable() else "\n" for char in _ESCAPES.sub("", plain))
    plain = _BREAKS.sub(" ", plain).strip()
    if len(plain) <= limit:
        return plain
    end = (limit - 1) // 3
    return f"{plain[: limit - 1 - end]}…{plain[len(plain) - end :]}"


def reason_of(error: BaseException) -> str:
    """Return an exception's type and the first line of its text, in 500 characters; an InputError's whole message.

    A line that ends with a colon announces the next one: `backend='inductor' raised:`, for example.
    """
    if isinstance(error, InputError):
        return str(error)
    lines = filter(None, (printable(line, 500) for line in _text_of(error)[:100_000].splitlines()))
    said = [next(lines, "no message")]
    while said[-1].endswith(":") and (line := next(lines, "")):
        said.append(line)
    return printable(f"{type(error).__name__}: {' '.join(said)}", 500)


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and those that it was raised from, each once: an error that is raised from itself has no end."""
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and all(cause is not each for each in seen):
        yield cause
        seen.append(cause)
        cause = cause.__cause__ or cause.__context__


def print_traceback(error: BaseException) -> None:
    """Print the traceback on standard error, which the cell's code may have closed, without escape sequences."""
    text = "".join(traceback.format_exception(error))
    if len(text) > _TRACEBACK:
        text = f"{text[: _TRACEBACK // 2]}\n[…]\n{text[-_TRACEBACK // 2 :]}"
    text = "".join(char if char.isprintable() or char == "\n" else " " for char in text)
    try:
        print(text, file=sys.stderr, flush=True)
    except (OSError, ValueError, AttributeError):
        with contextlib.suppress(OSError):
            os.write(2, text.encode(errors="replace"))


def _text_of(thing: object) -> str:
    try:
        return str(thing)
    except BaseException as error:  # the user's code may define it
        return f"{type(thing).__name__} without text: its __str__ raises {type(error).__name__}"


class _ErrorStream(io.FileIO):
    """The raw stream of standard error. What it cannot write (a closed terminal, a full disk) is lost and no error."""

    def write(self, content: Buffer, /) -> int:
        try:
            return super().write(content)
        except OSError:
            return len(memoryview(content))


def prepare_output() -> None:
    """Make it safe to print, whatever standard output and error are: closed, full, of a terminal that goes away.

    Characters that an encoding lacks are replaced. A descriptor that was closed becomes /dev/null; otherwise the next
    file that is opened would get its number, and messages of libraries would go into that file. `print_text` reports
    what standard output cannot hold; standard error is best effort, because no run may end for a line of progress.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free, which is this one
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - it has no path, and lives as long as this process
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    if sys.stderr is sys.__stderr__:  # and not one that a test or a notebook put in its place
        raw = io.BufferedWriter(_ErrorStream(2, "w", closefd=False))
        sys.stderr = io.TextIOWrapper(raw, errors="backslashreplace", line_buffering=True, write_through=True)
    if not re.fullmatch("[1-9][0-9]{0,3}", os.environ.get("COLUMNS", "80")):
        del os.environ["COLUMNS"]  # argparse and rich would take it as it is


def print_text(text: str) -> None:
    """Print the result of a command. A reader that has closed the pipe (`head`, for example) is no error.

    Raises:
        InputError: standard output cannot be written: it is on a full disk, for example.

    """
    try:
        print(text, flush=True)
    except OSError as error:
        discard_output()
        if not isinstance(error, BrokenPipeError):
            raise InputError(f"standard output cannot be written: {error.strerror}. Send it elsewhere.") from None


def discard_output() -> None:
    """Discard further output: Python would try to write what it holds once more when it ends, and fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def command(*words: object) -> str:
    """Return the shell command that starts this interpreter with `words`, to be pasted into any POSIX shell."""
    return f"{python_command()} {shell_words(words)}"


def shell_words(words: Iterable[object]) -> str:
    """Return `words` quoted for a POSIX shell, on one line. A relative path that begins with a dash gets `./`."""
    paths = (f"./{word}" if isinstance(word, Path) and str(word).startswith("-") else word for word in words)
    return " ".join(_quoted(str(word)) for word in paths)


def _quoted(word: str) -> str:
    if word.isprintable():
        return shlex.quote(word)
    octal = "".join(f"\\{byte:03o}" for byte in word.encode("utf-8", "surrogateescape"))
    return f"\"$(printf '{octal}')\""


def override(key: str, value: object) -> str:
    """Return `key=value` in the grammar of Hydra, which reads this very text from it; not quoted for a shell."""
    text = str(value)
    if _PLAIN_VALUE.fullmatch(text):
        return f"{key}={text}"
    # Backslashes are doubled only where they would escape: before ${ (an interpolation), a quote, and at the end.
    text = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)
    text = re.sub(r"(\\*)'", r"\1\1\\'", text)
    text = re.sub(r"(\\+)\Z", r"\1\1", text)
    return f"{key}='{text}'"


def working_directory() -> Path:
    """Return the working directory. Raises InputError if it was deleted."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise InputError("the working directory was deleted. Change to another folder.") from None


def python_command() -> str:
    """Return the command that starts this interpreter in the working directory, so that printed commands can be pasted.

    It is `python` if that is this interpreter, else its path, relative to the working directory if it lies below it.
    """
    this, cwd = Path(sys.executable), Path.cwd()
    if shutil.which("python") == str(this):
        return "python"
    return _quoted(str(this.relative_to(cwd) if this.is_relative_to(cwd) else this))
