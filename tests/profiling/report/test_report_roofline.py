"""How far calls are above their roofline, what is next, and predictions; no advice is one that the run refutes."""

import random
import re

import pytest
from report_records import build, build_loop, clocks, frame_loop, run_data, titled

from profiling.report.answer import answer_section, notes_section
from profiling.report.heading import ceilings_line
from profiling.report.roofline import REASONS, deciding, judged_calls, next_step, roofline_section, stage_ms
from profiling.report.run_data import load_run
from profiling.results.verdicts import by_component

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


def test_the_way_out_beside_other_processes_is_to_pin():
    def said(device, **conditions):
        given = {"device": device, "metrics": clocks(28.7) | {"latency": BUSY | conditions}}
        return [short(build("baseline", 28.7, roofline=known, **given)) for known in (roofline(), None)]

    assert said("cpu") == ["threads=1"] * 2
    for others in (said("cpu", pinned_cores=[1]), said("cpu", cpu_lost_share=0.001), said("cuda:0")):
        assert others == ["cuda_graph: ~2.4 ms", ""]


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


def test_a_step_is_added_to_the_recipe_that_it_is_proposed_for():
    fuse = {"words": "compile+cuda_graph", "advice": "fuse operators (compile+cuda_graph)", "wall_ms": 2.0}
    tune = {"words": "max_autotune", "advice": "tune GEMMs (compile+max_autotune+cuda_graph)"}
    given = [each | {"variant": each["advice"].partition("(")[2][:-1]} for each in (fuse, tune)]
    last = build("channels_last+cuda_graph", 3.0, roofline=roofline(*given))
    plain = build("compile+cuda_graph", 9.0), build("compile+max_autotune+cuda_graph", 8.0)  # without channels_last
    words = next_step(last, [last, *plain])
    assert words == (
        "channels_last+compile+cuda_graph: ~2.0 ms",
        "fuse operators (channels_last+compile+cuda_graph), expected 2.0 ms",
    )
    slower = build("channels_last+compile+cuda_graph", 3.5)
    tuned = "tune GEMMs (channels_last+compile+max_autotune+cuda_graph)"
    assert next_step(last, [last, slower, *plain]) == ("max_autotune", tuned)
    regional = build(
        "regional+cuda_graph",
        3.0,
        roofline=roofline(given[1]),
        recipe=[{"kind": "compiler", "name": "Inductor", "seconds": 1.0}],
    )
    assert next_step(regional, [regional])[1] == "tune GEMMs (regional+max_autotune+cuda_graph)"


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
        "world": {"memory_ms": 0.5, "compute_ms": 0.25, "roofline_ms": 0.5, "over_roofline": 8.0},
        "picture": {"memory_ms": 1.0, "compute_ms": 2.0, "roofline_ms": 2.0, "over_roofline": 1.5},
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
    assert [(row["stage"], row["roofline ms"], row["measured ms"], row["× roofline"]) for row in rows[:3]] == [
        *(("world", "0.5000", "4.000", "8.00×"), ("picture", "2.000", "3.000", "1.50×")),
        ("frame", "2.500", "9.000", "4.64×"),
    ]
    assert [row["measured ms"] for row in rows[3:5]] == ["0.5000", "0.2500"]
    told = loop("x", bound="memory bandwidth", evidence=["90% of wall"], steps=BATCH)
    assert next_step(told, [told]) == ("world: batch calls", "world: process several inputs a call")


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


VARIANTS = ("baseline", "compile", "cuda_graph", "compile+cuda_graph", "compile+max_autotune+cuda_graph", "mine")


def refuted(record, stage, group):
    """Yield the variants that may not be advised for a call of `record`: its own, wrong ones, and slower ones."""
    yield record.variant
    mine = stage_ms(record, stage)
    for other in group:
        theirs = stage_ms(other, stage)
        if not other.is_correct or (mine is not None and theirs is not None and theirs >= mine):
            yield other.variant


def names(text, variant):
    return re.search(rf"(?<![\w+]){re.escape(variant)}(?![\w+])", text) is not None


def check(data):
    """Check every place in which a report advises something; return how often it did."""
    advised = 0
    groups = by_component(data.records)
    for record in data.records:
        group, call = groups[record.component], deciding(record)
        short, long = next_step(record, group) if call is not None else ("", "")
        advised += bool(short)
        for variant in refuted(record, call and call.stage, group) if short else ():
            assert not names(f"{short}; {long}", variant), (record.cell, variant)
    calls = {(r.component, r.variant, call.stage or "–"): r for r in data.records for call in judged_calls(r)}
    for row in titled(roofline_section(data)).get(REASONS, []):
        stage, said = row.get("stage", "–"), row.get("next", "–")
        if stage == "frame":
            assert said == "–"
            continue
        record = calls[row["component"], row["variant"], stage]
        for variant in refuted(record, None if stage == "–" else stage, groups[record.component]):
            assert not names(said, variant), row
    for row in titled(answer_section(data)).get("Answer", []):
        for other in groups[row["component"]]:
            assert other.is_correct or not names(row.get("next", ""), other.variant), row
    return advised


def test_committed_runs_advise_nothing_that_they_refute(committed):
    assert check(load_run(committed)) >= {"h200_diffusion": 3, "h200_main": 10}.get(committed.name, 0)


def made_up(seed):
    """Make the records of a component, or of a loop of two stages, with random times, states and steps."""
    draw = random.Random(seed)
    looped = seed % 3 == 0
    records = []
    for variant in draw.sample(VARIANTS, draw.randint(1, len(VARIANTS))):
        steps = []
        for place in range(draw.randint(0, 4)):
            target = draw.choice((*VARIANTS, "absent_variant", None))
            step = {"words": "sum reductions", "advice": f"sum reductions: {place}"}
            if target:
                advice = draw.choice((f"fuse operators ({target})", f"capture the call in a CUDA graph ({target})"))
                step = {"words": target, "advice": advice, "variant": target}
            steps.append(step | ({"wall_ms": draw.uniform(0.5, 9)} if draw.random() < 0.7 else {}))
        state = draw.choice(("ok", "ok", "ok", "failed", "invalid", "skipped"))
        part = {"roofline_ms": 0.4, "bound": "GEMM 60%", "evidence": ["x"], "steps": steps}
        changes = {} if state == "ok" else {"status": state, "reason": "planted"}
        if looped:
            section = frame_loop(draw.uniform(5, 12))
            for stage in ("world", "picture"):
                section["budget"]["parts"][stage]["device_ms"] = draw.uniform(0.5, 6)
            parts = {"world": part, "picture": {**part, "steps": steps[::-1]}}
            records.append(build_loop(variant, section, roofline={"roofline_ms": 1.0, "parts": parts}, **changes))
        else:
            timed = None if state == "skipped" else draw.uniform(1, 10)
            records.append(build(variant, timed, roofline=part, **changes))
    return records


def test_made_up_runs_advise_nothing_that_they_refute():
    assert sum(check(run_data(*made_up(seed))) for seed in range(100)) > 50
