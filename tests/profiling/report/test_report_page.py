"""Every committed run as a page: whole, small enough, asking nobody for anything; hostile names are only text."""

from __future__ import annotations

import re
from base64 import b64encode
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
from hostile import ALL, BREAKOUT, CLOSING, ENVIRONMENT, MARKUP, SCRIPT, hostile_records
from report_records import MIB, build, frame_loop, run_data

from profiling.report.page import Section
from profiling.report.render import render_html, render_markdown
from profiling.report.run_data import load_run

WritePage = Callable[..., Path]
Parse = Callable[[str], Any]

ALWAYS = {"answer", "environment", "config", "command"}
EXPECTED = {
    "h200": {
        *("latency", "graphs", "roofline", "trace", "memory", "distribution", "compile", "traces", "networks"),
    },
    "h200_realtime": {"realtime", "roofline", "distribution", "compile", "networks"},
    "h200_training_step": {
        *("latency", "training", "graphs", "roofline", "memory", "distribution", "compile", "notes", "networks"),
    },
}
#: Attributes whose value a browser may fetch.
FETCHED = ("src", "srcset", "href", "data", "poster", "action", "formaction", "background", "xlink:href")


@pytest.fixture
def page(committed: Path) -> str:
    return render_html(load_run(committed))


def test_a_page_is_whole_small_and_holds_its_sections(page: str, committed: Path, parse: Parse) -> None:
    parsed = parse(page)
    size = len(page.encode())
    assert size <= 6 * MIB
    scripts = parsed.scripts if parsed.specs() else []
    assert size - len(max(scripts, key=len, default="").encode()) <= 1.25 * MIB  # beside plotly's script
    sections = {attributes["id"] for attributes in parsed.all("section")}
    assert sections >= ALWAYS - ({"answer"} if committed.name == "h200_launch_overhead" else set())
    if committed.name in EXPECTED:
        assert sections - ALWAYS == EXPECTED[committed.name]
    ids = [attributes["id"] for _, attributes in parsed.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {f"chart-{key}" for key in parsed.specs()} <= set(ids)


def test_nothing_on_a_page_is_fetched(page: str, parse: Parse) -> None:
    parsed = parse(page)
    for tag, attributes in parsed.elements:
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
        for name in FETCHED:
            value = attributes.get(name)
            assert value is None or value == "data:," or re.match(r"#|[\w.%/-]+$", value), (tag, name, value)
    assert "url(" not in page.partition("<style>")[2].partition("</style>")[0]
    policy = parsed.all("meta")[1]["content"]
    assert policy.startswith("default-src 'none'; ")
    assert "http" not in policy
    running = [s for s, a in zip(parsed.scripts, parsed.all("script"), strict=True) if a.get("type") is None]
    digests = [f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in running]
    assert policy.partition("script-src ")[2].partition(";")[0].split() == digests


def test_plotly_knows_every_property_and_axes_have_titles(page: str, parse: Parse) -> None:
    for views in parse(page).specs().values():
        for figure in views:
            go.Figure(figure)  # raises where a property is misspelt or out of its range
            trees = {trace["type"] for trace in figure["data"]} == {"icicle"}
            for axis in () if trees else ("xaxis", "yaxis"):
                assert figure["layout"][axis]["title"]["text"]


def test_every_row_of_the_report_stands_on_the_page(page: str, committed: Path, parse: Parse) -> None:
    report = render_markdown(load_run(committed))
    rows = sum(line.startswith("|") and not re.fullmatch(r"[|\-: ]+", line) for line in report.splitlines())
    assert len(parse(page).all("tr")) >= rows


def test_no_path_of_the_machine_stands_on_it(tmp_path: Path, committed: Path) -> None:
    data = load_run(committed)
    hidden = run_data(*data.records, folder=tmp_path / "secret" / "run")
    assert "secret" not in render_html(hidden)


def test_a_run_without_records_says_so(parse: Parse, tmp_path: Path) -> None:
    page = render_html(run_data(folder=tmp_path))
    assert "No cell has ended yet." in page
    assert {attributes["id"] for attributes in parse(page).all("section")} == {"answer"}
    assert len(page) < MIB  # plotly's script is left out where there is nothing to draw


def test_a_section_that_holds_nothing_is_none() -> None:
    assert not Section("a", "A")
    assert Section("a", "A", lines=("x",))


@pytest.fixture
def attacked(write_page: WritePage) -> Path:
    return write_page(hostile_records(build, frame_loop()), ENVIRONMENT, BREAKOUT)


def test_no_element_and_no_attribute_comes_from_a_name(attacked: Path, parse: Parse) -> None:
    parsed = parse(attacked.read_text(encoding="utf-8"))
    tags = Counter(tag for tag, _ in parsed.elements)
    assert tags["script"] == 4  # the figures, plotly, and two of its own
    assert not tags.keys() & {"img", "b", "i", "iframe", "object", "base", "form"}
    known = {"id", "class", "href", "type", "hidden", "content", "http-equiv", "name", "charset", "lang", "rel"}
    known |= {"scope", "data-sort", "data-views", "data-chart", "value", "tabindex", "role", "placeholder"}
    for tag, attributes in parsed.elements:
        assert {name for name in attributes if not name.startswith("aria-")} <= known, (tag, attributes)
        href = attributes.get("href") or ""
        assert href.startswith("#") or "javascript" not in href
        assert "example.org" not in (attributes.get("href") or "")


def test_every_hostile_text_is_shown(attacked: Path) -> None:
    page = attacked.read_text(encoding="utf-8")
    for text in (SCRIPT, CLOSING, MARKUP):
        assert text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&#34;") in page
    assert "{{7*7}}" in page
    assert "evil=1</script>" not in page


def test_names_in_figures_are_entities_that_plotly_shows_as_they_are(attacked: Path, parse: Parse) -> None:
    specs = parse(attacked.read_text(encoding="utf-8")).specs()
    for text in texts(specs):
        assert "<" not in text, text
    names = {trace.get("name") for views in specs.values() for figure in views for trace in figure["data"]}
    assert "&lt;script&gt;window.evil=1&lt;/script&gt;" in names


def test_a_name_that_was_not_escaped_would_be_found(parse: Parse) -> None:
    parsed = parse(f"<p>{CLOSING}</p><script>1</script>{SCRIPT}")
    assert Counter(tag for tag, _ in parsed.elements) == {"p": 1, "img": 1, "script": 2}
    assert len(set(ALL)) == len(ALL)


def texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    inner = content.values() if isinstance(content, dict) else content if isinstance(content, list) else ()
    return [text for item in inner for text in texts(item)]
