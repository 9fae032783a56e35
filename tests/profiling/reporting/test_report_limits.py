from collections.abc import Callable
from pathlib import Path
from typing import Any

from profiling.reporting.heading import environment_lines
from profiling.reporting.html.latency_section import latency_section
from profiling.reporting.html.material import Material
from profiling.reporting.html.realtime_section import realtime_section
from profiling.reporting.limits import bound_lines, limit_tables
from profiling.reporting.realtime_verdict import realtime_verdicts
from profiling.reporting.render import render_console, render_markdown
from profiling.results.records import Record

Make = Callable[..., Record]
SPEEDUP = {"vs": "baseline", "wall": 10.0, "ci95": [9.9, 10.1]}


def limits(**changes: Any) -> dict[str, Any]:
    found = {
        "bytes": {"weights": 4_000_000, "total": 4_200_000},
        "flops": {"matmul": 2_000_000, "total": 2_000_000},
        "memory_ms": 0.5,
        "compute_ms": 0.25,
        "floor_ms": 0.5,
        "achieved_over_floor": 57.4,
        "idle_share": 0.94,
        "device_work": {"kernels": 1234.0, "launches": 1234.0, "busy_ms": 1.7, "median_us": 1.5},
        "bound": "launch-bound",
        "evidence": ["GPU idle 94%", "1234 launches", "1234 kernels"],
        "advice": "94% of wall is launch gaps: capture it (cuda_graph), expect 2.4 ms",
        "predicted": {"variant": "cuda_graph", "wall_ms": 2.4},
    }
    return found | changes


def rows(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]


REPLAYED = limits(bound="latency-bound", advice="fuse them", predicted=None, achieved_over_floor=5.0, idle_share=0.3)


def test_predicted_and_measured(make: Make) -> None:
    records = [make("baseline", 28.7, limits=limits()), make("cuda_graph", 2.52, limits=REPLAYED, speedup=SPEEDUP)]
    floors, judged, predicted = (rows(table) for _, table in limit_tables(records))
    assert floors[2:] == [
        ["world_model", "baseline", "0.5000", "0.5000", "0.2500", "57.4×", "94%", "1234", "1.50", "launch-bound"],
        ["world_model", "cuda_graph", "0.5000", "0.5000", "0.2500", "5.00×", "30%", "1234", "1.50", "latency-bound"],
    ]
    assert predicted[2:] == [["world_model", "cuda_graph", "baseline", "2.400", "2.520", "1.05×"]]
    assert judged[2:] == [
        [
            "world_model",
            "baseline",
            "launch-bound",
            "GPU idle 94%; 1234 launches; 1234 kernels",
            f"{limits()['advice']}",
        ],
        ["world_model", "cuda_graph", "latency-bound", "GPU idle 94%; 1234 launches; 1234 kernels", "fuse them"],
    ]
    eager, replayed = bound_lines(records)
    assert eager == (
        "baseline is launch-bound (GPU idle 94%, 1234 launches), 57.4× its floor of 0.5000 ms: "
        "94% of wall is launch gaps: capture it (cuda_graph), expect 2.4 ms (cuda_graph measured 2.520 ms)"
    )
    assert replayed.startswith("cuda_graph is latency-bound (GPU idle 94%, 1234 launches), 5.00× its floor")


def test_a_prediction_says_whose_it_is(make: Make) -> None:
    """Two cells predict the same variant: each row names its own."""
    again = limits(predicted={"variant": "cuda_graph", "wall_ms": 2.5})
    records = [make("baseline", 28.7, limits=limits()), make("swapped", 27.0, limits=again), make("cuda_graph", 2.52)]
    predicted = rows(limit_tables(records)[2][1])
    assert predicted[0][:3] == ["component", "variant", "predicted by"]
    assert [row[1:3] for row in predicted[2:]] == [["cuda_graph", "baseline"], ["cuda_graph", "swapped"]]


def test_a_predicted_time_of_nothing_costs_its_ratio_and_not_the_report(make: Make) -> None:
    records = [
        make("baseline", 28.7, limits=limits(predicted={"variant": "cuda_graph", "wall_ms": 0.0})),
        make("cuda_graph", 2.5, limits=limits(predicted={"variant": "nobody", "wall_ms": 1.0})),
    ]
    table = rows(limit_tables(records)[2][1])
    assert table[2] == ["world_model", "cuda_graph", "baseline", "0.000", "2.500"]
    assert "measured / predicted" not in table[0]


FRAME = {
    "memory_ms": 1.5,
    "compute_ms": 2.25,
    "floor_ms": 2.5,
    "achieved_over_floor": 4.64,
    "parts": {
        "world": {"memory_ms": 0.5, "compute_ms": 0.25, "floor_ms": 0.5},
        "picture": {"memory_ms": 1.0, "compute_ms": 2.0, "floor_ms": 2.0},
    },
}


def test_a_frame_part_by_part(make: Make, tmp_path: Path) -> None:
    loop = make("cuda_graph", target="realtime", component="realtime", realtime={"frames": 8}, limits=FRAME)
    ((title, table),) = limit_tables([loop])
    assert title == "Floor of a frame on this device, part by part"
    assert rows(table)[2:] == [
        ["realtime", "cuda_graph", "world", "0.5000", "0.5000", "0.2500", "–"],
        ["realtime", "cuda_graph", "picture", "2.000", "1.000", "2.000", "–"],
        ["realtime", "cuda_graph", "frame", "2.500", "1.500", "2.250", "4.64×"],
    ]
    assert not bound_lines([loop]), "nothing says what bounds it"
    assert f"### {title}" in render_markdown([loop], {}, tmp_path)
    page = Material([loop], {}, tmp_path)
    assert [table.title for table in realtime_section(page).tables if "Floor" in table.title] == [title]
    assert not latency_section(page).tables
    both = limit_tables([make("baseline", 28.7, limits=limits()), loop])
    assert ["realtime" in table for _, table in both] == [False, True, False, False]
    wrong = make("cuda_graph", component="realtime", status="failed", reason="parity", limits=FRAME)
    assert "4.64" not in limit_tables([wrong])[0][1]


def test_a_frame_names_the_part_that_takes_longest(
    make_loop: Callable[..., Record], loop: Callable[..., dict[str, Any]]
) -> None:
    record = make_loop("cuda_graph", limits=FRAME)
    (found,) = realtime_verdicts([record])
    assert found.endswith("; 4.64× its floor of 2.500 ms, longest world (4.000 ms, 8.00× its own).")
    assert [row[-1] for row in rows(limit_tables([record])[0][1])[2:]] == ["8.00×", "1.50×", "4.64×"]
    told = {"bound": "memory-bound", "evidence": ["90% of wall by bytes"], "advice": "batch calls"}
    judged = FRAME | {"parts": FRAME["parts"] | {"world": FRAME["parts"]["world"] | told}}
    explained = make_loop("cuda_graph", limits=judged)
    assert realtime_verdicts([explained])[0].endswith("8.00× its own), memory-bound: batch calls.")
    assert rows(limit_tables([explained])[1][1])[2:] == [
        ["realtime, world", "cuda_graph", "memory-bound", "90% of wall by bytes", "batch calls"]
    ]
    section = loop()
    for part in section["budget"]["parts"].values():
        part.pop("device_ms", None)
    assert "longest world (0.5000 ms, 1.00× its own)" in realtime_verdicts([make_loop("x", section, limits=FRAME)])[0]
    assert "floor" not in realtime_verdicts([make_loop("x")])[0]
    wrong = make_loop("x", limits=FRAME, status="failed", reason="parity")
    assert "floor" not in realtime_verdicts([wrong])[0]
    assert "8.00" not in limit_tables([wrong])[0][1]


def test_what_a_part_of_a_frame_should_take_and_took(make_loop: Callable[..., Record], tmp_path: Path) -> None:
    told = {"bound": "launch-bound", "evidence": [], "predicted": {"variant": "cuda_graph", "wall_ms": 3.2}}
    judged = FRAME | {"parts": FRAME["parts"] | {"world": FRAME["parts"]["world"] | told}}
    records = [make_loop("baseline", limits=judged), make_loop("cuda_graph", limits=FRAME)]
    ((_, table),) = [found for found in limit_tables(records) if "predicted" in found[0]]
    assert rows(table)[2:] == [["realtime, world", "cuda_graph", "baseline", "3.200", "4.000", "1.25×"]]
    alone = Material([records[0]], {}, tmp_path)
    assert "measured" not in limit_tables([records[0]])[-1][1]
    told = [table.title for table in realtime_section(alone).tables]
    assert [title for title in told if "part" in title.lower()] == [
        "Floor of a frame on this device, part by part",
        "What bounds each part of a frame, and why",
        "Parts of a frame, predicted and measured, median",
    ]
    assert not latency_section(alone).tables


def test_a_prediction_that_nobody_tried_or_that_came_out_wrong_has_no_measured_side(make: Make) -> None:
    alone = [make("baseline", 28.7, limits=limits())]
    assert "measured" not in limit_tables(alone)[2][1], "a column in which nothing was measured is left out"
    assert "measured" not in "".join(bound_lines(alone))
    wrong = make("cuda_graph", 2.5, status="failed", reason="parity")
    assert "2.500" not in limit_tables([*alone, wrong])[2][1]


def test_without_limits_nothing_is_said(make: Make) -> None:
    records = [make("baseline", 28.7), make("compile", 2.5, speedup=SPEEDUP)]
    assert limit_tables(records) == ()
    assert bound_lines(records) == ()
    unjudged = make("baseline", 28.7, limits={"floor_ms": 1.0, "memory_ms": 1.0, "compute_ms": 0.5})
    assert bound_lines([unjudged]) == ()
    assert len(limit_tables([unjudged])) == 1


def test_a_wrong_cell_is_not_judged(make: Make) -> None:
    wrong = make("baseline", 28.7, status="failed", reason="parity", limits=limits())
    assert bound_lines([wrong]) == ()
    assert "57.4" not in limit_tables([wrong])[0][1]


def test_where_it_stands(make: Make, tmp_path: Path) -> None:
    records = [make("baseline", 28.7, limits=limits())]
    console, page = (render(records, {}, tmp_path) for render in (render_console, render_markdown))
    assert "world_model: baseline is launch-bound" in console
    assert "### Floor of a call on this device" in page
    assert "### Predicted and measured" in page
    assert "Floor of a call" not in console


def test_the_ceilings_stand_in_the_heading() -> None:
    found = {
        "copy_bytes_per_s": 4.02e12,
        "read_bytes_per_s": 4.41e12,
        "matmul_flops_per_s": 6.9e14,
        "conv_flops_per_s": 5.1e14,
        "dtype": "bfloat16",
        "launch_us": 4.6,
        "gap_us": 0.61,
        "replay_us": 9.5,
    }
    (line,) = environment_lines({"ceilings": found})
    assert line == (
        "ceilings: copy 4.02 TB/s · read 4.41 TB/s · products in bfloat16 690 TFLOP/s · convolutions 510 TFLOP/s · "
        "launch 4.60 µs · graph gap 0.610 µs · replay 9.50 µs"
    )
    quiet = {"copy_bytes_per_s": 2.4e10, "launch_us": 0.4, "lost_share": 0.03}
    (cpu,) = environment_lines({"ceilings": quiet})
    assert cpu == "ceilings: copy 24.0 GB/s · launch 0.400 µs"
    (busy,) = environment_lines({"ceilings": quiet | {"lost_share": 0.47, "disturbed": True}})
    assert busy == f"{cpu} · measured while others had 47% of the processor: not to be trusted, nor kept"
    (failed,) = environment_lines({"ceilings_reason": "not measured: out of memory"})
    assert failed == "ceilings: not measured: out of memory"
