"""What the reader came for: a line a component, what went wrong, and what to know beside it."""

from __future__ import annotations

from collections import Counter

from profiling.reporting.details import causes, networks, notes
from profiling.reporting.html.material import Material
from profiling.reporting.html.section import Section
from profiling.reporting.realtime_verdict import realtime_verdicts
from profiling.reporting.verdict import verdicts


def verdict_section(material: Material) -> Section:
    """Return the verdict lines, and how many cells came to what."""
    counts = Counter(record.status for record in material.records)
    cells = f"Cells: {', '.join(f'{count} {status}' for status, count in counts.items())}."
    lines = (*realtime_verdicts(material.records), *verdicts(material.timed))
    return Section("verdict", "Verdict", lines=(*lines, cells) if counts else ("No cell has ended yet.",))


def not_ok_section(material: Material) -> Section:
    """Return a line for each cell that is not ok."""
    return Section("not-ok", "Not ok", lines=causes(material.records, material.run))


def notes_section(material: Material) -> Section:
    """Return what cells noted, and what the networks are."""
    cells = [record for record in material.records if not record.launches]
    return Section("notes", "Notes and networks", lines=(*notes(material.records), *networks(cells)))
