"""How far networks that keep state drift from eager, call by call."""

from __future__ import annotations

from collections.abc import Sequence

from profiling.reporting.facts import at
from profiling.reporting.format import ABSENT
from profiling.reporting.grid import Titled, grid
from profiling.results.records import Record

#: Calls that are shown, counted from 1; the record holds all.
CALLS = (1, 2, 10, 50, 100, 300, 1000)
HEADERS = tuple(f"call {call}" for call in CALLS)


def drift_tables(records: Sequence[Record], *, markdown: bool) -> tuple[Titled, ...]:
    """Return the table of relative L2 errors against eager in the same dtype, or nothing where none was measured."""
    rows = []
    for record in records:
        errors = at(record.metrics, "drift", "rel_l2")
        if not isinstance(errors, list | tuple):
            continue
        shown = [f"{errors[call - 1]:.1e}" if call <= len(errors) else ABSENT for call in CALLS]
        rows.append((record.component, record.variant, *shown, f"{max(errors):.1e}"))
    table = grid(("component", "variant", *HEADERS, "worst"), rows, markdown=markdown)
    return (("Drift from eager in the same dtype, relative L2 error by call", table),) if table else ()
