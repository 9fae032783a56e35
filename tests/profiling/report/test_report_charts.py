"""What every figure shares: places, ticks and labels; series are thinned to their extremes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from profiling.report.charts import (
    GREY,
    RED,
    Figure,
    axis,
    band,
    envelope,
    error_bars,
    figure,
    frame_budgets,
    line,
    palette,
    plain,
    points,
    scale,
    upper_end,
)
from profiling.report.plot import plot_of


def test_an_interval_that_rounding_put_beside_its_median_has_no_negative_length() -> None:
    assert error_bars([1.0], [(1.0001, 1.0002)])["arrayminus"] == [0.0]


def test_frame_budgets_stand_on_the_axis_where_their_labels_have_room() -> None:
    budgets = {rate: (1000 / rate, f"{rate} FPS") for rate in (24, 30, 60, 120)}
    assert frame_budgets(50.0) == [*budgets.values()]
    assert frame_budgets(10.0) == [budgets[120]]
    assert frame_budgets(8.0) == []
    assert frame_budgets(190.0) == [budgets[24], budgets[60]]
    assert frame_budgets(2000.0) == [budgets[24]]


def test_an_axis_ends_where_the_readable_values_need_it() -> None:
    assert upper_end([10.0, 2.0], [26.0, 10.5]) == pytest.approx(1.06 * 10.5), "26 would leave the bars too little"
    assert upper_end([10.0, 2.0], [24.0, 10.5]) == pytest.approx(1.06 * 24)
    assert upper_end([300.0, 2.0, 1.0], [300.0, 2.5]) == pytest.approx(1.06 * 2.5), "a bar may be the outlier too"
    assert upper_end([300.0, 100.0], []) == pytest.approx(1.06 * 300)
    assert upper_end([], []) > 0


def test_small_and_large_values_get_a_log_axis() -> None:
    assert scale([1.0, 50.0]) == {"type": "log"}
    assert scale([1.0, 2.0]) == scale([]) == scale([0.0, 50.0]) == {"rangemode": "tozero"}


@pytest.mark.parametrize("most", [10, 100, 5000])
def test_a_thinned_series_keeps_its_extremes_in_order(most: int) -> None:
    values = np.random.default_rng(0).standard_normal(1000)
    values[[17, 500, 900]] = 50.0, np.nan, -50.0
    places = envelope(values, most)
    assert {17, 900} <= set(places)
    assert 500 not in places
    assert places.size <= max(most, 2)
    assert (np.diff(places) > 0).all()


def test_colours_of_a_chart_do_not_repeat() -> None:
    assert list(palette(["a", "b", "a"])) == ["a", "b"]
    colours = [*palette(map(str, range(12))).values()]
    assert len(set(colours[:10])) == 10
    assert set(colours[10:]) == {GREY}
    assert plain("<b>\n") == "<b>"


def drawn() -> Figure:
    data = [
        line("frames", [0, 1, 2], [4.0, 8.0, 6.0], "#123456"),
        points("slow", [1], [8.0], "diamond-open", error_y=error_bars([8.0], [(7.0, 10.0)])),
    ]
    return figure(data, axis("frame"), axis("frame time, ms", range=[0, 10]), [(5.0, "200 FPS")], [band("x", 0, 1)])


def test_values_stand_at_their_share_of_the_axes() -> None:
    plot = plot_of(drawn())
    (mark,) = plot.marks
    assert (mark.x, mark.y, mark.words) == (50.0, pytest.approx(20.0), "slow: 1.000, 8.000")
    assert plot.paths[0][0].count("L") == 2
    assert plot.notes == [(50.0, "200 FPS", RED)]
    level, interval = plot.rules
    assert (level.y1, level.y2, level.x1, level.x2) == (50.0, 50.0, 0, 100)
    assert (interval.y1, interval.y2) == (pytest.approx(30.0), pytest.approx(0.0))
    assert [text for _, text in plot.y_ticks] == ["0", "2", "4", "6", "8", "10"]
    left, top, width, height, *_ = plot.bands[0]
    assert (left, top, width, height) == pytest.approx((3.7, 0.0, 46.3, 100), abs=0.1)


@pytest.mark.parametrize(
    ("kind", "values", "ticks"),
    [
        ({"type": "log"}, [1.0, 1000.0], ["1", "10", "100", "1,000"]),
        ({"type": "log"}, [10.0, 60.0], ["10", "20", "50"]),
        ({"type": "category"}, ["b", "a"], ["b", "a"]),
        ({"rangemode": "tozero"}, [3.0, 4.0], ["0", "1", "2", "3", "4"]),
        ({"tickvals": [1.0, 4.0]}, [1.0, 4.0], ["1", "4"]),
        ({"range": [1.5, -0.5], "tickvals": [0, 1], "ticktext": ["one", "two"]}, [0, 1], ["one", "two"]),
    ],
)
def test_an_axis_has_round_ticks_in_their_order(kind: dict[str, Any], values: list[Any], ticks: list[str]) -> None:
    plot = plot_of(figure([points("p", values, [1.0, 2.0])], axis("x", **kind), axis("y")))
    assert [text for _, text in plot.x_ticks] == ticks
    assert all(0 <= place <= 100 for place, _ in plot.x_ticks)
    places = {mark.words: mark.x for mark in plot.marks}
    assert len(set(places.values())) == 2


def test_dates_are_placed_by_time() -> None:
    days = ["2026-01-01T00:00:00", "2026-01-02T00:00:00", "2026-01-05T00:00:00"]
    first, second, third = plot_of(figure([points("p", days, [1, 1, 1])], axis("x", type="date"), axis("y"))).marks
    assert third.x - second.x == pytest.approx(3 * (second.x - first.x), abs=0.05)


def test_series_whose_colours_repeat_are_labelled_and_have_no_legend() -> None:
    names = [f"variant_{i}" for i in range(12)]
    colours = palette(names)
    plot = plot_of(figure([line(n, [0, 1], [1.0, 2.0], colours[n]) for n in names], axis("x"), axis("y")))
    assert plot.key == []
    assert [label[2] for label in plot.labels] == names
    few = plot_of(figure([line(n, [0, 1], [1.0, 2.0], colours[n]) for n in names[:10]], axis("x"), axis("y")))
    assert ([name for *_, name in few.key], few.labels) == (names[:10], [])
