"""The pages of comparisons and histories in a real browser: drawn, sorted, filtered, and nobody is asked."""

import pytest
from hand_made import cell, dated, noisy, two_runs, write_run

from profiling import compare, history
from profiling.reporting.html.columns import number_in

pytestmark = pytest.mark.browser


@pytest.fixture
def compared(tmp_path, show):
    """Open the page of a comparison of six cells."""

    def open_page(**options):
        file = tmp_path / "page.html"
        assert compare.main([*map(str, two_runs(tmp_path)), "--html", str(file)]) == 1
        return show(file, **options)

    return open_page


@pytest.fixture
def passed(tmp_path, show):
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


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_cell_is_drawn_with_its_interval_and_the_band(compared, scheme):
    chart = compared(scheme=scheme).locator("#chart-ratios")
    assert chart.locator(".scatterlayer .point").count() == 5
    assert chart.locator(".errorbar").count() == 4
    assert chart.locator(".shapelayer path").count() == 2
    names = chart.locator(".ytick text").all_text_contents()
    assert names == ["net.unchanged", "net.worse", "net.better", "net.wild", "net.few"]
    assert chart.locator(".legendtext").all_text_contents() == [
        *("faster", "same", "slower", "can't tell", "can't tell, no interval")
    ]


def test_a_point_says_what_the_table_says(compared):
    page = compared()
    row = page.locator("#cells tr", has_text="worse").first.locator("td").all_inner_texts()
    slower = page.evaluate("document.getElementById('chart-ratios').data.findIndex(trace => trace.name === 'slower')")
    page.evaluate(
        f"Plotly.Fx.hover(document.getElementById('chart-ratios'), [{{curveNumber: {slower}, pointNumber: 0}}])"
    )
    told = page.locator("#chart-ratios .hovertext").first.text_content()
    for text in row[1:7]:
        assert text in told, (text, told)


def test_cells_are_sorted_by_their_ratio_and_filtered(compared):
    page = compared()
    block = page.locator("#cells .table")
    table = block.locator("table")
    for sign in (1, -1):
        ratios = [number_in(text) for text in sort_by(table, "B / A")]
        assert ratios.pop() is None, "what was not compared stays last"
        assert ratios == sorted(ratios, key=lambda ratio: sign * ratio)
        assert len(set(ratios)) > 3
    block.locator("input").fill("slower")
    assert column(table, "variant") == ["worse"]
    block.locator("input").fill("")
    assert sort_by(table, "verdict") == sorted(column(table, "verdict"))


def test_every_line_of_runs_is_a_view_and_a_table_that_sorts(passed):
    page = passed()
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


@pytest.mark.parametrize("kind", ["compared", "passed"])
def test_a_narrow_screen_scrolls_tables_and_not_the_page(kind, request):
    page = request.getfixturevalue(kind)(width=380)
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
