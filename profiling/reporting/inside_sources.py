"""Where what stands beside a trace was seen: lines and modules often come from another pass than the times."""

from __future__ import annotations

from collections.abc import Sequence

from profiling.reporting.facts import at
from profiling.results.records import Record


def sources(records: Sequence[Record], what: str, key: str) -> tuple[str, ...]:
    """Return a line for each phrase under `key` of the sections: where `what` is from, and in which cells."""
    cells: dict[str, list[str]] = {}
    for record in records:
        phrase = at(record.inside, key)
        if isinstance(phrase, str) and phrase:
            cells.setdefault(phrase, []).append(f"{record.component}.{record.variant}")
    return tuple(f"{what}: {phrase} ({', '.join(names)})" for phrase, names in cells.items())
