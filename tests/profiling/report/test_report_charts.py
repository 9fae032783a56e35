"""What every figure shares: plotly knows each property, names stay text, series are thinned to their extremes."""

from __future__ import annotations

import json

import numpy as np
import plotly.graph_objects as go
import pytest

from profiling.report.charts import (
    axis,
    band,
    bars,
    cut_bars,
    envelope,
    figure,
    frame_budgets,
    line,
    palette,
    plain,
    points,
    ranks,
    rounded,
    scale,
    series_scale,
    tree,
    upper_end,
)


def test_plotly_knows_every_property() -> None:
    data = [
        bars("<b>", ["a", "b"], [1.0, None], "#888888", [(0.9, 1.2), None], opacity=0.5),
        bars("lying", ["a"], [1.0], "#888888", horizontal=True),
        points("p99", [1, 2.5], [1.0, 2.0], symbol="diamond-open"),
        line("frames", np.arange(2), np.ones(2), "#888888"),
    ]
    drawn = figure(data, axis("x"), axis("y, ms"), frame_budgets(9.0), shapes=[band("x", 0, 1)], barmode="stack")
    go.Figure(drawn)  # raises where a property is misspelt or out of its range
    go.Figure(tree({"type": "icicle", "labels": ["a"], "parents": [""]}))
    assert json.dumps(drawn, allow_nan=False)
    assert drawn["data"][0]["name"] == "&lt;b&gt;"


def test_a_figure_with_a_misspelt_property_would_be_refused() -> None:
    with pytest.raises(ValueError, match="opactiy"):
        go.Figure({"data": [{"type": "bar", "opactiy": 1}]})


def test_absent_bars_are_left_out_with_their_intervals() -> None:
    drawn = bars("p50", ["a", "b", "c"], [1.0, None, 3.0], "#888888", [(0.9, 1.2), None, None])
    assert (drawn["x"], drawn["y"]) == (["a", "c"], [1.0, 3.0])
    assert drawn["error_y"]["array"] == pytest.approx([0.2, 0.0])
    assert drawn["error_y"]["arrayminus"] == pytest.approx([0.1, 0.0])


def test_an_interval_that_rounding_put_beside_its_median_has_no_negative_length() -> None:
    assert bars("p50", ["a"], [1.0], "#888888", [(1.0001, 1.0002)])["error_y"]["arrayminus"] == [0.0]


def test_frame_budgets_stand_on_the_axis_and_close_ones_share_a_label() -> None:
    assert frame_budgets(50.0) == [
        (1000 / 120, "120 FPS"),
        (1000 / 60, "60 FPS"),
        (1000 / 30, "30 FPS"),
        (1000 / 24, "24 FPS"),
    ]
    assert frame_budgets(10.0) == [(1000 / 120, "120 FPS")]
    assert frame_budgets(8.0) == []
    assert [label for _, label in frame_budgets(190.0)] == ["", "60, 120 FPS", "", "24, 30 FPS"]
    assert [label for _, label in frame_budgets(2000.0)] == ["", "", "", "24, 30, 60, 120 FPS"]


def test_an_axis_ends_where_the_readable_values_need_it() -> None:
    assert upper_end([10.0, 2.0], [26.0, 10.5]) == pytest.approx(1.06 * 10.5), "26 would leave the bars too little"
    assert upper_end([10.0, 2.0], [24.0, 10.5]) == pytest.approx(1.06 * 24)
    assert upper_end([300.0, 2.0, 1.0], [300.0, 2.5]) == pytest.approx(1.06 * 2.5), "a bar may be the outlier too"
    assert upper_end([300.0, 100.0], []) == pytest.approx(1.06 * 300)
    assert upper_end([], []) > 0


def test_a_value_above_the_axis_is_a_triangle_at_its_edge_that_tells_the_value() -> None:
    drawn = points("p99", ["a", "b"], [3.0, 99.126], "diamond-open", top=10.0)
    assert (drawn["y"], drawn["marker"]["symbol"]) == ([3.0, 10.0], ["diamond-open", "triangle-up"])
    assert drawn["text"] == ["3", "99.13"]
    assert points("p99", ["a"], [3.0], "diamond-open", top=10.0) == points("p99", ["a"], [3.0], "diamond-open")
    (label,) = cut_bars(["a", "b"], [3.0, 99.0], 10.0)
    assert (label["x"], label["y"], label["text"]) == (["b"], [10.0], ["99"])
    assert cut_bars(["a"], [3.0], 10.0) == []


def test_one_sample_does_not_set_the_axis_of_a_series_and_far_series_get_a_log_axis() -> None:
    values = np.full(1000, 2.0)
    values[3] = 500.0
    ends, top = series_scale([values, values / 2])
    assert ends == {"range": [0, top]}
    assert 2 < top < 6
    assert series_scale([values, values * 100]) == ({"type": "log"}, float("inf"))


def test_a_level_stands_at_its_logarithm_on_a_log_axis() -> None:
    drawn = figure([], axis("x"), axis("y", type="log"), [(100.0, "10 FPS")])
    assert drawn["layout"]["annotations"][0]["y"] == 2.0
    assert drawn["layout"]["shapes"][0]["y0"] == 100.0


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


def test_ranks_are_spread_over_all() -> None:
    assert ranks(5, 10).tolist() == [0, 1, 2, 3, 4]
    assert ranks(1001, 3).tolist() == [0, 500, 1000]


def test_colours_and_names() -> None:
    assert list(palette(["a", "b", "a"])) == ["a", "b"]
    assert plain("<b>&amp;</b>\n") == "&lt;b&gt;&amp;amp;&lt;/b&gt;"
    assert rounded([1 / 3]) == [0.333333]
