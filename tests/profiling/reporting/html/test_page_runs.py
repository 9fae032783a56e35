"""Every committed run as a page: whole, small enough, and asking nobody for anything."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from profiling.reporting.heading import read_environment
from profiling.reporting.html.page import HTML_FILE, render_html
from profiling.reporting.html.section import Section
from profiling.reporting.render import write_report
from profiling.results.records import Record, read_records

Make = Callable[..., Record]
Parse = Callable[[str], Any]

MIB = 2**20
ALWAYS = {"verdict", "environment", "config", "command"}
EXPECTED = {
    "h200": {"latency", "inside", "distribution", "memory", "compile", "traces", "notes", "more"},
    "h200_five_variants": {"latency", "distribution", "memory", "compile", "notes"},
    "h200_realtime": {"realtime", "distribution", "memory", "compile", "notes"},
    "h200_realtime_overlap": {"realtime", "distribution", "memory", "compile", "notes"},
    "h200_world_model_step": {"latency", "inside", "distribution", "memory", "compile", "traces", "notes", "more"},
    "h200_sweep_clip_text": {"latency", "distribution", "memory", "sweep", "compile", "notes", "more"},
    "h200_training_step": {"latency", "distribution", "memory", "training", "compile", "notes", "more"},
    "h200_launch_overhead": {"more"},
}
#: Attributes whose value a browser may fetch.
FETCHED = ("src", "srcset", "href", "data", "poster", "action", "formaction", "background", "xlink:href")


@pytest.fixture
def page(committed: Path) -> str:
    return render_html(read_records(committed), read_environment(committed), committed)


def test_the_page_is_whole_small_and_holds_its_sections(page: str, committed: Path, parse: Parse) -> None:
    parsed = parse(page)
    size = len(page.encode())
    assert size <= 6 * MIB
    scripts = parsed.scripts if parsed.specs() else []
    assert size - len(max(scripts, key=len, default="").encode()) <= 1.25 * MIB  # beside plotly's script
    sections = {attributes["id"] for attributes in parsed.all("section")}
    assert sections >= ALWAYS
    if committed.name in EXPECTED:
        assert sections - ALWAYS == EXPECTED[committed.name]
    ids = [attributes["id"] for _, attributes in parsed.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {f"chart-{key}" for key in parsed.specs()} <= set(ids)


def test_nothing_on_it_is_fetched(page: str, parse: Parse) -> None:
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


def test_a_figure_with_a_misspelt_property_would_be_refused() -> None:
    with pytest.raises(ValueError, match="opactiy"):
        go.Figure({"data": [{"type": "bar", "opactiy": 1}]})


def test_every_table_of_the_report_stands_on_the_page(page: str, committed: Path, parse: Parse) -> None:
    report = (committed / "report.md").read_text(encoding="utf-8")
    rows = sum(line.startswith("|") and not re.fullmatch(r"[|\-: ]+", line) for line in report.splitlines())
    parsed = parse(page)
    assert len(parsed.all("tr")) >= rows


def test_no_path_of_the_machine_stands_on_it(tmp_path: Path, committed: Path) -> None:
    folder = tmp_path / "secret" / "run"
    folder.mkdir(parents=True)
    page = render_html(read_records(committed), read_environment(committed), folder)
    assert "secret" not in page


def test_it_is_written_beside_the_report_and_again_the_same(three: tuple[Record, ...], save: Any) -> None:
    run = save(three)
    text = write_report(run)
    first = (run / HTML_FILE).read_bytes()
    assert text.splitlines()[-1] == f"open in a browser: {run / HTML_FILE}"
    write_report(run)
    assert (run / HTML_FILE).read_bytes() == first


def test_a_run_without_records_says_so(save: Any, parse: Parse) -> None:
    run = save([])
    page = render_html((), {}, run)
    assert "No cell has ended yet." in page
    assert {attributes["id"] for attributes in parse(page).all("section")} == {"verdict"}
    assert len(page) < MIB  # plotly's script is left out where there is nothing to draw


def test_a_section_that_holds_nothing_is_none() -> None:
    assert not Section("a", "A")
    assert Section("a", "A", lines=("x",))
