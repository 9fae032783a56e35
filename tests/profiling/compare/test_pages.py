"""The pages of `compare --html` and `history --html`: what the text says, drawn, sorted and safe against any name."""

import json
import re
from html import escape, unescape
from pathlib import Path

import plotly.graph_objects as go
import pytest
from hostile import ALL, CLOSING, MARKUP, SCRIPT, check_only_text
from parsed_page import Parsed
from planted_runs import ENVIRONMENT, MIB, analysed, cell, dated, noisy, two_runs, write_run

from profiling import history
from profiling.compare import __main__ as compare_main
from profiling.results.measured import Memory

RESULTS = Path(__file__).parents[3] / "docs" / "results"


@pytest.fixture
def compare(tmp_path, capsys):
    """Return (exit code, what is printed, the page) of a comparison."""

    def run(a, b, *options):
        file = tmp_path / "page.html"
        code = compare_main.main([str(a), str(b), *options, "--html", str(file)])
        printed = capsys.readouterr()
        assert printed.err == f"open in a browser: {file}\n"
        return code, printed.out, file.read_text(encoding="utf-8")

    return run


def table_rows(page):
    """Return the cells of every row below a header."""
    body = page.partition("<script")[0].replace("\u00a0", " ")  # inside intervals
    rows = re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
    return [[unescape(text) for text in re.findall(r"<td[^>]*>(.*?)</td>", row)] for row in rows if "<td" in row]


def text_rows(printed):
    return [re.split(r"\s{2,}", line.strip()) for line in printed.splitlines() if not line.startswith("--")]


def points(figure):
    """Return (trace, name of the cell, ratio, interval or None) of each point."""
    names = figure["layout"]["yaxis"]["ticktext"]
    for trace in figure["data"]:
        for i, (x, y) in enumerate(zip(trace["x"], trace["y"], strict=True)):
            error = trace.get("error_x")
            ends = (x - error["arrayminus"][i], x + error["array"][i]) if error else None
            yield trace, names[int(y)], x, ends


def test_the_chart_draws_the_numbers_and_verdicts_of_the_text(tmp_path, compare):
    code, printed, page = compare(*two_runs(tmp_path))
    ((figure,),) = Parsed(page).specs().values()
    go.Figure(figure)  # raises where a property is misspelt or out of its range
    rows = {row[1]: row for row in text_rows(printed) if len(row) == 6}
    drawn = {}
    for trace, name, ratio, ends in points(figure):
        shown, verdict = rows[name.removeprefix("net.")][-2:]
        numbers = [float(text) for text in re.findall(r"[\d.]+", shown)]
        assert numbers == pytest.approx([ratio, *(ends or ())], rel=1e-3)
        verdict = re.sub(r" \(\d\)", "", verdict)
        assert trace["name"] == (verdict if ends else f"{verdict}, no interval")
        drawn[name] = verdict
    assert code == 1
    assert drawn == {
        "net.unchanged": "same",
        "net.worse": "slower",
        "net.better": "faster",
        "net.wild": "cannot tell",
        "net.few": "cannot tell",
    }
    symbols = [trace["marker"]["symbol"] for trace in figure["data"]]
    assert len(set(symbols)) == len(symbols) == 5, "a verdict has a symbol of its own"
    assert "Not drawn: 1 cell " in page


def test_the_band_is_as_wide_as_the_threshold_and_shown(tmp_path, compare):
    _, _, page = compare(*two_runs(tmp_path), "--threshold", "0.3")
    ((figure,),) = Parsed(page).specs().values()
    band = figure["layout"]["shapes"][0]
    assert (band["x0"], band["x1"]) == pytest.approx((0.7, 1.3))
    low, high = figure["layout"]["xaxis"]["autorangeoptions"]["include"]
    assert low < 0.7 < 1.3 < high


def test_the_tables_are_those_of_the_text(tmp_path, compare):
    a, b = two_runs(tmp_path, versions={"torch": "2.12.0", "driver": "580.1"}, threads=8)
    _, printed, page = compare(a, b)
    rows = table_rows(page)
    in_text = text_rows(printed)
    assert [row for row in rows if row not in in_text] == []
    assert ["versions.torch", "2.11.0", "2.12.0"] in rows
    assert ["peak allocated (MiB)", "100", "300"] in rows
    changes = [row[0] for row in rows if len(row) == 3][2:]
    assert "kernel only in B: new" in changes
    assert "kernel only in A: old" in changes
    assert len(rows) == 2 + 6 + len(changes)


def test_the_verdict_comes_first_and_the_commands_last(tmp_path, compare):
    _, printed, page = compare(*two_runs(tmp_path, command="python -m profiling.generic_forward rounds=5"))
    sections = [attributes["id"] for attributes in Parsed(page).all("section")]
    assert sections == ["verdict", "differences", "cells", "changes", "commands"]
    assert printed.splitlines()[-1] in unescape(page.partition('id="verdict"')[2].partition("</section>")[0])
    text = page.partition('id="commands"')[2].partition("</section>")[0]
    assert re.findall(r"python .*?(?=\n|<)", text) == [
        "python -m profiling.generic_forward",
        "python -m profiling.generic_forward rounds=5",
    ]


def test_a_page_changes_neither_the_text_nor_the_exit_code(tmp_path, compare, capsys):
    a, b = two_runs(tmp_path)
    for cells, code in (("*.better", 0), ("*", 1), ("*.broken", 2)):
        for options in (("--cells", cells), ("--cells", cells, "--markdown")):
            assert compare_main.main([str(a), str(b), *options]) == code
            alone = capsys.readouterr().out
            assert compare(a, b, *options)[:2] == (code, alone)


def test_nothing_to_compare_is_a_page_without_charts(compare):
    code, _, page = compare(RESULTS / "h200_five_variants", RESULTS / "h200_world_model_step")
    assert code == 2
    assert Parsed(page).specs() == {}
    assert len(page) < 100_000, "plotly's script is left out"
    assert "only in A" in page


def test_many_cells_are_drawn_component_by_component(tmp_path, compare):
    cells = [cell(f"v{i}", noisy(1 + i, seed=i), component=name) for i in range(11) for name in ("one", "two")]
    a, b = write_run(tmp_path / "a", *cells), write_run(tmp_path / "b", *cells)
    _, _, page = compare(a, b)
    views = Parsed(page).specs()["ratios"]
    assert [len(view["layout"]["yaxis"]["ticktext"]) for view in views] == [11, 11]
    assert re.findall(r"<option [^>]*>(.*?)</option>", page) == ["one", "two"]


def attack(folder, letter, scale):
    """Write a run in which every name, reason and fact is an attack."""
    kernels = analysed(**{f"{letter}{text}": (1, 1000.0) for text in ALL})
    fields = {"weights": f"{letter}{MARKUP}", "memory": Memory(peak_allocated=scale * 100 * MIB)}
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
        assert escape(text).replace("&quot;", "&#34;").replace("&#x27;", "&#39;") in page, text
    drawn = json.dumps(Parsed(page).specs())
    assert "&lt;script&gt;window.evil=1" in drawn
    assert "hovertemplate" not in drawn, "it would read %{} in a name"


@pytest.mark.browser
def test_a_browser_runs_none_of_it(attacked, show):
    page = show(attacked)
    assert page.locator(".chart a, .chart img, .chart b, .chart i").count() == 0
    chart = "document.querySelector('.chart')"
    for curve in range(page.evaluate(f"{chart}.data.length")):
        page.evaluate(f"Plotly.Fx.hover({chart}, [{{curveNumber: {curve}, pointNumber: 0}}])")
        assert page.locator(".hoverlayer a, .hoverlayer b").count() == 0
    page.locator(".hoverlayer .hovertext").first.wait_for()
    assert page.evaluate("window.evil") is None


@pytest.fixture
def compared(tmp_path, show):
    """Open the page of a comparison of six cells."""

    def open_page(**options):
        file = tmp_path / "page.html"
        assert compare_main.main([*map(str, two_runs(tmp_path)), "--html", str(file)]) == 1
        return show(file, **options)

    return open_page


@pytest.fixture
def recorded(tmp_path, show):
    """Open the page of a history of four runs of two components."""
    for i in range(4):
        cells = (cell(("v", "w")[i % 2], noisy(9 - i, seed=i), component=name) for name in ("one", "two"))
        write_run(tmp_path / f"run{i}", *cells, environment=dated(f"2026-01-0{9 - i}T00:00:00+00:00"))

    def open_page(**options):
        assert history.main([str(tmp_path), "--html", str(tmp_path / "page.html")]) == 0
        return show(tmp_path / "page.html", **options)

    return open_page


def column(table, header):
    headers = table.locator("th").all_inner_texts()
    place = [" ".join(text.split(" ▲")[0].split(" ▼")[0].split()) for text in headers].index(header)
    return table.locator(f"tbody tr:visible td:nth-child({place + 1})").all_inner_texts()


def sort_by(table, header):
    table.locator("th button", has_text=header).click()
    return column(table, header)


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_cell_is_drawn_with_its_interval_and_the_band(compared, scheme):
    chart = compared(scheme=scheme).locator("#chart-ratios")
    assert chart.locator(".scatterlayer .point").count() == 5
    assert chart.locator(".errorbar").count() == 4
    assert chart.locator(".shapelayer path").count() == 2
    names = chart.locator(".ytick text").all_text_contents()
    assert names == ["net.unchanged", "net.worse", "net.better", "net.wild", "net.few"]
    assert chart.locator(".legendtext").all_text_contents() == [
        *("faster", "same", "slower", "cannot tell", "cannot tell, no interval")
    ]


@pytest.mark.browser
def test_a_point_shows_what_the_table_shows(compared):
    page = compared()
    row = page.locator("#cells tr", has_text="worse").first.locator("td").all_inner_texts()
    row = [text.replace("\u00a0", " ") for text in row]
    slower = page.evaluate("document.getElementById('chart-ratios').data.findIndex(trace => trace.name === 'slower')")
    page.evaluate(
        f"Plotly.Fx.hover(document.getElementById('chart-ratios'), [{{curveNumber: {slower}, pointNumber: 0}}])"
    )
    hover = page.locator("#chart-ratios .hovertext").first.text_content()
    for text in row[1:]:
        assert text in hover, (text, hover)


@pytest.mark.browser
def test_cells_are_sorted_by_their_ratio_and_filtered(compared):
    page = compared()
    block = page.locator("#cells .table")
    table = block.locator("table")
    for sign in (1, -1):
        *ratios, last = sort_by(table, "B / A")
        assert last == "–", "what was not compared stays last"
        values = [float(text.split()[0]) for text in ratios]
        assert values == sorted(values, key=lambda ratio, sign=sign: sign * ratio)
        assert len(set(values)) > 3
    block.locator("input").fill("slower")
    assert column(table, "variant") == ["worse"]
    block.locator("input").fill("")
    assert sort_by(table, "verdict") == sorted(column(table, "verdict"))


@pytest.mark.browser
def test_every_series_of_runs_is_a_view_and_a_table_that_sorts(recorded):
    page = recorded()
    chart = page.locator("#chart-history")
    choice = page.locator('select[data-views="history"]')
    assert [text.partition(" ")[0] for text in choice.locator("option").all_text_contents()] == ["one", "two"]
    for place in ("0", "1"):
        choice.select_option(place)
        assert chart.locator(".scatterlayer .point").count() == 4
        assert chart.locator(".scatterlayer .js-line").count() == 1
        assert chart.locator(".legendtext").all_text_contents() == ["w", "v"]
    table = page.locator("#history table").first
    oldest_first = column(table, "run")
    assert oldest_first == ["run3", "run2", "run1", "run0"]
    assert sort_by(table, "run") == oldest_first[::-1]
    times = [float(text) for text in sort_by(table, "p50 ms")]
    assert times == sorted(times)


@pytest.mark.browser
@pytest.mark.parametrize("kind", ["compared", "recorded"])
def test_a_narrow_screen_scrolls_tables_and_not_the_page(kind, request):
    page = request.getfixturevalue(kind)(width=380)
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
