"""How far calls are above their roofline, what is next, and whether predictions came true."""

from __future__ import annotations

from typing import Any

import pytest
from report_records import build, build_loop, clocks, frame_loop, rows, run_data, titled

from profiling.report.answer import answer_section, notes_section
from profiling.report.heading import ceilings_line
from profiling.report.roofline import FINDINGS, REASONS, next_step, roofline_section
from profiling.results.record import Record

PREDICTED = "Predicted and measured medians"


CAPTURE = {"words": "cuda_graph", "advice": "capture it (cuda_graph)", "variant": "cuda_graph", "wall_ms": 2.4}


def roofline(**changes: Any) -> dict[str, Any]:
    section = {
        **{"memory_ms": 0.5, "compute_ms": 0.25, "roofline_ms": 0.5, "over_roofline": 57.4, "idle_share": 0.94},
        "device_work": {
            **{"kernels": 1234.0, "launches": 1234.0, "busy_ms": 1.7, "median_us": 1.5},
            **{"short_ms": 1.0, "transfer_ms": 0.0, "waits": 0.0},
        },
        **{"bound": "launch overhead", "evidence": ["GPU idle 94%", "1234 launches", "1234 kernels"]},
        "steps": [CAPTURE],
    }
    return {name: value for name, value in (section | changes).items() if value is not None}


BATCH = [{"words": "batch calls", "advice": "process several inputs a call"}]
REPLAYED = roofline(bound="underfilled GPU", steps=BATCH, over_roofline=5.0, idle_share=0.3)
EAGER = build("baseline", 28.7, roofline=roofline())
GRAPH = build("cuda_graph", 2.52, roofline=REPLAYED)


CONDITIONS = {"cold": False, "warmup_seconds": 0.1, "settled": True, "cpu_lost_share": 0.6}


@pytest.mark.parametrize(
    ("device", "conditions", "short"),
    [
        ("cpu", CONDITIONS, "threads=1"),
        ("cpu", CONDITIONS | {"pinned_cores": [1]}, "cuda_graph: ~2.4 ms"),
        ("cpu", CONDITIONS | {"cpu_lost_share": 0.001}, "cuda_graph: ~2.4 ms"),
        ("cuda:0", CONDITIONS, "cuda_graph: ~2.4 ms"),
    ],
)
def test_the_way_out_beside_other_processes_is_to_pin(device: str, conditions: dict[str, Any], short: str) -> None:
    metrics = clocks(28.7) | {"latency": conditions}
    for known in (roofline(), None):
        record = build("baseline", 28.7, device=device, roofline=known, metrics=metrics)
        assert next_step(record, [record])[0] == (short if known or short == "threads=1" else "")


def test_the_next_step_carries_its_prediction_where_nobody_tried_it() -> None:
    assert next_step(EAGER, [EAGER]) == ("cuda_graph: ~2.4 ms", "capture it (cuda_graph), expected 2.4 ms")
    table, _ = answer_section(run_data(EAGER)).tables
    assert rows(table)[0]["next"] == "cuda_graph: ~2.4 ms"
    table, _ = answer_section(run_data(EAGER, GRAPH)).tables
    assert rows(table)[0]["next"] == "batch calls"


def test_a_long_step_is_printed_below_the_table() -> None:
    steps = [{"words": "a step that no cell of the table has room for", "advice": "x"}]
    long = build("compile", 2.0, roofline=roofline(steps=steps))
    table, _ = answer_section(run_data(long)).tables
    assert rows(table)[0]["next"] == "see below"


def test_a_variant_that_was_measured_slower_is_never_advised() -> None:
    slower = build("cuda_graph", 30.0, roofline=REPLAYED)
    assert next_step(EAGER, [EAGER, slower]) == ("", "")
    disturbed = build("cuda_graph", 30.0, metrics=clocks(30.0) | {"latency": CONDITIONS})
    assert next_step(EAGER, [EAGER, disturbed]) == ("", ""), "others may be why, but 30 ms is what was measured"
    other = build("cuda_graph_2", 30.0)
    assert next_step(EAGER, [EAGER, other])[0] == "cuda_graph: ~2.4 ms", "another name that begins alike"


def test_a_variant_is_advised_where_one_of_its_forms_was_faster() -> None:
    slower, faster = build("cuda_graph@dynamic=true", 30.0), build("cuda_graph@dynamic=false", 3.0)
    assert next_step(EAGER, [EAGER, slower])[0] == ""
    assert next_step(EAGER, [EAGER, slower, faster])[0] == "cuda_graph: 3.0 ms"


STEPS = [
    {"words": "compile", "advice": "fuse operators (compile)", "variant": "compile", "wall_ms": 20.0},
    {"words": "sum reductions", "advice": "sum reductions: split them", "wall_ms": 21.0},
]


@pytest.mark.parametrize(
    ("other", "short"),
    [
        (None, "compile: ~20 ms"),
        ({"median": 30.0}, "sum reductions: ~21 ms"),
        ({"median": 25.0}, "compile: 25 ms"),
        ({"median": 25.0, "status": "failed", "reason": "parity"}, "sum reductions: ~21 ms"),
        ({"median": 25.0, "status": "invalid", "reason": "a recompile"}, "sum reductions: ~21 ms"),
        ({"median": None, "status": "skipped", "reason": "no C++ compiler"}, "sum reductions: ~21 ms"),
    ],
    ids=["untried", "slower", "faster", "failed", "invalid", "cannot run here"],
)
def test_the_best_step_that_the_run_has_not_refuted_is_next(other: dict[str, Any] | None, short: str) -> None:
    eager = build("baseline", 28.7, roofline=roofline(steps=STEPS))
    group = [eager]
    if other is not None:
        median = other.pop("median")
        group.append(build("compile", median, **other) if median else build("compile", **other))
    assert next_step(eager, group)[0] == short
    (why,) = titled(roofline_section(run_data(*group)))[REASONS]
    assert ("compile" in why["next"]) == short.startswith("compile"), "the table names no other step"


FINDING = {
    **{"kind": "reduction", "what": "group norm reductions", "ms": 1.2, "saves_ms": 1.1, "share": 0.56, "count": 6.0},
    **{"gbps": 300.0, "of_ceiling": 0.07, "blocks": 32.0, "kernels": ["RowwiseMomentsCUDAKernel"]},
}


def test_stages_have_findings_of_their_own() -> None:
    part = judged(bound="GEMM 60%", evidence=["60% GEMM"], steps=BATCH, findings=[FINDING])
    picture = {"bound": "compute", "findings": [FINDING | {"what": "convolutions"}]}
    part["parts"]["picture"] = FRAME["parts"]["picture"] | picture
    found = titled(roofline_section(run_data(build_loop("x", roofline=part))))[FINDINGS]
    assert [(row["stage"], row["kernels"]) for row in found] == [
        *(("world", "group norm reductions"), ("picture", "convolutions"))
    ]


def test_a_prediction_says_whose_it_is_and_wrong_cells_fulfil_none() -> None:
    again = build("swapped", 27.0, roofline=roofline(steps=[CAPTURE | {"wall_ms": 2.5}]))
    wrong = build("cuda_graph", 2.5, status="failed", reason="parity")
    found = titled(roofline_section(run_data(EAGER, again, wrong)))[PREDICTED]
    assert [row["variant"] for row in found] == ["baseline", "swapped"]
    assert "measured ms" not in found[0], "a column in which nothing was measured is left out"


def test_a_predicted_time_of_nothing_costs_its_ratio_only() -> None:
    nothing = build("baseline", 28.7, roofline=roofline(steps=[CAPTURE | {"wall_ms": 0.0}]))
    (row,) = titled(roofline_section(run_data(nothing, GRAPH)))[PREDICTED]
    assert (row["predicted ms"], row["measured ms"]) == ("0.000", "2.520")
    assert "measured / predicted" not in row


def test_a_wrong_cell_is_not_judged() -> None:
    wrong = build("baseline", 28.7, status="failed", reason="parity", roofline=roofline())
    assert titled(roofline_section(run_data(wrong)))[REASONS][0]["× roofline"] == "~~57.4×~~"


def test_without_a_roofline_nothing_is_said() -> None:
    assert not roofline_section(run_data(build("baseline", 28.7)))


FRAME = {
    **{"memory_ms": 1.5, "compute_ms": 2.25, "roofline_ms": 2.5, "over_roofline": 4.64},
    "parts": {
        "world": {"memory_ms": 0.5, "compute_ms": 0.25, "roofline_ms": 0.5},
        "picture": {"memory_ms": 1.0, "compute_ms": 2.0, "roofline_ms": 2.0},
    },
}


def judged(**changes: Any) -> dict[str, Any]:
    return FRAME | {"parts": FRAME["parts"] | {"world": FRAME["parts"]["world"] | changes}}


def stage_rows(record: Record) -> list[list[str]]:
    found = titled(roofline_section(run_data(record)))[REASONS]
    return [[row["stage"], row["roofline ms"], row.get("× roofline", "")] for row in found]


def test_a_frame_stage_by_stage_and_the_longest_is_named() -> None:
    record = build_loop("cuda_graph", roofline=FRAME)
    assert stage_rows(record) == [
        *(["world", "0.5000", "8.00×"], ["picture", "2.000", "1.50×"], ["frame", "2.500", "4.64×"])
    ]
    told = build_loop("x", roofline=judged(bound="memory bandwidth", evidence=["90% of wall"], steps=BATCH))
    assert next_step(told, [told]) == ("world: batch calls", "world: process several inputs a call")


def test_a_stage_without_a_device_is_timed_on_the_host() -> None:
    section = frame_loop()
    for part in section["budget"]["parts"].values():
        part.pop("device_ms", None)
    assert stage_rows(build_loop("x", section, roofline=FRAME))[0] == ["world", "0.5000", "1.00×"]


def test_what_a_stage_should_take_and_took() -> None:
    told = judged(bound="launch overhead", steps=[CAPTURE | {"wall_ms": 3.2}])
    loops = build_loop("baseline", roofline=told), build_loop("cuda_graph", roofline=FRAME)
    (row,) = titled(roofline_section(run_data(*loops)))[PREDICTED]
    assert list(row.values()) == ["realtime", "baseline", "world", "cuda_graph", "3.200", "4.000", "1.25×"]


CEILINGS = {
    **{"copy_bytes_per_s": 4.02e12, "read_bytes_per_s": 4.41e12, "matmul_flops_per_s": 6.9e14, "dtype": "bfloat16"},
    **{"conv_flops_per_s": 5.1e14, "launch_us": 4.6, "gap_us": 0.61, "replay_us": 9.5, "seconds": 1.0},
    "bandwidth": [[1024, 4.0e12]],
}


def test_ceilings_that_are_too_low_or_absent_say_why() -> None:
    busy = run_data(environment={"ceilings": CEILINGS | {"lost_share": 0.47, "disturbed": True}})
    assert "too low: other processes took 47% of the CPU time" in notes_section(busy).lines[0]
    failed = run_data(environment={"ceilings_reason": "not measured: out of memory"})
    assert notes_section(failed).lines == ("No ceilings: not measured: out of memory",)
    assert ceilings_line(failed.environment) == ""
