"""The page in a real browser: it draws, sorts, filters, changes colours, and neither complains nor asks anybody."""

from itertools import pairwise

import pytest
from hand_traced import CEILINGS, many, trace
from hostile import ALL, BREAKOUT, ENVIRONMENT, MARKUP, hostile_records
from report_records import RESULTS, build, frame_loop

from profiling.report.render import PAGE_FILE, run_report
from profiling.report.run_data import load_run

pytestmark = pytest.mark.browser


@pytest.fixture
def shown(show, tmp_path):
    """Open the page of a committed run."""

    def show_run(name, **options):
        file = tmp_path / PAGE_FILE
        file.write_text(run_report(load_run(RESULTS / name)).page(), encoding="utf-8")
        return show(file, **options)

    return show_run


def place_of(table, header):
    """Return the number of a column, from 1."""
    headers = [" ".join(text.split()) for text in table.locator("th").all_inner_texts()]
    return headers.index(header) + 1


def column(table, header):
    return table.locator(f"tbody tr:visible td:nth-child({place_of(table, header)})").all_inner_texts()


def unfolded(page):
    page.evaluate("document.querySelectorAll('details').forEach(fold => { fold.open = true })")
    return page


@pytest.mark.parametrize(
    ("committed", "width", "scheme"),
    [
        *(("h200_main", 1400, "light"), ("h100_quantised", 800, "dark")),
        *(("h200_realtime", 800, "light"), ("h200_tune_image_decoder", 1400, "dark")),
    ],
)
def test_every_view_of_every_chart_is_drawn_inside_its_frame(committed, width, scheme, shown):
    page = shown(committed, width=width, scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    charts = page.locator("figure.chart")
    assert charts.count() > 0
    for chart in charts.all():
        for view in chart.locator(".view").all():
            assert view.is_visible()
            assert view.locator("path, .mark, .part, .p50, .node").count() > 0
        (frame,) = boxes(chart)
        for text in boxes(chart.locator(".name, .words, svg text, .key li")):
            assert frame["x"] <= text["x"]
            assert text["x"] + text["width"] <= frame["x"] + frame["width"] + 1


def test_a_table_is_on_demand_and_the_answer_is_not(shown):
    page = shown("h200_main", width=800)
    assert page.locator("#answer table").first.is_visible()
    fold = page.locator("#latency details").first
    assert not fold.locator("table").is_visible()
    fold.locator("summary").click()
    assert fold.locator("table").is_visible()


def test_tables_sort_by_number_with_the_mouse_and_the_keyboard(shown):
    page = unfolded(shown("h200_main"))
    table = page.locator("#answer table").nth(1)
    medians = [float(text) for text in column(table, "p50 ms")]
    assert medians != sorted(medians)
    button = table.locator(f"th:nth-child({place_of(table, 'p50 ms')}) button")
    button.click()
    assert [float(text) for text in column(table, "p50 ms")] == sorted(medians)
    assert table.locator('th[aria-sort="ascending"]').count() == 1
    button.focus()
    page.keyboard.press("Enter")
    assert [float(text) for text in column(table, "p50 ms")] == sorted(medians, reverse=True)
    table.locator("th:nth-child(2) button").click()
    names = column(table, "variant")
    assert names == sorted(names)
    assert table.locator("th[aria-sort]").count() == 1


def test_what_was_not_measured_stays_last(write_page, show):
    untimed = build("untimed", parity={"reference": "fp32 eager", "passed": True})
    table = show(write_page([build("slow", 9.0), untimed, build("fast", 2.0)])).locator("#answer table").nth(1)
    for rates in (["111", "500", "–"], ["500", "111", "–"]):
        table.locator(f"th:nth-child({place_of(table, 'FPS')}) button").click()
        assert column(table, "FPS") == rates


def test_both_colour_schemes(shown):
    def looks(page):
        style = page.evaluate(
            "(({color, backgroundColor}) => [color, backgroundColor])(getComputedStyle(document.body))"
        )
        return *style, page.locator(".facts").first.evaluate("text => getComputedStyle(text).color")

    light = looks(shown("h200_realtime"))
    assert all(one != other for one, other in zip(light, looks(shown("h200_realtime", scheme="dark")), strict=True))


def boxes(places):
    """Return the positions of the elements, all by one call to the browser: there are hundreds."""
    return places.evaluate_all("all => all.map(each => each.getBoundingClientRect().toJSON())")


def test_parts_of_a_bar_lie_side_by_side_and_have_its_length(write_page, show):
    chart = show(write_page([build("baseline", 2.0, trace_analysis=trace())])).locator("#chart-time")
    parts, bar = boxes(chart.locator(".part")), chart.locator(".bar").bounding_box()
    assert [part["width"] / bar["width"] for part in parts] == pytest.approx(
        [ms * 1.48 / 1.5 / 2 for ms in (0.8, 0.4, 0.2, 0.1)] + [0.26], abs=0.005
    )
    assert parts[0]["x"] == pytest.approx(bar["x"], abs=1)
    for left, right in pairwise(parts):
        assert right["x"] == pytest.approx(left["x"] + left["width"], abs=1)


def test_medians_stand_at_their_share_of_the_axis(write_page, show):
    chart = show(write_page([build("baseline", 10.0), build("compile", 5.0)]), width=800).locator("#chart-latency")
    bar = chart.locator(".bar").first.bounding_box()
    slow, fast = (mark["x"] + mark["width"] / 2 - bar["x"] for mark in boxes(chart.locator(".p50")))
    assert slow == pytest.approx(2 * fast, abs=1.5)
    levels = boxes(chart.locator(".levels span"))
    assert [round((level["x"] + level["width"] / 2 - bar["x"]) / slow, 2) for level in levels] == [0.83]


def test_a_narrow_screen_scrolls_tables_and_not_the_page(shown):
    page = unfolded(shown("h200_main", width=380))
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
    wide = page.locator("#answer .scroll").nth(1)
    assert wide.evaluate("box => box.scrollWidth > box.clientWidth")
    wide.focus()  # it takes the keyboard, whose arrows scroll it
    assert wide.evaluate("box => box === document.activeElement")


def test_names_that_look_like_code_are_text_in_the_charts_too(write_page, show, heard):
    page = show(write_page(hostile_records(build, frame_loop()), ENVIRONMENT, BREAKOUT))
    assert page.evaluate("window.evil") is None
    assert page.locator(".chart a, .chart img, .chart b").count() == 0
    names = page.locator("#chart-latency .name, #chart-latency .of").all_text_contents()
    for text in ALL:
        assert any(" ".join(text.split()) in name for name in names), (text, names)
    assert MARKUP in page.locator("#answer tbody").nth(1).inner_text()
    assert page.evaluate("window.evil") is None


def test_the_policy_stops_what_escaping_would_have_missed(shown, heard):
    page = shown("h200_decoder_steps")
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


def test_kernels_are_filtered_by_words_of_any_column(write_page, show):
    records = [
        build("baseline", 2.0, trace_analysis=trace()),
        build("cuda_graph", 1.5, trace_analysis=trace()),
        build("baseline", 2.0, component="other", trace_analysis=many(40, 60)),
    ]
    page = unfolded(show(write_page(records, {"ceilings": CEILINGS})))
    region = page.get_by_role("region", name="Kernels by total time", exact=True)
    block = page.locator("#trace .table", has=region)
    block.locator("input").fill("CUDA_GRAPH gemm")
    assert column(block, "kernel") == ["nvjet_tst_64x8_64x16_4x1_v_bz_TNT"]
    assert block.locator(".count").inner_text() == "1 of 48 rows"
    block.locator("input").fill("kernel_0037<")
    assert len(column(block, "kernel")) == 1
    block.locator("th button", has_text="total ms").click()
    assert len(column(block, "kernel")) == 1, "what is filtered stays so when it is sorted"
    block.locator("input").fill("")
    assert len(column(block, "kernel")) == 15
    block.get_by_role("button", name="show all 48 rows").click()
    assert len(column(block, "kernel")) == 48
