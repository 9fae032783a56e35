"""Rows under headers, for the console or as Markdown; a column in which nothing was measured is left out."""

from __future__ import annotations

from collections.abc import Sequence

from tabulate import tabulate

from profiling.reporting.format import ABSENT, escaped, one_line

#: A table under its title.
Titled = tuple[str, str]


def grid(headers: Sequence[str], rows: Sequence[Sequence[str]], *, markdown: bool, names: int = 2) -> str:
    """Lay out `rows`, of which the first `names` columns are names (left, escaped) and the others numbers (right)."""
    if not rows:
        return ""
    kept = [index for index in range(len(headers)) if any(row[index] != ABSENT for row in rows)]
    shown = escaped if markdown else one_line
    text = [[shown(row[i]) if i < names else row[i] for i in kept] for row in rows]
    return tabulate(
        text,
        headers=[shown(headers[i]) for i in kept],
        tablefmt="github" if markdown else "simple",
        colalign=["left" if i < names else "right" for i in kept],
        disable_numparse=True,
    )


def noted(table: str, lines: Sequence[str]) -> str:
    """Return a Markdown table with `lines` below it, which are escaped here."""
    return "\n".join((table, "", *(f"- {escaped(line)}" for line in lines))) if lines else table
