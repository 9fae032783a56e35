"""Renders sections as one self-contained HTML page, which makes no requests.

Its Content-Security-Policy has the digest of the one script that may run and forbids requests: a script in a name that
was not escaped would not run.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING

from profiling.report.format import significant
from profiling.report.table import AnyTable, Depth

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

    from profiling.report.charts import Chart


#: The page of a run, or of a sweep, in its folder.
PAGE_FILE = "report.html"
#: What the page holds beside its template.
_INLINED = ("style.css", "page.js")
#: Where a recipe is joined of steps (`channels_last+compile`), and another name of words (`image_decoder`, not `TB/s`).
_STEPS, _WORDS = (re.compile(rf"(?<=\w[{joints}])(?=\w\w)|(?<=[^\W\d][.:,])(?=[^\W\d])") for joints in ("+", "_/"))


@dataclass(frozen=True)
class Section:
    """A part of a report under a heading. An empty section is false, and is left out."""

    key: str  # unique on the page
    title: str
    lines: Sequence[str] = ()
    legend: Sequence[str] = ()  # definitions and details below the tables, which the console leaves out
    tables: Sequence[AnyTable] = ()
    charts: Sequence[Chart] = ()
    text: str = ""  # shown as it is, line by line
    depth: Depth = "console"
    leads: bool = False  # its tables come before its lines

    def __bool__(self) -> bool:
        return bool(self.lines or any(self.charts) or any(self.tables) or self.text)


def render_page(title: str, heading: Sequence[str], sections: Sequence[Section]) -> str:
    """Return the page: the first section, then `heading`, a line each, then the others with their tables folded."""
    from markupsafe import Markup

    style, script = ((files("profiling.report") / "templates" / name).read_text("utf-8") for name in _INLINED)
    page = _templates().get_template("page.html")
    return page.render(
        title=title,
        heading=heading,
        sections=[section for section in sections if section],
        style=Markup(style),
        script=Markup(script),
        digest=f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}",
    )


def _templates() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("profiling.report")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters |= {"ms": significant, "breakable": _breakable}
    return made


def _breakable(text: str) -> Markup:
    """Return `text` as escaped HTML that may break between the steps of a recipe, and the words of other names."""
    from markupsafe import Markup, escape

    def broken(name: re.Match[str]) -> str:
        return (_STEPS if "+" in name[0] else _WORDS).sub("<wbr>", name[0])

    return Markup(re.sub(r"\S+", broken, str(escape(text))))
