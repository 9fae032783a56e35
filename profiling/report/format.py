"""Formats typed values as text, in one way for each kind of value; a dash means not measured."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from profiling.errors import printable

# Written as escapes, for they look like ASCII: an en dash, a minus and a times sign.
ABSENT = "\u2013"
MINUS = "\u2212"
TIMES = "\u00d7"
MIB = 2**20

#: The kind of a value: it decides the digits, and the unit in the column's header.
Kind = Literal[
    "text",
    "flag",  # bool: yes or no
    "count",  # a whole number, or an average of whole numbers; infinity is shown as "never"
    "number",  # any other number: four significant digits, thousands apart
    "ms",
    "s",
    "us",
    "MiB",  # bytes, shown as MiB
    "percent",  # a fraction of 1
    "ratio",  # 6.01×
    "fps",
    "error",  # a small relative error: 1.7e-02
]
UNITS: Mapping[Kind, str] = {"ms": "ms", "s": "s", "us": "µs", "MiB": "MiB"}

_MARKDOWN = re.compile(r"[\\`*|<>~\[\]]|(?<![^\W_])_|_(?![^\W_])")


@dataclass(frozen=True)
class Estimate:
    """A number with the ends of its 95% interval, all in the same unit."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Marked:
    """A number behind a mark: `~` if it was computed from others, `max` for the longest in place of a percentile."""

    mark: str
    value: float


@dataclass(frozen=True)
class Link:
    """A text with a link to a file, by a path relative to the page; the console and Markdown show the text only."""

    text: str
    href: str | None


Value = str | bool | float | Estimate | Marked | Link
Named = TypeVar("Named")


def estimate(value: float | None, interval: Sequence[float] | None) -> Estimate | float | None:
    """Return the number with its interval; without one the bare number."""
    return Estimate(value, *interval) if value is not None and interval is not None else value


def number_of(value: Value | None) -> float | None:
    """Return the number that a table sorts `value` by; None for text, and for what is infinite or was not measured."""
    number = value.value if isinstance(value, Estimate | Marked) else value
    return float(number) if isinstance(number, bool | int | float) and math.isfinite(number) else None


def show(value: Value | None, kind: Kind = "text") -> str:
    """Return `value` as the text of its kind, on one line: `2.184 ±0.1%`, `~2.57`, `max 3.1`, `–`."""
    if value is None:
        return ABSENT
    if isinstance(value, Link):
        return printable(value.text)
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Marked):
        return f"{value.mark}{_SHOW[kind](value.value)}"
    if isinstance(value, Estimate):
        return _with_interval(value, _SHOW[kind])
    return _SHOW[kind](value)


def _with_interval(estimate: Estimate, show_one: Callable[[float], str]) -> str:
    """Return `2.01 ±0.2%`, or `7.0 (5.9-9.8)` where the interval reaches further than a tenth of the number."""
    value, low, high = estimate.value, estimate.low, estimate.high
    reach = max(high - value, value - low) / value if value > 0 else math.inf
    if reach > 0.1:
        unit = TIMES if show_one(value).endswith(TIMES) else ""
        between = "-" if low >= 0 else " to "
        return f"{significant(value, 2)}{unit} ({significant(low, 2)}{between}{significant(high, 2)})"
    return f"{show_one(value)} ±{max(reach, 0.001):.1%}"


def significant(value: float | None, digits: int = 4) -> str:
    """Return `value` in fixed notation with `digits` significant digits; digits before the point are never dropped."""
    if value is None or not math.isfinite(value):
        return ABSENT
    if value != 0 and abs(value) < 1e-4:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{decimals(value, digits)}f}"


def decimals(value: float, digits: int) -> int:
    """Return how many digits after the point show `digits` significant ones."""
    # The exponent is that of the rounded number: 9.9996 at four digits is 10.00.
    exponent = int(f"{abs(value):.{digits - 1}e}".partition("e")[2])
    return max(0, digits - 1 - exponent)


def mebibytes(count: float) -> str:
    """Return bytes as a number of MiB: whole ones from ten on, two significant digits below."""
    value = count / MIB
    return f"{value:.0f}" if value == 0 or abs(value) >= 9.95 else significant(value, 2)


def percent(share: float | None) -> str:
    """Return a fraction of 1 as `63%`, below ten percent as `4.2%`."""
    if share is None or not math.isfinite(share):
        return ABSENT
    return f"{share:.{1 if 0 < abs(share) < 0.0995 else 0}%}"


def times(ratio: float | None) -> str:
    """Return `6.01×`."""
    return ABSENT if ratio is None else f"{significant(ratio, 3)}{TIMES}"


def count(value: float) -> str:
    """Return a count or an average count: `308`, `2.4`; `never` for an infinite one."""
    return "never" if math.isinf(value) else f"{round(value, 1):.10g}"


def count_of(number: float, noun: str) -> str:
    """Return `1 graph`, `2 graphs`, `10,240 calls`."""
    return f"{round(number, 1):,.10g} {noun}{'' if number == 1 else 's'}"


def listed(names: Sequence[str]) -> str:
    """Return `24, 30 and 60`."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def few(names: Sequence[str]) -> str:
    """Return the names, of many the first two."""
    return listed(names if len(names) <= 3 else [*names[:2], f"{len(names) - 2} more"])


def named_once(said: Iterable[tuple[Named, str]]) -> dict[str, list[Named]]:
    """Return each sentence once with the names that it concerns, of pairs (name, sentence)."""
    names: dict[str, list[Named]] = {}
    for name, sentence in said:
        names.setdefault(sentence, []).append(name)
    return names


def escaped(text: object) -> str:
    """Return `text` on one line, harmless in Markdown prose and in the cell of a Markdown table."""
    return _MARKDOWN.sub(lambda match: "\\" + match.group(), printable(text))


def struck(text: str) -> str:
    """Return the text struck out as in Markdown (`~~text~~`), which stays readable in terminals and logs."""
    return text if text == ABSENT else f"~~{text}~~"


def _number(value: float) -> str:
    if abs(value) < 10_000 or not math.isfinite(value):
        return significant(value)
    return f"{float(f'{value:.3e}'):,.0f}"


_SHOW: Mapping[Kind, Callable[[float], str]] = {
    "text": str,
    "flag": lambda value: "yes" if value else "no",
    "count": count,
    "number": _number,
    "ms": significant,
    "s": lambda value: significant(value, 3),
    "us": lambda value: significant(value, 3),
    "MiB": mebibytes,
    "percent": percent,
    "ratio": times,
    "fps": lambda value: significant(value, 3),
    "error": lambda value: f"{value:.1e}",
}
