"""Two sides and what a comparison found in them, worked out once for the text and for the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from profiling.comparison.changes import changes
from profiling.comparison.judgement import Judged
from profiling.comparison.side import Side
from profiling.comparison.surroundings import Difference, differences, unknown


@dataclass(frozen=True)
class Comparison:
    """B held against A; `threshold` is how far apart is still the same, as a part of A."""

    a: Side
    b: Side
    cells: Sequence[Judged]
    threshold: float

    @property
    def sides(self) -> tuple[tuple[str, Side], tuple[str, Side]]:
        """Each side with its letter."""
        return ("A", self.a), ("B", self.b)

    @cached_property
    def around(self) -> tuple[Difference, ...]:
        """What differs around the two, what explains most first."""
        return differences(self.a, self.b)

    @cached_property
    def unknown(self) -> tuple[str, ...]:
        """What may differ unseen, a line each."""
        return unknown(self.a, self.b)

    @cached_property
    def changed(self) -> tuple[tuple[str, ...], ...]:
        """Rows (component, variant, what, in A, in B) of what else changed in the cells."""
        return tuple((*cell.cell, *change) for cell in self.cells for change in changes(self.a, self.b, cell.cell))
