"""The page of a run: which sections it has, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from profiling.reporting.format import one_line
from profiling.reporting.heading import environment_lines
from profiling.reporting.html import HTML_FILE as HTML_FILE
from profiling.reporting.html.artefact_sections import compile_section, trace_section
from profiling.reporting.html.distribution_section import distribution_section
from profiling.reporting.html.document import render_document
from profiling.reporting.html.inside_section import inside_section
from profiling.reporting.html.latency_section import latency_section
from profiling.reporting.html.material import Material
from profiling.reporting.html.memory_section import memory_section
from profiling.reporting.html.origin_sections import command_section, config_section, environment_section
from profiling.reporting.html.realtime_section import realtime_section
from profiling.reporting.html.section import Section
from profiling.reporting.html.sweep_section import sweep_section
from profiling.reporting.html.training_section import training_section
from profiling.reporting.html.verdict_section import not_ok_section, notes_section, verdict_section
from profiling.results.records import Record

Maker = Callable[[Material], Section]

#: A section of the page is a function in one of these two; one that has nothing to show leaves itself out.
MEASURED: tuple[Maker, ...] = (
    *(verdict_section, not_ok_section, latency_section, realtime_section, inside_section),
    *(distribution_section, memory_section, sweep_section, training_section),
)
ORIGIN: tuple[Maker, ...] = (
    *(compile_section, trace_section, notes_section, environment_section, config_section, command_section),
)


def render_html(records: Sequence[Record], environment: Mapping[str, Any], run: Path) -> str:
    """Return the page of a run; no path outside the run stands in it."""
    targets = ", ".join(dict.fromkeys(one_line(record.target) for record in records)) or "profile"
    title = f"{targets}: {one_line(run.resolve().name)}"
    return render_document(title, environment_lines(environment), _sections(Material(records, environment, run)))


def _sections(material: Material) -> list[Section]:
    """Return the sections in their order; a table that none of them took has a place of its own."""
    measured = [make(material) for make in MEASURED]
    taken = {table.title for section in measured for table in section.tables}
    others = tuple(table for table in material.tables if table.title not in taken)
    more = Section("more", "More tables", tables=others)
    return [*measured, more, *(make(material) for make in ORIGIN)]
