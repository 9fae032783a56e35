"""How far calls are above their roofline, what is next, and whether predictions came true."""

import pytest
from report_records import build, build_loop, clocks, frame_loop, run_data, titled

from profiling.report.answer import answer_section, notes_section
from profiling.report.heading import ceilings_line
from profiling.report.roofline import FINDINGS, REASONS, next_step, roofline_section

PREDICTED = "Predicted and measured medians"
CAPTURE = {"words": "cuda_graph", "advice": "capture it (cuda_graph)", "variant": "cuda_graph", "wall_ms": 2.4}
BATCH = [{"words": "batch calls", "advice": "process several inputs a call"}]
#: Of calls beside other processes.
BUSY = {"cold": False, "warmup_seconds": 0.1, "settled": True, "cpu_lost_share": 0.6}


def roofline(*steps, **changes):
    return {
        **{"memory_ms": 0.5, "compute_ms": 0.25, "roofline_ms": 0.5, "over_roofline": 57.4, "idle_share": 0.94},
        **{"bound": "launch overhead", "evidence": ["GPU idle 94%"], "steps": steps or [CAPTURE]},
        **changes,
    }


EAGER = build("baseline", 28.7, roofline=roofline())
GRAPH = build("cuda_graph", 2.52, roofline=roofline(*BATCH, bound="underfilled GPU", over_roofline=5.0))


def short(record, *others):
    return next_step(record, [record, *others])[0]


def tables(*records):
    return titled(roofline_section(run_data(*records)))


@pytest.mark.parametrize(
    ("device", "conditions", "said"),
    [
        ("cpu", BUSY, "threads=1"),
        ("cpu", BUSY | {"pinned_cores": [1]}, "cuda_graph: ~2.4 ms"),
        ("cpu", BUSY | {"cpu_lost_share": 0.001}, "cuda_graph: ~2.4 ms"),
        ("cuda:0", BUSY, "cuda_graph: ~2.4 ms"),
    ],
)
def test_the_way_out_beside_other_processes_is_to_pin(device, conditions, said):
    metrics = clocks(28.7) | {"latency": conditions}
    for known in (roofline(), None):
        record = build("baseline", 28.7, device=device, roofline=known, metrics=metrics)
        assert short(record) == (said if known or said == "threads=1" else "")


def test_the_next_step_stands_in_the_answer_a_long_one_below_it():
    long = roofline({"words": "a step that no cell of the table has room for", "advice": "x"})
    for records, said in (((EAGER,), "cuda_graph: ~2.4 ms"), ((EAGER, GRAPH), "batch calls")):
        assert titled(answer_section(run_data(*records)))["Answer"][0]["next"] == said
    section = answer_section(run_data(build("compile", 2.0, roofline=long, parity=None)))
    assert titled(section)["Answer"][0]["next"] == "see below"
    assert section.lines[-1].endswith("next: x.")
    assert next_step(EAGER, [EAGER])[1] == "capture it (cuda_graph), expected 2.4 ms"
    assert next_step(EAGER, [EAGER, build("cuda_graph", 30.0)]) == ("", ""), "measured slower"


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ([], "compile: ~20 ms"),
        ([build("compile", 30.0)], "sum reductions: ~21 ms"),
        ([build("compile", 25.0)], "compile: 25 ms"),
        ([build("compile", 25.0, status="failed", reason="parity")], "sum reductions: ~21 ms"),
        ([build("compile", status="skipped", reason="no C++ compiler")], "sum reductions: ~21 ms"),
        # Others may be why, but 30 ms is what was measured.
        ([build("compile", 30.0, metrics=clocks(30.0) | {"latency": BUSY})], "sum reductions: ~21 ms"),
        ([build("compile_2", 30.0)], "compile: ~20 ms"),  # another name that begins alike
        ([build("compile@dynamic=true", 30.0)], "sum reductions: ~21 ms"),
        ([build("compile@dynamic=true", 30.0), build("compile@dynamic=false", 3.0)], "compile: 3.0 ms"),
    ],
)
def test_the_best_step_that_the_run_has_not_refuted_is_next(other, said):
    fuse = {"words": "compile", "advice": "fuse operators (compile)", "variant": "compile", "wall_ms": 20.0}
    split = {"words": "sum reductions", "advice": "sum reductions: split them", "wall_ms": 21.0}
    eager = build("baseline", 28.7, roofline=roofline(fuse, split))
    assert short(eager, *other) == said
    (why,) = tables(eager, *other)[REASONS]
    assert ("compile" in why["next"]) == said.startswith("compile"), "the table names no other step"


def test_a_prediction_says_whose_it_is_and_wrong_cells_fulfil_none():
    again = build("swapped", 27.0, roofline=roofline(CAPTURE | {"wall_ms": 2.5}))
    wrong = build("cuda_graph", 2.5, status="failed", reason="parity", roofline=roofline())
    found = tables(EAGER, again, wrong)
    assert [row["variant"] for row in found[PREDICTED]] == ["baseline", "swapped", "cuda_graph"]
    assert "measured ms" not in found[PREDICTED][0], "a column in which nothing was measured is left out"
    assert found[REASONS][2]["× roofline"] == "~~57.4×~~", "a wrong cell is not judged"
    (row,) = tables(build("baseline", 28.7, roofline=roofline(CAPTURE | {"wall_ms": 0.0})), GRAPH)[PREDICTED]
    assert (row["predicted ms"], row["measured ms"]) == ("0.000", "2.520")
    assert "measured / predicted" not in row, "of a predicted time of nothing"
    assert not roofline_section(run_data(build("baseline", 28.7)))


FRAME = {
    **{"memory_ms": 1.5, "compute_ms": 2.25, "roofline_ms": 2.5, "over_roofline": 4.64},
    "parts": {
        "world": {"memory_ms": 0.5, "compute_ms": 0.25, "roofline_ms": 0.5},
        "picture": {"memory_ms": 1.0, "compute_ms": 2.0, "roofline_ms": 2.0},
    },
}


def loop(variant, section=None, **changes):
    """Return the record of a loop; `changes` replace fields of the roofline of its longest stage."""
    world = FRAME["parts"]["world"] | changes
    return build_loop(variant, section, roofline=FRAME | {"parts": FRAME["parts"] | {"world": world}})


def test_a_frame_stage_by_stage_and_the_longest_is_named():
    section = frame_loop()
    for part in section["budget"]["parts"].values():
        part.pop("device_ms", None)
    rows = tables(loop("device"), loop("host", section))[REASONS]
    assert [(row["stage"], row["roofline ms"], row["× roofline"]) for row in rows[:4]] == [
        *(("world", "0.5000", "8.00×"), ("picture", "2.000", "1.50×"), ("frame", "2.500", "4.64×")),
        ("world", "0.5000", "1.00×"),
    ]
    told = loop("x", bound="memory bandwidth", evidence=["90% of wall"], steps=BATCH)
    assert next_step(told, [told]) == ("world: batch calls", "world: process several inputs a call")


def test_what_a_stage_should_take_and_took_and_its_findings():
    reductions = {
        **{"kind": "reduction", "what": "group norm reductions", "ms": 1.2, "saves_ms": 1.1, "share": 0.56},
        **{"count": 6.0, "gbps": 300.0, "of_ceiling": 0.07, "blocks": 32.0, "kernels": ["RowwiseMoments"]},
    }
    told = loop("baseline", bound="launch overhead", steps=[CAPTURE | {"wall_ms": 3.2}], findings=[reductions])
    found = tables(told, loop("cuda_graph"))
    assert [list(row.values()) for row in found[PREDICTED]] == [
        ["realtime", "baseline", "world", "cuda_graph", "3.200", "4.000", "1.25×"]
    ]
    assert [(row["stage"], row["kernels"]) for row in found[FINDINGS]] == [("world", "group norm reductions")]


def test_ceilings_that_are_too_low_or_absent_say_why():
    ceilings = {
        **{"copy_bytes_per_s": 4.02e12, "read_bytes_per_s": 4.41e12, "matmul_flops_per_s": 6.9e14, "dtype": "bfloat16"},
        **{"bandwidth": [[1024, 4.0e12]], "launch_us": 4.6, "seconds": 1.0, "lost_share": 0.47, "disturbed": True},
    }
    busy = notes_section(run_data(environment={"ceilings": ceilings}))
    assert "too low: other processes took 47% of the CPU time" in busy.lines[0]
    failed = run_data(environment={"ceilings_reason": "not measured: out of memory"})
    assert notes_section(failed).lines == ("No ceilings: not measured: out of memory",)
    assert ceilings_line(failed.environment) == ""
