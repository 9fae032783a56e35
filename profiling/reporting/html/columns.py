"""Which columns of a table are numbers, and what each of their cells is sorted by."""

from __future__ import annotations

import re

from profiling.reporting.format import ABSENT, MINUS
from profiling.reporting.html.section import Table

#: Words before a number that say how it was come by, not how large it is.
_LEAD = r"(?:ok |FAIL |~ ?)?"
_NUMBER = re.compile(rf"{_LEAD}\[?([+{MINUS}-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?)(?![\w.:-])")
#: What may stand in a column of numbers without being one; sorted behind all that are.
_NONE = frozenset({"", ABSENT, "never"})


def sort_keys(table: Table) -> tuple[tuple[float | None, ...] | None, ...]:
    """Return for each column the number of each row's cell, or None where the column holds words."""
    columns = zip(*table.rows, strict=True) if table.rows else ((),) * len(table.headers)
    return tuple(_keys([cell.text for cell in column]) for column in columns)


def number_in(text: str) -> float | None:
    """Return the number that `text` begins with: of `8.7 ± 0.2`, `3.97× [3.96, 3.98]`, `ok 1.7e-02`, `12 of 600`."""
    found = _NUMBER.match(text)
    return float(found[1].replace(",", "").replace(MINUS, "-")) if found else None


def _keys(texts: list[str]) -> tuple[float | None, ...] | None:
    numbers = [number_in(text) for text in texts]
    words = [text for text, number in zip(texts, numbers, strict=True) if number is None and text not in _NONE]
    return None if words or all(number is None for number in numbers) else tuple(numbers)
