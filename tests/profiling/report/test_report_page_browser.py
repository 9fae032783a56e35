"""The page in a real browser: it draws, sorts, filters, changes colours, and neither complains nor asks anybody."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hand_traced import CEILINGS, many, trace
from hostile import ALL, BREAKOUT, ENVIRONMENT, MARKUP, hostile_records
from open_page import DRAWN, Heard, Open
from report_records import RESULTS, build, clocks, frame_loop

from profiling.report.render import PAGE_FILE, render_html
from profiling.report.run_data import load_run

pytestmark = pytest.mark.browser


@pytest.fixture
def shown(show: Open, tmp_path: Path) -> Open:
    """Open the page of a committed run."""

    def show_run(name: str, **options: Any) -> Any:
        run, file = RESULTS / name, tmp_path / PAGE_FILE
        file.write_text(render_html(load_run(run)), encoding="utf-8")
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
    page = shown("h200_sweep_clip_text")
    table = page.locator("#sweep table").first
    page.locator("#sweep .table").first.get_by_role("button", name="show all").click()
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


def boxes(places: Any) -> list[dict[str, float]]:
    return [place.bounding_box() for place in places.all()]


@pytest.mark.parametrize(("width", "scheme"), [(1400, "dark"), (800, "light")])
def test_bars_stand_on_their_labels_and_an_outlier_flattens_none(
    write_page: Callable[..., Path], show: Open, width: int, scheme: str
) -> None:
    stalled = clocks(2.5, p99=180.0, max=9000.0)
    records = [
        build("baseline", 28.7),
        build("compile", metrics=stalled),
        build("cuda_graph", 2.2),
        build("late", 40.0),
    ]
    page = show(write_page(records), width=width, scheme=scheme)
    chart = page.locator("#chart-latency")
    bars, ticks = boxes(chart.locator(".bars .point")), boxes(chart.locator(".xtick text"))
    assert len(bars) == len(ticks) == 4
    for bar, tick in zip(bars, ticks, strict=True):
        assert bar["x"] + bar["width"] / 2 == pytest.approx(tick["x"] + tick["width"] / 2, abs=3)
    whole = chart.bounding_box()
    assert whole is not None
    assert max(bar["height"] for bar in bars) > 0.3 * whole["height"], "9 s do not flatten 40 ms"
    labels = sorted(boxes(chart.locator(".annotation text")), key=lambda box: box["y"])
    assert len(labels) >= 2
    for upper, lower in pairwise(labels):
        assert upper["y"] + upper["height"] <= lower["y"] + 1, "labels of frame rates do not overprint"
    assert "values above the axis" in page.locator("#latency .note").first.inner_text()


def test_an_answer_links_to_its_rows_its_trace_and_its_kernels(traced: Open) -> None:
    page = traced(width=800)
    row = page.locator("#answer tbody tr").first
    row.get_by_role("link", name="cuda_graph").click()
    assert page.locator("tr:target td").all_inner_texts()[:2] == ["world_model", "cuda_graph"]
    page.locator("#answer tbody tr").nth(1).get_by_role("link", name="kernels").click()
    target = page.locator("tr:target")
    assert target.is_visible()
    assert target.locator("td").first.inner_text() == "other"
    assert target.locator("td").nth(2).inner_text().startswith("void at::native::kernel_")
    block = block_of(page, "Kernels by total time")
    block.locator("input").fill("gemm")
    page.evaluate("location.hash = ''")
    page.locator("#answer tbody tr").nth(1).get_by_role("link", name="kernels").click()
    target.wait_for(state="visible")  # a link empties the filter that hides its row, in an event that follows
    more = block.locator(".more")
    assert "scroll right" in more.inner_text()
    block.locator(".scroll").evaluate("box => { box.scrollLeft = box.scrollWidth }")
    page.wait_for_function("text => [...document.querySelectorAll('.more')].some(m => m.textContent.includes('left'))")


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (800, "dark")])
def test_a_verdict_and_its_next_step_lead_to_reasons_and_findings(
    write_page: Callable[..., Path], show: Open, width: int, scheme: str
) -> None:
    finding = {"kind": "memset", "what": "memsets and fills", "ms": 0.5, "saves_ms": 0.4, "count": 3}
    kinds = [finding | {"what": f"{place} fills", "saves_ms": 0.4 - place / 100} for place in range(30)]
    step = {"words": "0 fills", "advice": "0 fills: write into other buffers", "wall_ms": 1.6}
    section = {"roofline_ms": 0.4, "bound": "slow kernels", "evidence": ["0 fills take 25%"], "steps": [step]}
    records = [
        build("baseline", 9.0, roofline=section, trace_analysis=trace() | {"findings": kinds}),
        build("compile", 2.0, roofline=section, trace_analysis=trace() | {"findings": kinds}),
    ]
    page = show(write_page(records), width=width, scheme=scheme)
    answer, target = page.locator("#answer tbody tr").first, page.locator("tr:target")
    answer.get_by_role("link", name="slow kernels").click()
    assert target.locator("td").all_inner_texts()[1:4] == ["compile", "slow kernels", "0 fills take 25%"]
    target.get_by_role("link", name="0 fills").click()
    assert target.locator("td").all_inner_texts()[1:3] == ["compile", "0 fills"]
    target.wait_for(state="visible")  # behind the first rows of a long table
    page.evaluate("location.hash = ''")
    answer.get_by_role("link", name="0 fills").click()
    assert target.locator("td").all_inner_texts()[1:3] == ["compile", "0 fills"]


def test_bars_of_many_components_stand_on_their_labels(write_page: Callable[..., Path], show: Open) -> None:
    variants = ("baseline", "compile", "cuda_graph")
    names = [f"component_{place}" for place in range(5)]
    records = [build(v, 3.0 + i, component=name) for name in names for i, v in enumerate(variants)]
    chart = show(write_page(records)).locator("#chart-latency")
    bars, ticks = boxes(chart.locator(".bars .point")), boxes(chart.locator(".xtick text"))
    assert (len(bars), len(ticks)) == (15, 5)
    middles = sorted(bar["x"] + bar["width"] / 2 for bar in bars)
    for place, tick in enumerate(sorted(ticks, key=lambda box: box["x"])):
        assert middles[3 * place + 1] == pytest.approx(tick["x"] + tick["width"] / 2, abs=3)


def test_a_narrow_screen_scrolls_tables_and_not_the_page(shown: Open) -> None:
    page = shown("h200", width=380)
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
    wide = page.locator("#latency .scroll").first
    assert wide.evaluate("box => box.scrollWidth > box.clientWidth")
    wide.focus()  # it takes the keyboard, whose arrows scroll it
    assert wide.evaluate("box => box === document.activeElement")


def test_names_that_look_like_code_are_text_in_the_charts_too(
    write_page: Callable[..., Path], show: Open, heard: Heard
) -> None:
    page = show(write_page(hostile_records(build, frame_loop()), ENVIRONMENT, BREAKOUT))
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


@pytest.fixture
def traced(write_page: Callable[..., Path], show: Open) -> Open:
    """Open the page of three cells with what their traces say."""

    def open_page(**options: Any) -> Any:
        file = {"trace": "traces/net.json.gz"}
        quiet = trace(waits=[], copies=[])
        records = [
            build("baseline", 2.0, trace_analysis=trace(), trace=file),
            build("cuda_graph", 1.5, trace_analysis=quiet, trace=file),
            build("baseline", 2.0, component="other", trace_analysis=many(40, 60)),
        ]
        return show(write_page(records, {"ceilings": CEILINGS}), **options)

    return open_page


def block_of(page: Any, title: str) -> Any:
    return page.locator("#trace .table", has=page.get_by_role("heading", name=title, exact=True))


def named_column(block: Any, header: str) -> list[str]:
    headers = [" ".join(text.split()) for text in block.locator("th").all_inner_texts()]
    return block.locator(f"tbody tr:visible td:nth-child({headers.index(header) + 1})").all_inner_texts()


def test_kernels_are_sorted_by_any_column_on_a_narrow_screen_too(traced: Open) -> None:
    page = traced(width=380)
    assert page.evaluate("document.documentElement.scrollWidth") <= 380, "tables scroll by themselves"
    block = block_of(page, "Kernels by total time")
    count = block.locator("tbody tr").count()
    assert count == 4 + 4 + 40
    for header in ("total ms", "GB/s", "mean µs"):
        block.locator("th button", has_text=header).click()
        numbers = [float(text) for text in named_column(block, header) if text != "–"]
        assert numbers == sorted(numbers)
        block.locator("th button", has_text=header).click()
        texts = named_column(block, header)
        numbers = [float(text) for text in texts if text != "–"]
        assert numbers == sorted(numbers, reverse=True)
        assert set(texts[len(numbers) :]) <= {"–"}
    block.locator("th button", has_text="kernel").click()
    assert named_column(block, "kernel")[0].startswith("flash_fwd")


def test_kernels_are_filtered_by_words_of_any_column(traced: Open) -> None:
    block = block_of(traced(), "Kernels by total time")
    block.locator("input").fill("cuda_graph gemm")
    assert named_column(block, "kernel") == ["nvjet_tst_64x8_64x16_4x1_v_bz_TNT"]
    assert block.locator(".count").inner_text() == "1 of 48 rows"
    block.locator("input").fill("kernel_0037<")
    assert len(named_column(block, "kernel")) == 1
    block.locator("th button", has_text="total ms").click()
    assert len(named_column(block, "kernel")) == 1, "what is filtered stays so when it is sorted"
    block.locator("input").fill("")
    assert len(named_column(block, "kernel")) == 15
    block.get_by_role("button", name="show all 48 rows").click()
    assert len(named_column(block, "kernel")) == 48


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_charts_are_drawn(traced: Open, scheme: str) -> None:
    page = traced(scheme=scheme)
    split = page.locator("#chart-trace-classes")
    assert split.locator(".bars .point").count() >= 3
    assert split.locator(".ytick").count() == 3
    assert (split.locator(".xtitle").text_content() or "").endswith(", ms")
    tree = page.locator("#chart-trace-modules")
    assert tree.locator(".icicle .slice:visible").count() >= 6
    assert "not attributable" in tree.locator(".icicle .slicetext").all_text_contents()
    choice = page.locator('select[data-views="trace-modules"]')
    assert choice.locator("option").all_text_contents() == [
        *("world_model.baseline", "world_model.cuda_graph", "other.baseline")
    ]
    choice.select_option("2")
    tree.locator(".slice").nth(60).wait_for()  # its sixty layers, whose labels would be too small to read
    assert not tree.locator(".slicetext", has_text="layers_0").first.is_visible()


def test_a_click_goes_into_a_module_and_says_what_it_took(traced: Open) -> None:
    page = traced()
    tree = page.locator("#chart-trace-modules")
    tree.locator(".slice", has_text="blocks.1").first.hover()
    page.locator("#chart-trace-modules .hoverlayer .hovertext").first.wait_for()
    assert "0.6000 ms (40%)" in tree.locator(".hovertext").first.inner_html()
    tree.locator(".slice", has_text="blocks.1").first.click()
    tree.locator(".pathbar", has_text="world_model.baseline").first.wait_for()
