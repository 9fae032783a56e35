"""The pages of `compare --html` and `history --html`: what the text says, safe against any name."""

import re
from html import escape, unescape

import pytest
from hostile import ALL, CLOSING, MARKUP, SCRIPT, check_only_text
from parsed_page import Parsed
from planted_runs import ENVIRONMENT, MIB, analysed, cell, noisy, two_runs, write_run

from profiling import history
from profiling.compare import __main__ as compare_main
from profiling.results.measured import Memory


def rows_of(page, section):
    """Return the cells of every row below a header in a section."""
    body = page.partition(f'<section id="{section}"')[2].partition("</section>")[0].replace("\u00a0", " ")
    rows = re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
    return [
        [unescape(re.sub("<wbr>", "", text)) for text in re.findall(r"<td[^>]*>(.*?)</td>", row)] for row in rows[1:]
    ]


def test_the_page_has_the_conclusion_first_and_what_differs(tmp_path):
    file = tmp_path / "page.html"
    assert compare_main.main([*map(str, two_runs(tmp_path, threads=8)), "--html", str(file)]) == 1
    page = file.read_text(encoding="utf-8")
    assert [attributes["id"] for attributes in Parsed(page).all("section")] == ["verdict", "differences"]
    first = unescape(page.partition('id="verdict"')[2].partition("</section>")[0])
    assert "B is slower than A in 1 cell, by an estimate of more than 2% (exit code 1)." in first
    assert [row[1] for row in rows_of(page, "verdict")] == ["worse", "wild", "few", "broken", "better", "unchanged"]
    first, *differing = rows_of(page, "differences")
    assert first == ["all", "threads", "16", "8"]
    assert ["net.worse", "peak memory MiB", "100", "300"] in differing
    assert {row[1] for row in differing} >= {"kernel only in B: new", "kernel only in A: old"}


def attack(folder, letter, scale):
    """Write a run in which every name, reason and fact is an attack."""
    kernels = analysed(**{f"{letter}{text}": (1, 1000.0) for text in ALL})
    fields = {"weights": f"{letter}{MARKUP}", "memory": Memory(peak_allocated=scale * 100 * MIB), "turns": "x"}
    cells = [
        cell(text, noisy(scale * (2 + i), seed=i + scale), component=ALL[-i], trace_analysis=kernels, **fields)
        for i, text in enumerate(ALL)
    ]
    cells += [cell("failed", status="failed", reason=text, component=text) for text in ALL]
    environment = {
        **{text: f"{letter}{text}" for text in ALL},
        "captured_at": f"{letter}{SCRIPT}",
        "command": f"python {letter} {CLOSING} {SCRIPT}",
        "user_git": {"revision": f"<b>{letter}</b>" * 4},
        "device": {"name": MARKUP},
        "versions": {**ENVIRONMENT["versions"], SCRIPT: f"{letter}{CLOSING}"},
    }
    return write_run(folder / f"{letter}<img src=x onerror=window.evil=7>", *cells, environment=environment)


@pytest.fixture(params=["compare", "history"])
def attacked(request, tmp_path):
    """Give the page of a comparison and of a history of two such runs, in turn."""
    a, b, file = attack(tmp_path, "a", 1), attack(tmp_path, "b", 2), tmp_path / "page.html"
    if request.param == "compare":
        assert compare_main.main([str(a), str(b), "--html", str(file)]) == 1
    else:
        assert history.main([str(tmp_path), "--html", str(file)]) == 0
    return file


def test_hostile_names_are_only_text(attacked):
    page = attacked.read_text(encoding="utf-8")
    check_only_text(page)
    for text in ALL:
        assert escape(text).replace("&quot;", "&#34;").replace("&#x27;", "&#39;") in page.replace("<wbr>", ""), text


@pytest.mark.browser
def test_a_browser_runs_none_of_it(attacked, show):
    page = show(attacked)
    assert page.locator(".chart a, .chart img, .chart b").count() == 0
    assert page.evaluate("window.evil") is None
