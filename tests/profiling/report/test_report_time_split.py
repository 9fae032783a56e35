"""Where the time of a call goes: known kernels in, bars that add up out."""

import pytest
from hand_traced import module, trace
from report_records import RESULTS, build, run_data

from profiling.report.run_data import load_run
from profiling.report.time_split import time_charts

GAPS, OUTSIDE, UNKNOWN = "launch gaps, host", "outside operators", "kernels of no known class"


def tree(*records):
    return time_charts(run_data(*records))[-1].views[0].figure


def profiled(wall_ms, busy_ms, *classes, **changes):
    """Make a cell whose kernels are known from the short profile alone."""
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
    (view,) = time_charts(run_data(record, wrong, unknown))[0].views
    (row,) = view.figure.rows
    assert {part.label: part.ms for part in row.parts} == pytest.approx(parts)
    assert not any(time_charts(run_data(wrong, unknown)))


def test_a_slow_baseline_does_not_flatten_the_recipes():
    slow = profiled(50.0, 1.0, ("gemm", 1.0), variant="baseline")
    (view,) = time_charts(run_data(slow, profiled(2.0, 1.0, ("gemm", 1.0))))[0].views
    assert view.figure.end == pytest.approx(10.0)


@pytest.mark.parametrize("run", ["h200_main", "h200_packages"])
def test_the_bars_of_a_committed_run_add_up_to_their_medians(run):
    data = load_run(RESULTS / run)
    rows = [row for view in time_charts(data)[0].views for row in view.figure.rows]
    assert len(rows) == sum(record.is_correct for record in data.records)
    assert [row.ms for row in rows] == pytest.approx([float(row.words.removesuffix(" ms")) for row in rows], rel=2e-3)


def test_the_tree_of_the_fastest_holds_each_modules_own_time_once():
    slower = build("baseline", 3.0, trace_analysis=trace(modules=[module("", 9.0, 9.0, 1.0)]))
    whole = tree(slower, build("compile", 2.0, trace_analysis=trace()))
    assert (whole.label, whole.ms) == ("world_model.compile", pytest.approx(1.5))
    assert [(node.label, round(node.ms, 6)) for node in whole.nodes] == [
        *(("blocks.0", 0.5), ("blocks.1", 0.6), ("head", 0.3), ("no module", 0.05))
    ]
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
