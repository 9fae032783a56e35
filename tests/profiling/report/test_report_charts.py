"""What charts share: places, ticks and colours; series are thinned to their extremes."""

import numpy as np
import pytest

from profiling.report.charts import GREY, Figure, Series, envelope, frame_budgets, palette, upper_end


def test_frame_budgets_stand_on_the_axis_where_their_labels_have_room():
    budgets = {rate: (1000 / rate, f"{rate} FPS") for rate in (24, 30, 60, 120)}
    for top, shown in ((50.0, (24, 30, 60, 120)), (10.0, (120,)), (8.0, ()), (190.0, (24, 60)), (2000.0, (24,))):
        assert frame_budgets(top) == [budgets[rate] for rate in shown], top


@pytest.mark.parametrize(
    ("readable", "values", "end"),
    [
        ([10.0, 2.0], [26.0, 10.5], 10.5),  # 26 would leave the bars too little
        ([10.0, 2.0], [24.0, 10.5], 24),
        ([300.0, 2.0, 1.0], [300.0, 2.5], 2.5),  # a bar may be the outlier too
        ([300.0, 100.0], [], 300),
        ([], [], 1 / 1.06),
    ],
)
def test_an_axis_ends_where_the_readable_values_need_it(readable, values, end):
    assert upper_end(readable, values) == pytest.approx(1.06 * end)


@pytest.mark.parametrize("most", [10, 5000])
def test_a_thinned_series_keeps_its_extremes_in_order(most):
    values = np.random.default_rng(0).standard_normal(1000)
    values[[17, 500, 900]] = 50.0, np.nan, -50.0
    places = envelope(values, most)
    assert {17, 900} <= set(places)
    assert 500 not in places
    assert places.size <= most
    assert (np.diff(places) > 0).all()


def test_colours_of_a_chart_do_not_repeat():
    colours = [*palette([*map(str, range(12)), "0"]).values()]
    assert (len(colours), len(set(colours[:10])), set(colours[10:])) == (12, 10, {GREY})


def test_frames_stand_at_their_share_of_the_axes_and_one_far_beyond_the_others_at_the_edge():
    frames = Series("frames", [(0, 4.0), (1, 8.0), (2, 6.0)], "#123456")
    figure = Figure(frames, [Series("slow", [(1, 8.0)], GREY)], (10.0, "100 FPS"), shaded_to=1)
    left, top = figure.at(1, 8.0)
    assert (left, top) == (50.0, pytest.approx(100 - 80 / 1.06, abs=0.01))
    assert figure.path.count("L") == 3
    assert f"L{10 * left:.5g} {10 * top:.5g}L" in figure.path
    assert figure.legend == [("━", "#123456", "frames"), ("○", GREY, "slow")]
    figure = Figure(Series("frames", [*((n, 4.0) for n in range(9)), (9, 4000.0)], GREY))
    assert (figure.end, figure.at(9, 4000.0)) == (pytest.approx(1.06 * 4), (100.0, 0.0))
    assert Figure(Series("none", [], GREY)).path == "M"
