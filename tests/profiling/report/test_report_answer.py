"""The answer table claims what measurement supports, says what is missing, and names one next step."""

from __future__ import annotations

from typing import Any

import pytest
from report_records import build, build_loop, clocks, faster, frame_loop, rows, run_data, titled

from profiling.report.answer import answer_of, answer_section, held_rate, notes_section, status_section
from profiling.report.latency import latency_section
from profiling.results.record import Record


def answer(*records: Record) -> dict[str, str]:
    (table,) = answer_section(run_data(*records)).tables
    (row,) = rows(table)
    return row


def remarks(*records: Record) -> str:
    return "; ".join(answer_of("net", records).remarks)


def disturbed(record: Record, times: int = 20, **latency: Any) -> Record:
    conditions = {"cold": False, "warmup_iterations": 1, "warmup_seconds": 0.1, "settled": True, "descheduled": times}
    wall = clocks(record.wall_p50 or 1.0)["wall_ms"]
    metrics = {"wall_ms": wall, "latency": conditions | latency}
    return build(record.variant, record.wall_p50, metrics=metrics, speedup=faster(11.5))


def test_the_fastest_correct_variant_with_its_speedup(three: tuple[Record, ...]) -> None:
    assert answer(*three) == {
        "component": "world_model",
        "fastest correct": "compile",
        "p50 ms": "2.500 [2.490, 2.510]",
        "speedup vs baseline": "11.5× [11.4, 11.6]",
        "holds": "120 FPS",
    }


def test_an_invalid_cell_is_never_fastest() -> None:
    bad = build("compile", 0.1, status="invalid", reason="recompiled in the timed window")
    assert answer(build("baseline", 28.7), bad)["fastest correct"] == "baseline"


def test_overlapping_intervals_are_a_tie() -> None:
    graph, other = (build(name, p50, speedup=faster(11.5)) for name, p50 in (("graph", 2.495), ("compile", 2.5)))
    assert "graph and compile are tied" in remarks(build("baseline", 28.7), graph, other)
    assert "tied" not in remarks(build("baseline", 28.7), graph, build("compile", 2.6))
    few = build("compile", 2.6, metrics=clocks(2.6, half=None))
    assert "cannot be ranked: too few samples" in remarks(build("baseline", 28.7), graph, few)


def test_a_disturbed_machine_ranks_nothing_that_it_could_have_turned_round() -> None:
    baseline, compiled = build("baseline", 2.52), disturbed(build("compile", 2.5))
    row = answer(baseline, compiled)
    assert row["fastest correct"] == "compile (not ranked)"
    assert "speedup vs baseline" not in row
    said = remarks(baseline, compiled)
    assert said.startswith("disturbed by other processes (compile): no ranking is claimed")
    notes = notes_section(run_data(baseline, compiled)).lines
    assert notes == ("world_model.compile: disturbed by other processes: interrupted 20 times in 200 calls",)
    assert titled(latency_section(run_data(baseline, compiled)))["Variants"][1]["speedup vs baseline"] == "–"
    # Where nearly every call of the one was faster than any call of the other, no disturbance explains it.
    assert answer(build("baseline", 28.7), compiled)["speedup vs baseline"] == "11.5× [11.4, 11.6]"
    assert answer(baseline, disturbed(build("compile", 2.5), 19))["fastest correct"] == "compile"


def test_time_spent_waiting_for_a_cpu_is_said() -> None:
    record = disturbed(build("compile", 2.5), run_queue_wait_ms=120.0)
    (line,) = notes_section(run_data(record)).lines
    assert (
        line == "world_model.compile: disturbed by other processes: its threads waited 0.12 s in total "
        "for a CPU while 0.50 s of calls were timed"
    )


def test_no_speedup_without_a_correct_baseline() -> None:
    compiled = build("compile", 2.5, speedup=faster(11.5))
    wrong = build("baseline", 28.7, status="invalid", reason="throttled")
    assert "speedup vs baseline" not in answer(compiled)
    assert "speedup vs baseline" not in answer(wrong, compiled)
    assert "no speedup is claimed: baseline did not run" in remarks(compiled)
    assert "no speedup is claimed: baseline invalid" in remarks(wrong, compiled)
    lie = build("compile", 2.5, parity={"reference": "x", "passed": False}, speedup=faster(11.5))
    assert answer(build("baseline", 28.7), lie)["fastest correct"] == "baseline"


def test_the_baseline_may_win_and_one_alone_is_said() -> None:
    slower = build("compile", 2.5, speedup=faster(0.8))
    assert "no variant is faster than the baseline" in remarks(build("baseline", 2.0), slower)
    assert remarks(build("baseline", 2.0)) == "only the baseline was timed"


def test_nothing_correct_is_said(three: tuple[Record, ...]) -> None:
    wrong = build("baseline", 2.0, status="invalid", reason="throttled")
    assert answer(wrong, three[2])["fastest correct"] == "none"
    assert remarks(wrong, three[2]) == "no variant is correct: baseline (invalid) and cuda_graph (failed)"
    assert remarks(build("baseline")) == "no latency was measured"
    assert "not compared with a reference" in remarks(build("baseline", 28.7, parity=None))


def test_a_mean_that_ranks_otherwise_is_told() -> None:
    tailed = build("compile", 2.5, metrics=clocks(2.5, mean=9.0), speedup=faster(11.5))
    assert "by the mean baseline is faster" in remarks(build("baseline", 3.0), tailed)


@pytest.mark.parametrize(
    ("p99", "frames", "held"),
    [
        (8.3, 1, "120 FPS"),
        (16.6, 1, "60 FPS"),
        (16.7, 1, "30 FPS"),
        (50.0, 1, "below 24 FPS"),
        (50.0, 120, "real time"),
    ],
)
def test_the_highest_frame_rate_whose_budget_the_p99_fits(p99: float, frames: int, held: str) -> None:
    assert held_rate(build("baseline", metrics=clocks(5.0, p99=p99), frames_per_call=frames)) == held


def test_a_loop_is_judged_by_its_deadlines_and_a_training_step_by_none() -> None:
    assert held_rate(build_loop("cuda_graph")) == "60 FPS"
    none = frame_loop()
    for deadline in none["deadlines"].values():
        deadline["holds"] = False
    assert held_rate(build_loop("cuda_graph", none)) == "below 24 FPS"
    assert held_rate(build("baseline", 5.0, training={"log": []})) is None


def test_a_row_a_component_and_none_for_one_that_was_skipped() -> None:
    skipped = build("compile", component="vae", status="skipped", reason="no GPU")
    data = run_data(build("baseline", 2.0), build("baseline", 3.0, component="net"), skipped)
    (table,) = answer_section(data).tables
    assert [row["component"] for row in rows(table)] == ["world_model", "net"]
    assert answer_section(run_data()).lines == ("No cell has ended yet.",)


def test_skipped_cells_are_one_line_and_each_failure_has_its_reason() -> None:
    cells = [("a", "cuda_graph"), ("a", "fx"), ("b", "cuda_graph"), ("b", "fx")]
    skipped = [build(v, component=c, status="skipped", reason="no CUDA device") for c, v in cells]
    alone = build("other", component="a", status="skipped", reason="no compiler")
    failed = build("broken", component="a", status="failed", reason="it | raised\nhere")
    assert status_section(run_data(*skipped, failed, alone)).lines == (
        "a.broken failed: it | raised here",
        "cuda_graph, fx: skipped, no CUDA device",
        "a.other: skipped, no compiler",
    )


def test_notes_say_under_which_conditions_cells_ran() -> None:
    latency = {"cold": False, "warmup_iterations": 1, "warmup_seconds": 0.1, "settled": False}
    metrics = clocks(2.5) | {"latency": latency}
    record = build("compile", metrics=metrics, prepare={"seconds": 1.0, "cache_hits": 2}, notes=["a note"])
    lines = notes_section(run_data(record)).lines
    assert lines[0] == "world_model.compile: a note"
    assert any("had not settled" in line for line in lines)
    assert any("warm start" in line for line in lines)


def test_what_could_not_be_read_is_a_note() -> None:
    record = build("compile", 2.5, prepare={"seconds": "many"})
    lines = notes_section(run_data(record, build("baseline", 3.0))).lines
    assert any(line.startswith("world_model.compile: not read: prepare.seconds") for line in lines)
