"""Charts: places, ticks and colours, series that are thinned to their extremes, and bars that add up."""

import numpy as np
import pytest
from hand_traced import module, trace
from report_records import RESULTS, build, build_loop, frame_loop, run_data

from profiling.report.charts import GREY, Figure, Series, envelope, frame_budgets, palette, upper_end
from profiling.report.run_data import load_run
from profiling.report.time_split import time_charts


def test_frame_budgets_stand_on_the_axis_where_their_labels_have_room():
    budgets = {rate: (1000 / rate, f"{rate} FPS") for rate in (24, 30, 60, 120)}
    for top, shown in ((50.0, (24, 30, 60, 120)), (10.0, (120,)), (8.0, ()), (190.0, (24, 60)), (2000.0, (24,))):
        assert frame_budgets(top) == [budgets[rate] for rate in shown], top


def test_an_axis_ends_where_the_readable_values_need_it():
    for readable, values, end in (
        ([10.0, 2.0], [26.0, 10.5], 10.5),  # 26 would leave the bars too little
        ([10.0, 2.0], [24.0, 10.5], 24),
        ([300.0, 2.0, 1.0], [300.0, 2.5], 2.5),  # a bar may be the outlier too
        ([300.0, 100.0], [], 300),
        ([], [], 1 / 1.06),
    ):
        assert upper_end(readable, values) == pytest.approx(1.06 * end), (readable, values)


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


GAPS, OUTSIDE, UNKNOWN = "launch gaps, host", "outside operators", "kernels of no known class"


def tree(*records):
    return next(iter(time_charts(run_data(*records))[-1].drawings.values()))


def profiled(wall_ms, busy_ms, *classes, **changes):
    """Make a cell of a run without `trace=true`: its kernel times come from the short profile of each cell."""
    work = {"kernels": 9, "launches": 9, "busy_ms": busy_ms, "median_us": 5, "short_ms": 0, "transfer_ms": 0}
    kinds = [{"class": kind, "ms": ms, "share": ms / wall_ms} for kind, ms in classes]
    section = {"device_work": work | {"waits": 0}, "classes": kinds}
    return build(changes.pop("variant", "compile"), wall_ms, roofline=section, **changes)


@pytest.mark.parametrize(
    ("record", "parts"),
    [
        (
            build("baseline", 2.0, trace_analysis=trace(kernel_ms=1.5, busy_ms=1.5)),
            {"GEMM": 0.8, "attention": 0.4, "pointwise": 0.2, "copies": 0.1, GAPS: 0.5},
        ),
        (
            profiled(2.0, 1.5, ("gemm", 0.9), ("reduction", 0.4)),
            {"GEMM": 0.9, "norms, reductions": 0.4, UNKNOWN: 0.2, GAPS: 0.5},
        ),
        (profiled(2.0, 1.0, ("gemm", 0.9), ("conv", 0.6)), {"GEMM": 0.6, "convolution": 0.4, GAPS: 1.0}),
        (profiled(2.0, 2.2, ("gemm", 2.2)), {"GEMM": 2.0}),
        (profiled(2.0, 1.0, ("gemm", 1.5), device="cpu"), {"GEMM": 1.5, OUTSIDE: 0.5}),
        (profiled(2.0, 1.5), {UNKNOWN: 1.5, GAPS: 0.5}),
    ],
    ids=["trace", "short profile", "side by side", "longer than the median", "CPU", "no class known"],
)
def test_a_bar_is_the_kernels_by_class_and_what_is_left_of_the_median(record, parts):
    wrong = profiled(2.0, 1.0, ("gemm", 1.0), variant="wrong", status="failed", reason="wrong")
    unknown = build("unknown", 2.0)
    (bars,) = time_charts(run_data(record, wrong, unknown))[0].drawings.values()
    (row,) = bars.rows
    assert {part.label: part.ms for part in row.parts} == pytest.approx(parts)
    assert (row.ms, row.words) == (pytest.approx(2.0), "2.000 ms"), "the parts add up to the median"
    assert not any(time_charts(run_data(wrong, unknown)))


def test_a_slow_baseline_does_not_flatten_the_recipes():
    slow = profiled(50.0, 1.0, ("gemm", 1.0), variant="baseline")
    (bars,) = time_charts(run_data(slow, profiled(2.0, 1.0, ("gemm", 1.0))))[0].drawings.values()
    assert bars.end == pytest.approx(10.0)


def test_the_bars_of_a_committed_loop_are_its_stages_and_add_up_to_its_mean():
    data = load_run(RESULTS / "h200_realtime")
    (bars,) = time_charts(data)[1].drawings.values()
    assert [part.label for part in bars.rows[0].parts] == ["world", "picture", "sound", "deliver", "unaccounted"]
    assert [row.ms for row in bars.rows] == pytest.approx([record.summary.mean for record in data.loops])
    overlapping = frame_loop(schedule="overlap")  # whose stages have no means
    assert not any(time_charts(run_data(build_loop("baseline", overlapping))))


def test_the_tree_of_the_fastest_holds_each_modules_own_time_once():
    slower = build("baseline", 3.0, trace_analysis=trace(modules=[module("", 9.0, 9.0, 1.0)]))
    whole = tree(slower, build("compile", 2.0, trace_analysis=trace()))
    assert (whole.label, whole.ms) == ("world_model.compile", pytest.approx(1.5))
    nodes = {"blocks.0": 0.5, "blocks.1": 0.6, "head": 0.3, "no module": 0.05}
    assert [(node.label, round(node.ms, 6)) for node in whole.nodes] == list(nodes.items())
    assert [node.label for node in whole.nodes[1].nodes] == ["attn"]
    assert whole.nodes[1].words == "blocks.1: 0.6000 ms (40%), its own 0.2000 ms, 5 kernels"


def test_what_a_tree_has_no_room_for_is_its_parents_own_time():
    modules = [module("", 3.0, 0.0, 1.0), module("a", 3.0, 1.0, 1.0)]
    modules += [module(f"a.{i}", 0.001, 0.001, 1.0) for i in range(2000)]
    record = build("baseline", 4.0, trace_analysis=trace(modules=modules, unattributed_ms=0.0))
    (a,) = tree(record).nodes
    assert (a.ms, a.own_ms, a.nodes) == (pytest.approx(3.0), pytest.approx(3.0), [])


def test_without_a_trace_the_tree_is_that_of_the_short_one_of_the_roofline():
    modules = [module("", 1.0, 0.1, 1.0), module("a", 0.8, 0.8, 1.0)]
    record = build("baseline", 2.0, roofline={"modules": modules, "unattributed_ms": 0.1})
    whole = tree(record)
    assert [(node.label, round(node.ms, 6)) for node in whole.nodes] == [("a", 0.8), ("no module", 0.1)]
