"""Renders sections as one self-contained HTML page, which makes no requests.

Its Content-Security-Policy lists the digest of each script that may run and forbids requests: a script in a name that
was not escaped would not run.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING

from profiling.report.table import AnyTable, Depth

if TYPE_CHECKING:
    from jinja2 import Environment

    from profiling.report.charts import Chart


#: The page of a run, or of a sweep, in its folder.
PAGE_FILE = "report.html"


@dataclass(frozen=True)
class Section:
    """A part of a report under a heading. An empty section is false, and is left out."""

    key: str  # unique on the page
    title: str
    lines: Sequence[str] = ()
    legend: Sequence[str] = ()  # definitions of the numbers, not shown in the console
    tables: Sequence[AnyTable] = ()
    charts: Sequence[Chart] = ()
    text: str = ""  # shown as it is, line by line
    depth: Depth = "console"
    leads: bool = False  # its tables come before its lines

    def __bool__(self) -> bool:
        return bool(self.lines or any(self.charts) or any(self.tables) or self.text)


def render_page(title: str, heading: Sequence[str], sections: Sequence[Section]) -> str:
    """Return the page with `heading`, a line each, above the sections that hold something.

    A page with a chart has about 5 MiB, most of it plotly's script.
    """
    from jinja2.utils import htmlsafe_json_dumps
    from markupsafe import Markup

    charts = [chart for section in sections for chart in section.charts if chart]
    specs = {chart.key: [dict(view.figure) for view in chart.views] for chart in charts}
    scripts = [*([_plotly()] if specs else []), *(_packaged(name) for name in ("charts.js", "tables.js"))]
    return (
        _templates()
        .get_template("page.html")
        .render(
            title=title,
            heading=heading,
            sections=[section for section in sections if section],
            style=Markup(_packaged("style.css")),
            scripts=[Markup(script) for script in scripts],
            digests=[_digest(script) for script in scripts],
            specs=htmlsafe_json_dumps(specs, dumps=partial(json.dumps, allow_nan=False, separators=(",", ":"))),
        )
    )


def render_fragment(sections: Sequence[Section]) -> str:
    """Return the lines and tables of sections as HTML without a page around it, for a notebook's output."""
    return _templates().get_template("fragment.html").render(sections=[section for section in sections if section])


def _templates() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("profiling.report")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)


def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return get_plotlyjs()


def _packaged(name: str) -> str:
    return (files("profiling.report") / "templates" / name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    """Return the source by which a Content-Security-Policy allows the script."""
    return f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}"
