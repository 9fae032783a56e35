"""The inside of a call in a real browser: kernels are sorted and filtered, trees and bars drawn, nobody is asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hand_traced import CEILINGS, inside, many
from open_page import Open

from profiling.results.records import Record

pytestmark = pytest.mark.browser

Make = Callable[..., Record]


@pytest.fixture
def traced(make: Make, write_page: Callable[..., Path], show: Open) -> Open:
    """Open the page of three cells with what their traces say."""

    def open_page(**options: Any) -> Any:
        trace = {"trace": "traces/net.json.gz"}
        quiet = inside(waits=[], copies=[])
        records = [
            make("baseline", 2.0, inside=inside(), trace=trace),
            make("cuda_graph", 1.5, inside=quiet, trace=trace),
            make("baseline", 2.0, component="other", inside=many(120, 60)),
        ]
        return show(write_page(records, {"ceilings": CEILINGS}), **options)

    return open_page


def block_of(page: Any, title: str) -> Any:
    return page.locator("#inside .table", has=page.get_by_role("heading", name=title, exact=True))


def column(block: Any, header: str) -> list[str]:
    headers = [" ".join(text.split()) for text in block.locator("th").all_inner_texts()]
    return block.locator(f"tbody tr:visible td:nth-child({headers.index(header) + 1})").all_inner_texts()


def test_kernels_are_sorted_by_any_column_on_a_narrow_screen_too(traced: Open) -> None:
    page = traced(width=380)
    assert page.evaluate("document.documentElement.scrollWidth") <= 380, "tables scroll by themselves"
    block = block_of(page, "Kernels by total time")
    count = block.locator("tbody tr").count()
    assert count == 4 + 4 + 120
    for header in ("total ms", "GB/s", "mean µs"):
        block.locator("th button", has_text=header).click()
        numbers = [float(text) for text in column(block, header) if text != "–"]
        assert numbers == sorted(numbers)
        block.locator("th button", has_text=header).click()
        texts = column(block, header)
        numbers = [float(text) for text in texts if text != "–"]
        assert numbers == sorted(numbers, reverse=True)
        assert set(texts[len(numbers) :]) <= {"–"}
    block.locator("th button", has_text="kernel").click()
    assert column(block, "kernel")[0].startswith("flash_fwd")


def test_kernels_are_filtered_by_words_of_any_column(traced: Open) -> None:
    block = block_of(traced(), "Kernels by total time")
    block.locator("input").fill("cuda_graph gemm")
    assert column(block, "kernel") == ["nvjet_tst_64x8_64x16_4x1_v_bz_TNT"]
    assert block.locator(".count").inner_text() == "1 of 128 rows"
    block.locator("input").fill("kernel_0117<")
    assert len(column(block, "kernel")) == 1
    block.locator("th button", has_text="total ms").click()
    assert len(column(block, "kernel")) == 1, "what is filtered stays so when it is sorted"
    block.locator("input").fill("")
    assert len(column(block, "kernel")) == 128


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_charts_are_drawn(traced: Open, scheme: str) -> None:
    page = traced(scheme=scheme)
    split = page.locator("#chart-inside-split")
    assert split.locator(".bars .point").count() >= 3
    assert split.locator(".ytick").count() == 3
    assert (split.locator(".xtitle").text_content() or "").endswith(", ms")
    tree = page.locator("#chart-inside-modules")
    assert tree.locator(".icicle .slice:visible").count() >= 6
    assert "not attributable" in tree.locator(".icicle .slicetext").all_text_contents()
    choice = page.locator('select[data-views="inside-modules"]')
    assert choice.locator("option").all_text_contents() == [
        *("world_model.baseline", "world_model.cuda_graph", "other.baseline")
    ]
    choice.select_option("2")
    tree.locator(".slice").nth(60).wait_for()  # its sixty layers, whose labels would be too small to read
    assert not tree.locator(".slicetext", has_text="layers_0").first.is_visible()


def test_a_click_goes_into_a_module_and_says_what_it_took(traced: Open) -> None:
    page = traced()
    tree = page.locator("#chart-inside-modules")
    tree.locator(".slice", has_text="blocks.1").first.hover()
    page.locator("#chart-inside-modules .hoverlayer .hovertext").first.wait_for()
    assert "0.6000 ms (40.0%)" in tree.locator(".hovertext").first.inner_html()
    tree.locator(".slice", has_text="blocks.1").first.click()
    tree.locator(".pathbar", has_text="world_model.baseline").first.wait_for()
