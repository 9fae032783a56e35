"""The tables of calls show the planted numbers, their chart the spread of the samples."""

from __future__ import annotations

import numpy as np
from report_records import MIB, build, build_loop, cells, clocks, faster, run_data, titled

from profiling.report.charts import Rows
from profiling.report.latency import latency_section
from profiling.results.record import Record


def sampled(samples: np.ndarray) -> Record:
    """Make a record of these samples."""
    return build("baseline", metrics=clocks(float(np.median(samples)), samples=samples.tolist()))


def test_a_wrong_answer_is_struck_out_and_claims_nothing(three: tuple[Record, ...]) -> None:
    row = cells(*three)[2]
    assert (row["p50 ms"], row["status"], row["rel. L2"]) == ("~~1.230~~", "failed", "1.2e+00")
    assert row["speedup vs baseline"] == "–"
    lie = build("compile", 2.5, parity={"reference": "x", "rel_l2": 1.0, "passed": False}, speedup=faster(11.5))
    row = cells(build("baseline", 28.7), lie)[1]
    assert (row["p50 ms"], row["status"], row["speedup vs baseline"]) == ("~~2.500~~", "parity failed", "–")


def test_of_a_chaotic_training_the_losses_are_judged() -> None:
    parity = {"reference": "eager", "rel_l2": 1.2, "weights_judged": False, "loss_error": 0.0275, "passed": True}
    row = cells(build("compile", 2.5, parity=parity))[0]
    assert (row["rel. L2"], row["against"]) == ("2.8e-02", "eager's losses")
    assert cells(build("compile", 2.5, parity=parity | {"weights_judged": True}))[0]["rel. L2"] == "1.2e+00"


def test_a_cpu_has_no_clock_of_a_gpu() -> None:
    record = build("baseline", 2.5, metrics=clocks(2.5, device=False), memory={"peak_host_rss": 812 * MIB})
    (row,) = cells(record)
    assert row["peak MiB"] == "812"
    assert "device p50 ms" not in row


def test_cells_without_a_time_or_an_error_have_no_row_and_what_was_not_measured_is_a_dash() -> None:
    skipped = build("cuda_graph", status="skipped", reason="no GPU")
    broken = build("fx", status="failed", reason="broken")
    wrong = build("compile", status="failed", reason="wrong", parity={"reference": "x", "rel_l2": 2, "passed": False})
    rows = cells(build("baseline", 2.5), wrong, skipped, broken)
    assert [row["variant"] for row in rows] == ["baseline", "compile"]
    assert {name for name, text in rows[1].items() if text != "–"} == {
        *("component", "variant", "status", "rel. L2", "against", "parameters", "weights", "dtype")
    }


def test_metrics_of_a_users_own_show_their_numbers() -> None:
    own = {"deadline": {"missed": 3, "budget_ms": 16.67, "samples": [1, 2], "hard": True, "who": "me"}, "score": 0.5}
    record = build("baseline", metrics=clocks(2.5) | {"extra": own})
    found = [list(row.values())[2:] for row in titled(latency_section(run_data(record)))["Other metrics"]]
    assert found == [["deadline", "missed", "3.000"], ["deadline", "budget_ms", "16.67"], ["score", "–", "0.5000"]]


def spreads(*records: Record) -> dict[str, Rows]:
    """Return what is drawn of each component."""
    (chart,) = latency_section(run_data(*records)).charts
    return {view.label: view.figure for view in chart.views if isinstance(view.figure, Rows)}


def test_spreads_stand_around_their_medians_and_a_wrong_one_is_pale(three: tuple[Record, ...]) -> None:
    drawn = spreads(*three)["world_model"]
    first, _, wrong = drawn.rows
    assert first.spread is not None
    assert (first.spread.low, first.spread.p50, first.spread.p95, first.spread.p99, first.spread.high) == (
        *(28.66, 28.7, 28.73, 28.8, 28.9),
    )
    assert first.words == "28.70 ms, p99 28.80"
    assert first.spread.high < drawn.end < 33
    assert (wrong.name, wrong.counts, first.counts) == ("cuda_graph (failed: does not count)", False, True)
    assert drawn.levels == [(1000 / 60, "60 FPS"), (1000 / 120, "120 FPS")], "those of the axis"


def test_the_roofline_is_drawn_where_it_is_known() -> None:
    records = (build("baseline", 5.0, roofline={"roofline_ms": 1.25}), build("compile", 4.0))
    assert [row.spread and row.spread.least for row in spreads(*records)["world_model"].rows] == [1.25, None]


def test_a_call_of_several_frames_has_their_budgets_and_a_training_step_none() -> None:
    (rows,) = spreads(build("baseline", 120.0, frames_per_call=4)).values()
    assert rows.levels == [(4000 / 60, "60 FPS"), (4000 / 120, "120 FPS")]
    (rows,) = spreads(build("baseline", 120.0, training={"log": [], "eager_log": []})).values()
    assert rows.levels == []


def test_a_stalled_call_flattens_none_and_frames_of_a_loop_are_drawn_too() -> None:
    stalled = build("compile", metrics=clocks(2.5, p99=180.0, max=9000.0))
    drawn = spreads(build("baseline", 28.7), stalled, build_loop("cuda_graph"))
    assert list(drawn) == ["world_model", "realtime"]
    assert drawn["world_model"].end < 80
    assert drawn["realtime"].rows[0].words == "9.000 ms, p99 9.100"


def test_of_many_samples_the_lowest_and_the_highest_are_drawn() -> None:
    samples = 5 + 0.01 * np.random.default_rng(2).standard_normal(200_000)
    samples[123_456], samples[7] = 50.0, 0.5
    (rows,) = spreads(sampled(samples)).values()
    spread = rows.rows[0].spread
    assert spread is not None
    assert len(spread.samples) <= 60
    assert {0.5, 50.0} <= set(spread.samples)


def test_another_reference_and_other_dtypes_are_named():
    parity = {"reference": "eager bfloat16", "passed": True, "rel_l2": 0.001}
    other = build("compile", 2.5, parity=parity, dtype="bfloat16", parameter_dtypes={"float32": 8}, cast="autocast")
    rows = cells(build("baseline", 2.5), other)
    assert [row["against"] for row in rows] == ["–", "eager bfloat16"]
    assert "against" not in cells(build("baseline", 2.5))[0]
    mixed = build("baseline", 2.5, dtype="bfloat16", parameter_dtypes={"bfloat16": 8, "float32": 1}, cast="none")
    rows = cells(build("baseline", 2.5), other, mixed)
    assert [row["dtype"] for row in rows] == ["bfloat16", "float32 under autocast bfloat16", "bfloat16 and float32"]
