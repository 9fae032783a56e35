"""The page in a real browser: it draws, sorts, filters, changes colours, and neither complains nor asks anybody."""

import re
from itertools import combinations, pairwise

import pytest
from hand_traced import CEILINGS, many, trace
from hostile import ALL, BREAKOUT, ENVIRONMENT, MARKUP, hostile_records
from report_records import RESULTS, build, frame_loop, in_turns

from profiling.report.render import PAGE_FILE, run_report
from profiling.report.run_data import load_run

pytestmark = pytest.mark.browser


@pytest.fixture
def shown(show, tmp_path):
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
        *(("h200_main", 1400, "light"), ("h200_quantised", 800, "dark")),
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
    for bar in page.locator(".bar.cut").all():
        (edge,), parts, labels = (boxes(bar.locator(kind)) for kind in (".beyond", ".part", ".part > span"))
        for part, label in zip(parts, labels, strict=True):
            assert label["right"] <= edge["left"] or label["top"] >= part["bottom"] - 1, "whole or not at all"


def test_a_table_is_on_demand_and_the_answer_is_not(shown):
    page = shown("h200_main", width=800)
    assert page.locator("#answer table").first.is_visible()
    fold = page.locator("#latency details").first
    assert not fold.locator("table").is_visible()
    fold.locator("summary").press("Enter")
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
    page = unfolded(show(write_page([build("slow", 9.0), untimed, build("fast", 2.0)])))
    table = page.locator("#answer table").nth(1)
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


def test_parts_of_a_bar_lie_side_by_side_and_modules_are_as_wide_as_their_share(write_page, show):
    """Also below a millisecond; the bar is as long as its parts."""
    page = show(write_page([build("baseline", 2.0, trace_analysis=trace())]))
    time, modules = page.locator("#chart-time"), page.locator("#chart-modules")
    parts, bar = boxes(time.locator(".part")), time.locator(".bar").bounding_box()
    assert [part["width"] / bar["width"] for part in parts] == pytest.approx(
        [ms * 1.48 / 1.5 / 2 for ms in (0.8, 0.4, 0.2, 0.1)] + [0.26], abs=0.005
    )
    assert parts[0]["x"] == pytest.approx(bar["x"], abs=1)
    for left, right in pairwise(parts):
        assert right["x"] == pytest.approx(left["x"] + left["width"], abs=1)
    whole = modules.locator(".icicle").bounding_box()["width"]
    for label, ms in {"blocks.0": 0.5, "attn": 0.4, "blocks.1": 0.6, "head": 0.3}.items():  # of 1.5 ms
        node = modules.locator(".node", has=page.get_by_text(label, exact=True)).last.bounding_box()
        assert node["width"] / whole == pytest.approx(ms / 1.5, abs=0.005), label


def test_a_label_on_a_bar_is_readable(shown):
    """Its contrast is at least 4.5:1 (WCAG AA)."""
    channels = "each => [getComputedStyle(each).color, getComputedStyle(each).backgroundColor]"
    for scheme in ("light", "dark"):
        page = shown("h200_main", scheme=scheme)
        for text, ground in page.locator(".part").evaluate_all(f"all => all.map({channels})"):
            light, dark = sorted((luminance(text), luminance(ground)), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (text, ground)


def luminance(colour):
    """Return the relative luminance (0 to 1) of a CSS colour "rgb(1, 2, 3)"."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)]
    linear = [part / 12.92 if part <= 0.04 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_labels_of_frame_budgets_do_not_overlap(shown):
    labels = boxes(shown("h200_realtime", width=800).locator("#chart-latency .levels span"))
    assert len(labels) == 4
    for one, other in combinations(labels, 2):
        assert (
            one["right"] <= other["left"]
            or other["right"] <= one["left"]
            or one["bottom"] <= other["top"]
            or other["bottom"] <= one["top"]
        )


def test_a_narrow_page_shows_each_doubt_of_a_cell_without_scrolling(write_page, show):
    recipe = "channels_last+fused_norm+grouped_conv+pointwise_conv+interpolation+compile+cuda_graph"
    cells = [in_turns("baseline", 15.0, drift=1.3), in_turns(recipe, 8.9, noise=0.1, taken=0.38)]
    page = unfolded(show(write_page(cells), width=800))
    table = page.locator("#answer table").nth(1)
    edge = table.locator("xpath=..").bounding_box()
    for header in ("speedup vs baseline", "conditions"):
        for box in boxes(table.locator(f"tr > :nth-child({place_of(table, header)})")):
            assert box["right"] <= edge["x"] + edge["width"]


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
    page = unfolded(show(write_page(hostile_records(build, frame_loop()), ENVIRONMENT, BREAKOUT)))
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
    assert len(column(block, "kernel")) == 48
