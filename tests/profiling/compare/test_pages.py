"""The pages of `compare --html` and `history --html`: what the text says, sorted and safe against any name."""

import re
from html import escape, unescape

import pytest
from hostile import ALL, CLOSING, MARKUP, SCRIPT, check_only_text
from parsed_page import Parsed
from planted_runs import ENVIRONMENT, MIB, analysed, cell, dated, noisy, two_runs, write_run

from profiling import history
from profiling.compare import __main__ as compare_main
from profiling.compare.loaded_run import read_run
from profiling.compare.output import Comparison, compare_runs, comparison_page
from profiling.results.measured import Memory


def compared(folder, threshold=0.02, **environment) -> Comparison:
    """Compare two runs of six cells."""
    a, b = map(read_run, two_runs(folder, **environment))
    return compare_runs(a, b, threshold)


def rows_of(page, section):
    """Return the cells of every row below a header in a section."""
    body = page.partition(f'<section id="{section}"')[2].partition("</section>")[0].replace("\u00a0", " ")
    rows = re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
    return [
        [unescape(re.sub("<wbr>", "", text)) for text in re.findall(r"<td[^>]*>(.*?)</td>", row)] for row in rows[1:]
    ]


def test_the_page_has_the_conclusion_first_and_what_differs(tmp_path):
    page = comparison_page(compared(tmp_path, threads=8))
    sections = [attributes["id"] for attributes in Parsed(page).all("section")]
    assert sections == ["verdict", "differences"]
    first = unescape(page.partition('id="verdict"')[2].partition("</section>")[0])
    assert "B is slower than A by more than 2% in 1 cell (exit code 1)." in first
    variants = ["worse", "wild", "few", "broken", "better", "unchanged"]
    assert [row[1] for row in rows_of(page, "verdict")] == variants
    differing = rows_of(page, "differences")
    assert differing[0] == ["all", "threads", "16", "8"]
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


@pytest.fixture
def opened(tmp_path, show):
    """Open the page of a comparison of six cells, or of a history of four runs."""

    def open_page(kind, **options):
        file = tmp_path / "page.html"
        if kind == "compare":
            assert compare_main.main([*map(str, two_runs(tmp_path)), "--html", str(file)]) == 1
        else:
            for i in range(4):
                made = cell(("v", "w")[i % 2], noisy(9 - i, seed=i))
                write_run(tmp_path / f"run{i}", made, environment=dated(f"2026-01-0{9 - i}T00:00:00+00:00"))
            assert history.main([str(tmp_path), "--html", str(file)]) == 0
        return show(file, **options)

    return open_page


def column(table, header):
    headers = table.locator("th").all_inner_texts()
    place = [" ".join(text.split(" ▲")[0].split(" ▼")[0].split()) for text in headers].index(header)
    return table.locator(f"tbody tr:visible td:nth-child({place + 1})").all_inner_texts()


def sort_by(table, header):
    table.locator("th button", has_text=header).click()
    return column(table, header)


@pytest.mark.browser
def test_cells_are_sorted_by_their_ratio(opened):
    page = opened("compare")
    block = page.locator("#verdict .table")
    table = block.locator("table")
    for order in (["better", "unchanged", "few", "wild", "worse"], ["worse", "wild", "few", "unchanged", "better"]):
        sort_by(table, "B / A")
        assert column(table, "variant") == [*order, "broken"], "what was not compared stays last"
    assert sort_by(table, "verdict") == sorted(column(table, "verdict"))


@pytest.mark.browser
def test_the_runs_of_a_history_are_sorted(opened):
    table = opened("history").locator("#history table").first
    oldest_first = column(table, "run")
    assert oldest_first == ["run3", "run2", "run1", "run0"]
    assert sort_by(table, "run") == oldest_first[::-1]


@pytest.mark.browser
@pytest.mark.parametrize("kind", ["compare", "history"])
def test_a_narrow_screen_scrolls_tables_and_not_the_page(kind, opened):
    assert opened(kind, width=380).evaluate("document.documentElement.scrollWidth") <= 380
