"""The tables of calls show the planted numbers, their chart the spread of the samples."""

import numpy as np
from report_records import MIB, build, build_loop, cells, clocks, run_data, titled

from profiling.report.charts import Rows
from profiling.report.latency import latency_section


def test_the_dtypes_of_a_call():
    rows = cells(
        build("eager", 2.5, parameter_dtypes={"float32": 8}, cast="autocast"),
        build("mixed", 2.5, parameter_dtypes={"bfloat16": 8, "float32": 1}, cast="none"),
    )
    assert [row["dtype"] for row in rows] == ["float32 under autocast bfloat16", "bfloat16 and float32"]


def test_cells_without_a_time_or_an_error_have_no_row_and_what_was_not_measured_is_a_dash():
    """A CPU has no clock of a GPU."""
    skipped = build("cuda_graph", status="skipped", reason="no GPU")
    broken = build("fx", status="failed", reason="broken")
    wrong = build("compile", status="failed", reason="wrong", parity={"reference": "x", "rel_l2": 2, "passed": False})
    of_cpu = build("baseline", metrics=clocks(2.5, device=False), memory={"peak_host_rss": 812 * MIB})
    first, second = cells(of_cpu, wrong, skipped, broken)
    assert (first["variant"], first["peak MiB"], "device p50 ms" in first) == ("baseline", "812", False)
    shown = {"component", "variant", "status", "rel. L2", "against", "parameters", "weights", "dtype"}
    assert {name for name, text in second.items() if text != "–"} == shown


def test_metrics_of_a_users_own_show_their_numbers():
    own = {"deadline": {"missed": 3, "budget_ms": 16.67, "samples": [1, 2], "hard": True, "who": "me"}, "score": 0.5}
    record = build("baseline", metrics=clocks(2.5) | {"extra": own})
    found = [list(row.values())[2:] for row in titled(latency_section(run_data(record)))["Other metrics"]]
    assert found == [["deadline", "missed", "3.000"], ["deadline", "budget_ms", "16.67"], ["score", "–", "0.5000"]]


def spreads(*records):
    (chart,) = latency_section(run_data(*records)).charts
    return {title: drawn for title, drawn in chart.drawings.items() if isinstance(drawn, Rows)}


def test_spreads_stand_around_their_medians_and_a_wrong_one_is_pale(three):
    bounded = build("bounded", 5.0, roofline={"roofline_ms": 1.25})
    drawn = spreads(*three, bounded)["world_model"]
    first, _, wrong, last = drawn.rows
    found = [getattr(first.spread, name) for name in ("min", "p50", "p95", "p99", "max")]
    assert found == [28.66, 28.7, 28.73, 28.8, 28.9]
    assert (first.words, first.roofline_ms, last.roofline_ms) == ("28.70 ms, p99 28.80", None, 1.25)
    assert first.spread.max < drawn.end < 33
    assert (wrong.name, wrong.counts, first.counts) == ("cuda_graph (failed: does not count)", False, True)
    assert drawn.levels == [(1000 / 60, "60 FPS"), (1000 / 120, "120 FPS")], "those of the axis"


def test_a_call_of_several_frames_has_their_budgets_and_a_training_step_none():
    stalled = build("compile", component="stalled", metrics=clocks(2.5, p99=180.0, max=9000.0))
    drawn = spreads(
        build("baseline", 120.0, component="of four", frames_per_call=4),
        build("baseline", 120.0, component="training", training={"log": [], "eager_log": []}),
        *(build("baseline", 28.7, component="stalled"), stalled, build_loop("cuda_graph")),
    )
    assert list(drawn) == ["of four", "training", "stalled", "realtime"]
    assert drawn["of four"].levels == [(4000 / 60, "60 FPS"), (4000 / 120, "120 FPS")]
    assert drawn["training"].levels == []
    assert drawn["stalled"].end < 80, "a stalled call flattens none"
    assert drawn["realtime"].rows[0].words == "9.000 ms, p99 9.100"


def test_of_many_samples_the_lowest_and_the_highest_are_drawn():
    samples = 5 + 0.01 * np.random.default_rng(2).standard_normal(200_000)
    samples[123_456], samples[7] = 50.0, 0.5
    (rows,) = spreads(build("baseline", metrics=clocks(5.0, samples=samples.tolist()))).values()
    spread = rows.rows[0].spread
    assert len(spread.samples) <= 60
    assert {0.5, 50.0} <= set(spread.samples)
