"""A page of any sections, with all that it needs inside it, so that it asks nobody for anything.

A browser is told the digest of each script that may run, and that nothing may be fetched: a name that found its way
around the escaping would still do nothing.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from profiling.reporting.html.columns import sort_keys
from profiling.reporting.html.section import Section


def render_document(title: str, heading: Sequence[str], sections: Sequence[Section]) -> str:
    """Return the page with `heading`, a line each, above the sections that hold something.

    It is some 5 MiB where there is a chart, most of which is plotly's script.
    """
    shown = [section for section in sections if section]
    specs = {chart.key: [dict(view.figure) for view in chart.views] for part in shown for chart in part.charts}
    scripts = [*([get_plotlyjs()] if specs else []), *(_packaged(name) for name in ("charts.js", "tables.js"))]
    return _template().render(
        title=title,
        heading=heading,
        sections=shown,
        style=Markup(_packaged("style.css")),
        scripts=[Markup(script) for script in scripts],
        digests=[_digest(script) for script in scripts],
        specs=htmlsafe_json_dumps(specs, dumps=partial(json.dumps, allow_nan=False, separators=(",", ":"))),
    )


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
