"""Every committed run as a page: whole, small enough, asking nobody for anything; hostile names are only text."""

import re
from base64 import b64encode
from hashlib import sha256

import pytest
from hostile import BREAKOUT, ENVIRONMENT, check_only_text, hostile_records
from parsed_page import Parsed
from report_records import build, frame_loop, run_data

from profiling.report.render import render_html
from profiling.report.run_data import load_run

ALWAYS = {"answer", "environment", "config", "command"}
EXPECTED = {
    "h200_main": {"details", "latency", "starts", "recipes", "roofline", "notes"},
    "h200_realtime": {"details", "latency", "realtime", "roofline", "starts", "recipes", "notes"},
}
#: Attributes whose value a browser may fetch.
FETCHED = ("src", "srcset", "href", "data", "poster", "action", "formaction", "background", "xlink:href")


@pytest.fixture(scope="module")
def page(committed):
    return render_html(load_run(committed))


@pytest.fixture(scope="module")
def parsed(page):
    return Parsed(page)


def test_a_page_is_whole_and_small_and_names_no_path_of_the_machine(page, committed, parsed):
    assert len(page.encode()) <= 1.5e6
    assert str(committed.parent) not in page
    sections = {attributes["id"] for attributes in parsed.all("section")}
    assert sections >= ALWAYS
    assert sections - ALWAYS == EXPECTED.get(committed.name, sections - ALWAYS)
    ids = [attributes["id"] for _, attributes in parsed.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert set(parsed.charts()) <= set(ids)


def test_all_rows_of_the_report_stand_on_the_page_and_tables_are_on_demand(committed, parsed):
    report = (committed / "report.md").read_text(encoding="utf-8")
    rows = sum(line.startswith("|") and not re.fullmatch(r"[|\-: ]+", line) for line in report.splitlines())
    assert len(parsed.all("tr")) >= rows
    folds = sum(attributes.get("class") == "fold" for attributes in parsed.all("details"))
    assert len(parsed.all("table")) - folds <= 2, "but for those of the answer"


def test_nothing_on_a_page_is_fetched(page, parsed):
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


def test_a_run_without_records_says_so(tmp_path):
    page = render_html(run_data(folder=tmp_path))
    assert "No cell has ended yet." in page
    assert {attributes["id"] for attributes in Parsed(page).all("section")} == {"answer"}


def test_hostile_names_are_only_text(write_page):
    page = write_page(hostile_records(build, frame_loop()), ENVIRONMENT, BREAKOUT).read_text(encoding="utf-8")
    check_only_text(page)
    assert "{{7*7}}" in page
