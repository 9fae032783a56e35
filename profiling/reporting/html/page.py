"""The page itself: its sections in their order, and all that it needs inside it, so that it asks nobody for anything.

A browser is told the digest of each script that may run, and that nothing may be fetched: a name that found its way
around the escaping would still do nothing.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from profiling.core.records import Record
from profiling.reporting.format import one_line
from profiling.reporting.heading import environment_lines
from profiling.reporting.html import HTML_FILE as HTML_FILE
from profiling.reporting.html.artefact_sections import compile_section, trace_section
from profiling.reporting.html.columns import sort_keys
from profiling.reporting.html.distribution_section import distribution_section
from profiling.reporting.html.latency_section import latency_section
from profiling.reporting.html.material import Material
from profiling.reporting.html.memory_section import memory_section
from profiling.reporting.html.origin_sections import command_section, config_section, environment_section
from profiling.reporting.html.realtime_section import realtime_section
from profiling.reporting.html.section import Section
from profiling.reporting.html.sweep_section import sweep_section
from profiling.reporting.html.training_section import training_section
from profiling.reporting.html.verdict_section import not_ok_section, notes_section, verdict_section

Maker = Callable[[Material], Section]

#: A section of the page is a function in one of these two; one that has nothing to show leaves itself out.
MEASURED: tuple[Maker, ...] = (
    *(verdict_section, not_ok_section, latency_section, realtime_section, distribution_section),
    *(memory_section, sweep_section, training_section),
)
ORIGIN: tuple[Maker, ...] = (
    *(compile_section, trace_section, notes_section, environment_section, config_section, command_section),
)


def render_html(records: Sequence[Record], environment: Mapping[str, Any], run: Path) -> str:
    """Return the page of a run, some 5 MiB of which plotly's script is most; no path outside the run stands in it."""
    material = Material(records, environment, run)
    sections = _sections(material)
    specs = {chart.key: [dict(view.figure) for view in chart.views] for part in sections for chart in part.charts}
    scripts = [*([get_plotlyjs()] if specs else []), *(_packaged(name) for name in ("charts.js", "tables.js"))]
    targets = ", ".join(dict.fromkeys(one_line(record.target) for record in records)) or "profile"
    return _template().render(
        title=f"{targets}: {one_line(run.resolve().name)}",
        heading=environment_lines(environment),
        sections=sections,
        style=Markup(_packaged("style.css")),
        scripts=[Markup(script) for script in scripts],
        digests=[_digest(script) for script in scripts],
        specs=htmlsafe_json_dumps(specs, dumps=partial(json.dumps, allow_nan=False, separators=(",", ":"))),
    )


def _sections(material: Material) -> list[Section]:
    """Return the sections that show something; a table that none of them took has a place of its own."""
    measured = [make(material) for make in MEASURED]
    taken = {table.title for section in measured for table in section.tables}
    others = tuple(table for table in material.tables if table.title not in taken)
    more = Section("more", "More tables", tables=others)
    return [section for section in (*measured, more, *(make(material) for make in ORIGIN)) if section]


def _template() -> Any:
    loader = PackageLoader("profiling.reporting.html")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.globals["sort_keys"] = sort_keys
    return environment.get_template("page.html")


def _packaged(name: str) -> str:
    return (files("profiling.reporting.html") / "templates" / name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    """Return what a Content-Security-Policy calls the script by."""
    return f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}"
