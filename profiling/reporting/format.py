"""Numbers and names to text: as many digits as read well, and a dash for what was not measured."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

# Written as escapes, for they look like ASCII.
EN_DASH = "\u2013"
MINUS = "\u2212"
TIMES = "\u00d7"

ABSENT = EN_DASH
MIB = 2**20

_MARKDOWN = re.compile(r"[\\`*|<>~\[\]]|(?<![^\W_])_|_(?![^\W_])")


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


def mean_std(mean: float | None, std: float | None) -> str:
    """Return `2.500 ± 0.019`: both to the mean's decimals, unless the spread would read as zero."""
    if mean is None or std is None:
        return significant(mean)
    if abs(mean) < 1e-4:
        return f"{significant(mean)} ± {significant(std, 2)}"
    places = decimals(mean, 4)
    if std > 0 and decimals(std, 1) > places:
        return f"{significant(mean)} ± {significant(std, 1)}"
    return f"{significant(mean)} ± {std:.{places}f}"


def frames_per_second(mean: float | None, low: float | None, high: float | None) -> str:
    """Return `400 (370–407)`: the mean and the range."""
    if mean is None or low is None or high is None:
        return significant(mean, 3)
    return f"{significant(mean, 3)} ({significant(low, 3)}{EN_DASH}{significant(high, 3)})"


def times_faster(ratio: float | None, interval: tuple[float, float] | None) -> str:
    """Return `11.5× [11.4, 11.6]`: the ratio and its 95% interval."""
    if ratio is None:
        return ABSENT
    shown = f"{significant(ratio, 3)}{TIMES}"
    return f"{shown} [{significant(interval[0], 3)}, {significant(interval[1], 3)}]" if interval else shown


def mebibytes(count: float | None) -> str:
    """Return bytes as a number of MiB: whole ones from ten on, two significant digits below."""
    if count is None:
        return ABSENT
    value = count / MIB
    return f"{value:.0f}" if value == 0 or abs(value) >= 9.95 else significant(value, 2)


def count_of(number: float, noun: str) -> str:
    """Return `1 graph`, `2 graphs`."""
    return f"{number:g} {noun}{'' if number == 1 else 's'}"


def average_count(value: float | None) -> str:
    """Return how many there are on average: `308`, `2.4`."""
    return ABSENT if value is None else f"{round(value, 1):.10g}"


def whole(value: float | None) -> str:
    """Return a count."""
    return ABSENT if value is None else f"{value:.0f}"


def percent(share: float | None, places: int = 0) -> str:
    """Return a share of 1 as `63%`."""
    return ABSENT if share is None else f"{share:.{places}%}"


def shortened(text: object, most: int) -> str:
    """Return `text` on one line, cut to `most` characters; a cut shows."""
    plain = one_line(text)
    return plain if len(plain) <= most else f"{plain[: most - 1]}…"


def listed(names: Sequence[str]) -> str:
    """Return `24, 30 and 60`."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def struck(text: str) -> str:
    """Strike a time out: as Markdown does it, which terminals, logs and `grep` survive too."""
    return text if text == ABSENT else f"~~{text}~~"


def one_line(text: object) -> str:
    """Return `text` on one line, free of control characters (a compiler's error is neither)."""
    return " ".join("".join(char if char.isprintable() else " " for char in str(text)).split())


def escaped(text: object) -> str:
    """Return `text` on one line, harmless in Markdown prose and in the cell of a Markdown table."""
    return _MARKDOWN.sub(lambda match: "\\" + match.group(), one_line(text))
