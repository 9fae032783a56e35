"""What lies in what: spans and operators of one row of a trace nest or follow one another, so a stack walks them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from profiling.inside.timeline import Operator, Stretch


def innermost(spans: Sequence[Stretch], moments: Sequence[tuple[float, Any]]) -> list[Stretch | None]:
    """Return for each (moment, row) the innermost of nested `spans` on that row that holds it; both sorted by time.

    A span that begins and ends with another counts as inside it where it comes later in `spans`.
    """
    found: list[Stretch | None] = []
    open_spans: dict[Any, list[Stretch]] = {}
    place = 0
    for moment, row in moments:
        while place < len(spans) and spans[place].begin <= moment:
            _open(open_spans.setdefault(spans[place].row, []), spans[place])
            place += 1
        stack = open_spans.get(row, [])
        while stack and stack[-1].end < moment:
            stack.pop()
        found.append(stack[-1] if stack else None)
    return found


def _open(stack: list[Stretch], span: Stretch) -> None:
    while stack and stack[-1].end < span.begin:
        stack.pop()
    stack.append(span)


def parents_of(operators: Sequence[Operator]) -> Mapping[int | None, Operator]:
    """Return for each operator, by id, the one that called it; `operators` are sorted, those around first."""
    found: dict[int | None, Operator] = {}
    open_operators: dict[Any, list[Operator]] = {}
    for operator in operators:
        stack = open_operators.setdefault(operator.row, [])
        while stack and stack[-1].end < operator.begin:
            stack.pop()
        if stack:
            found[operator.id] = stack[-1]
        stack.append(operator)
    return found
