"""Aligns two sequences of names, of a replay and of the same work launched one by one."""

from __future__ import annotations

from functools import lru_cache

import numpy

#: What a pair of equal names is worth, and what it costs to leave one of either out. Two names that differ may face
#: each other for nothing: of layers that are alike, the third faces the third though another has a kernel of its own.
_EQUAL, _LEFT_OUT = 2, 1
#: Cells of the table of scores (4 bytes each) beyond which nothing is aligned.
_MOST_CELLS = 50_000_000


@lru_cache(maxsize=16)  # the calls of a trace are mostly alike
def aligned(names: tuple[str, ...], known: tuple[str, ...]) -> tuple[int | None, ...]:
    """Return for each of `names` the place in `known` of its counterpart, an equal name; None where it has none.

    Places rise. Where `known` stands in `names` as a whole, that is the alignment, else the one of the highest score.
    """
    for begin in range(len(names) - len(known) + 1):
        if names[begin : begin + len(known)] == known:
            places = range(len(known))
            return (*(None,) * begin, *places, *(None,) * (len(names) - begin - len(known)))
    if len(names) * len(known) > _MOST_CELLS:
        return (None,) * len(names)
    return _traced_back(names, known, _scores(names, known))


def _scores(names: tuple[str, ...], known: tuple[str, ...]) -> numpy.ndarray:
    """Return the best score of every beginning of `names` (rows) against every beginning of `known` (columns)."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys((*names, *known)))}
    columns = numpy.array([numbers[name] for name in known])
    steps = _LEFT_OUT * numpy.arange(len(known) + 1, dtype=numpy.int32)
    table = numpy.empty((len(names) + 1, len(known) + 1), dtype=numpy.int32)
    table[0] = -steps
    for row, name in enumerate(names, 1):
        best = table[row - 1] - _LEFT_OUT
        best[1:] = numpy.maximum(best[1:], table[row - 1, :-1] + _EQUAL * (columns == numbers[name]))
        table[row] = numpy.maximum.accumulate(best + steps) - steps  # any run of `known` left out before a column
    return table


def _traced_back(names: tuple[str, ...], known: tuple[str, ...], table: numpy.ndarray) -> tuple[int | None, ...]:
    found: list[int | None] = [None] * len(names)
    row, column = len(names), len(known)
    while row and column:
        equal = names[row - 1] == known[column - 1]
        if table[row, column] == table[row - 1, column - 1] + _EQUAL * equal:
            row, column = row - 1, column - 1
            found[row] = column if equal else None
        elif table[row, column] == table[row - 1, column] - _LEFT_OUT:
            row -= 1
        else:
            column -= 1
    return tuple(found)
