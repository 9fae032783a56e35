"""The page in a real browser: it draws, sorts, filters, changes colours, and neither complains nor asks anybody."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hostile import ALL, BREAKOUT, ENVIRONMENT, MARKUP, hostile_records
from open_page import DRAWN, Heard, Open

from profiling.reporting.heading import read_environment
from profiling.reporting.html.page import HTML_FILE, render_html
from profiling.results.records import Record, read_records

pytestmark = pytest.mark.browser

Make = Callable[..., Record]
RESULTS = Path(__file__).parents[4] / "docs" / "results"


@pytest.fixture
def shown(show: Open, tmp_path: Path) -> Open:
    """Open the page of a committed run."""

    def show_run(name: str, **options: Any) -> Any:
        run, file = RESULTS / name, tmp_path / HTML_FILE
        file.write_text(render_html(read_records(run), read_environment(run), run), encoding="utf-8")
        return show(file, **options)

    return show_run


def column(table: Any, place: int) -> list[str]:
    return table.locator(f"tbody tr:visible td:nth-child({place})").all_inner_texts()


@pytest.mark.parametrize("committed", ["h200", "h200_realtime_overlap", "h200_sweep_clip_text", "h200_training_step"])
def test_every_view_of_every_chart_is_drawn(committed: str, shown: Open) -> None:
    page = shown(committed)
    charts = page.locator(".chart")
    specs = "JSON.parse(document.getElementById('specs').textContent)"
    assert charts.count() == page.evaluate(f"Object.keys({specs}).length") > 0
    for chart in charts.all():
        key = chart.get_attribute("data-chart")
        choice = page.locator(f'select[data-views="{key}"]')
        for place in range(choice.locator("option").count() or 1):
            if choice.count():
                choice.select_option(str(place))
            assert chart.locator(".trace").count() > 0, (key, place)
            for title in (".xtitle", ".ytitle") if chart.locator(".icicle").count() == 0 else ():
                assert (chart.locator(title).text_content() or "").strip()


def test_tables_sort_by_number_with_the_mouse_and_the_keyboard(shown: Open) -> None:
    page = shown("h200")
    table = page.locator("#latency table").first
    headers = table.locator("th").all_inner_texts()
    place = next(i for i, header in enumerate(headers, 1) if " ".join(header.split()) == "prepare s")
    seconds = [float(text) for text in column(table, place)]
    assert seconds != sorted(seconds)
    button = table.locator(f"th:nth-child({place}) button")
    button.click()
    assert [float(text) for text in column(table, place)] == sorted(seconds)
    assert table.locator('th[aria-sort="ascending"]').count() == 1
    button.focus()
    page.keyboard.press("Enter")
    assert [float(text) for text in column(table, place)] == sorted(seconds, reverse=True)
    table.locator("th:nth-child(2) button").click()
    names = column(table, 2)
    assert names == sorted(names)
    assert table.locator("th[aria-sort]").count() == 1


def test_what_was_not_measured_stays_last(shown: Open) -> None:
    table = shown("h200_sweep_clip_text").locator("#sweep table").first
    headers = table.locator("th").all_inner_texts()
    button = table.locator(f"th:nth-child({headers.index('speedup') + 1}) button")
    for _ in ("up", "down"):
        button.click()
        texts = column(table, headers.index("speedup") + 1)
        first = texts.index("–")
        assert first > 0
        assert set(texts[first:]) == {"–"}


def test_filters_keep_the_rows_that_hold_every_word(shown: Open) -> None:
    page = shown("h200")
    block = page.locator("#latency .table").first
    count = block.locator("tbody tr").count()
    block.locator("input").fill("WORLD graph")
    names = column(block, 2)
    assert names == ["cuda_graph", "compile_cuda_graph"]
    assert block.locator(".count").inner_text() == f"2 of {count} rows"
    block.locator("input").fill("")
    assert block.locator("tbody tr:visible").count() == count


def test_both_colour_schemes_and_the_button_between_them(shown: Open) -> None:
    def looks(page: Any) -> tuple[str, str]:
        body = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return body, page.locator(".chart .xtick text").first.evaluate("text => getComputedStyle(text).fill")

    light, dark = shown("h200_realtime"), shown("h200_realtime", scheme="dark")
    assert looks(light) != looks(dark)
    before, after = looks(light), looks(dark)
    light.get_by_role("button", name="dark / light").click()
    light.wait_for_function(DRAWN)
    assert looks(light) == after
    light.get_by_role("button", name="dark / light").click()
    assert looks(light) == before


def test_a_narrow_screen_scrolls_tables_and_not_the_page(shown: Open) -> None:
    page = shown("h200", width=380)
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
    wide = page.locator("#latency .scroll").first
    assert wide.evaluate("box => box.scrollWidth > box.clientWidth")
    wide.focus()  # it takes the keyboard, whose arrows scroll it
    assert wide.evaluate("box => box === document.activeElement")


def test_names_that_look_like_code_are_text_in_the_charts_too(
    make: Make, loop: Callable[..., dict[str, Any]], write_page: Callable[..., Path], show: Open, heard: Heard
) -> None:
    page = show(write_page(hostile_records(make, loop()), ENVIRONMENT, BREAKOUT))
    assert page.evaluate("window.evil") is None
    assert page.locator(".chart a, .chart img, .chart b").count() == 0
    legends = page.locator("#chart-latency .legendtext").all_text_contents()
    for text in ALL:
        assert any(" ".join(text.split()) in legend for legend in legends), (text, legends)
    page.evaluate("Plotly.Fx.hover(document.getElementById('chart-latency'), [{curveNumber: 0, pointNumber: 0}])")
    page.locator("#chart-latency .hoverlayer .hovertext").first.wait_for()
    assert page.locator(".hoverlayer a").count() == 0
    assert MARKUP in page.locator("#latency tbody").first.inner_text()
    assert page.evaluate("window.evil") is None


def test_the_policy_stops_what_escaping_would_have_missed(shown: Open, heard: Heard) -> None:
    page = shown("h200_launch_overhead")
    plant = """() => new Promise(resolve => {
        const stopped = [];
        document.addEventListener("securitypolicyviolation", event => {
            stopped.push(event.effectiveDirective);
            if (stopped.length === 3) resolve(stopped.sort());
        });
        const script = document.createElement("script");
        script.textContent = "window.evil = 1";
        const picture = document.createElement("img");
        picture.src = "https://example.org/x.png";
        const frame = document.createElement("iframe");
        frame.src = "https://example.org/";
        document.body.append(script, picture, frame);
        setTimeout(() => resolve(stopped), 3000);
    })"""
    assert page.evaluate(plant) == ["frame-src", "img-src", "script-src-elem"]
    assert page.evaluate("window.evil") is None
    said = [line for line in heard if "Content Security Policy" in line]
    assert len(said) == 3
    heard.clear()
