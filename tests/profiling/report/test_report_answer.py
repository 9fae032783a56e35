"""The answer names the leader, what is the same or undecided and what would tell, and the conditions, with numbers."""

import csv
import io
import json
import re

import pytest
from msgspec.structs import replace
from planted_sweep import Job, plant
from report_records import build, build_loop, clocks, frame_loop, in_turns, rate, rows, run_data, titled

from profiling.compare.cells import compared_cells, read_run
from profiling.history import read_history
from profiling.report.answer import answer_of, answer_section, held_rate, notes_section, status_section
from profiling.report.export import as_csv, as_json
from profiling.report.render import run_report
from profiling.report.result import RunResult
from profiling.report.sweep import load_sweep
from profiling.report.tune import tune_section
from profiling.results.measured import LEAST_FOR


def row_of(*records):
    (row,) = rows(answer_section(run_data(*records)).tables[0])
    return row


def remarks(*records):
    return "; ".join(answer_of("net", records).remarks())


def test_what_could_not_be_explained_of_the_fastest_is_said_in_the_answer():
    failed = replace(build("compile", 2.5), notes=("the roofline failed: no such field", "random weights"))
    assert "the roofline failed: no such field" in remarks(build("baseline", 28.7), failed)
    assert "random weights" not in remarks(build("baseline", 28.7), failed)


def test_what_has_no_speedup_says_why(three):
    compiled, wrong = build("compile", 2.5), build("baseline", 28.7, status="invalid", reason="throttled")
    for group, fastest, said in (
        ((compiled,), "compile", "no speedup is claimed: baseline did not run"),
        ((wrong, compiled), "compile", "no speedup is claimed: baseline invalid"),
        ((wrong, three[2]), "none", "no correct result"),
        ((build("baseline", 2.0), compiled), "baseline", ""),
        ((build("baseline", 2.0),), "baseline", ""),
        ((build("baseline"),), "none", "no latency was measured"),
    ):
        row = row_of(*group)
        assert (row["fastest correct"], row.get("vs baseline", "–"), remarks(*group)) == (fastest, "–", said)


def test_windows_that_are_too_few_and_busy_ones_decide_nothing():
    few = [in_turns(name, ms, windows=3) for name, ms in (("baseline", 2.0), ("fx", 2.5))]
    loops = [build_loop(name, frame_loop(ms, windows_ms=[])) for name, ms in (("fx", 9.0), ("baseline", 12.0))]
    for group, leader, other in ((few, "baseline", "fx"), (loops, "fx (not checked)", "baseline")):
        assert row_of(*group)["fastest correct"] == leader
        assert f"whether {other} is as fast; more time (seconds=) would tell" in remarks(*group)
    busy = in_turns("baseline", 2.58, taken=0.38), in_turns("compile", 2.5)
    said = remarks(*busy)
    assert "undecided: whether baseline is as fast; a quiet machine would tell" in said
    assert said.count("would tell") == 1, "of the baseline it is said once"
    assert "baseline: 38% of the CPU went to other processes" in said
    assert row_of(*busy)["vs baseline"] == "0.64-1.0×", "what the others may have taken is in the interval"


def test_a_speedup_has_the_interval_between_processes_and_a_bound_beside_others():
    for slow, fast, shown in (
        ({}, {}, "10.0× ±0.1%"),
        ({"taken": 0.4}, {}, "≥ 5.99×"),
        ({}, {"taken": 0.4}, "≥ 10.0×"),
        ({"std": 0.15, "freedom": 6.0}, {}, "10× (6.9-14)"),
        ({"taken": 0.95}, {}, "0.50-10×"),
        ({"taken": 0.9995}, {}, "undecided"),
    ):
        records = in_turns("baseline", 25.0, **slow), in_turns("compile", 2.5, **fast)
        assert row_of(*records)["vs baseline"] == shown
        wide = "the interval of vs baseline is wide: baseline varies by 15% (std) between processes"
        assert (wide in remarks(*records)) == ("std" in slow)


def test_a_cell_that_drifts_says_so_and_its_interval_holds_both_ends():
    record = in_turns("baseline", 2.0, drift=1.2)
    assert remarks(record) == "baseline: drifting: 1.83 → 2.19 ms"
    wall = replace(record.metrics.wall_ms, min=1.8, max=2.3)
    record = replace(record, metrics=replace(record.metrics, wall_ms=wall))
    assert row_of(record)["p50 ms"] == "2.0 (1.8-2.3)"


def test_a_rate_is_held_undecided_or_missed():
    for late, groups, n, held in (
        *((0, 0, 400, "≥ 120 FPS"), (0, 0, 200, "undecided"), (12, 12, 400, "below 24 FPS")),
        (12, 1, 400, "undecided"),  # one burst: late calls are not independent
    ):
        rates = [rate(fps, late, groups) for fps in (24, 30, 60, 120)]
        record = build("baseline", metrics=clocks(5.0, n=n) | {"rates": rates})
        assert held_rate(record) == held
        wanted = {200: "24 FPS: undecided: 0 of 200 late; 99 calls more would tell"}
        assert wanted.get(n, "") in remarks(record)


def test_the_legend_names_the_share_that_may_be_late():
    usual, strict = build("baseline", 28.7), replace(build("compile", 2.5), late=0.001)
    for records, said in (((usual,), "at most 1% of"), ((strict,), "at most 0.1% of"), ((usual, strict), "0.1% or 1%")):
        assert said in answer_section(run_data(*records)).legend[0]


def test_a_row_a_component_and_none_for_one_that_was_skipped():
    unchecked = [build("baseline", 2.0, component=name, parity=None) for name in ("a", "b")]
    skipped = build("compile", component="vae", status="skipped", reason="no GPU")
    section = answer_section(run_data(*unchecked, build("baseline", 3.0, component="net"), skipped))
    assert [row["component"] for row in rows(section.tables[0])] == ["a", "b", "net"]
    (line,) = section.lines
    assert line.startswith("a and b: not checked"), "one line for both"


@pytest.mark.parametrize(("n", "percentiles"), [(100, "p90 p95 p99"), (99, "p90 p95"), (19, "p90"), (9, "")])
def test_a_percentile_needs_a_sample_beyond_it(n, percentiles):
    record = build("baseline", metrics=clocks(5.0, n=n, p99=8.2, max=40.0))
    wall = record.metrics.wall_ms
    assert " ".join(name for name in LEAST_FOR if wall.percentile(name) is not None) == percentiles
    timing = titled(answer_section(run_data(record)))["Cells"][0]
    assert timing["p99 ms"] == ("8.200" if n >= 100 else "max 40.00")
    (row,) = csv.DictReader(io.StringIO(as_csv(run_data(record))))
    assert row["p99_ms"] == ("8.2" if n >= 100 else "")


def test_failures_have_their_reason_and_what_was_skipped_is_not_among_them():
    skipped = build("fx", component="a", status="skipped", reason="no CUDA device")
    failed, alike = (build(name, component="a", status="failed", reason="it | raised\nhere") for name in ("b", "c"))
    data = run_data(skipped, failed, alike)
    assert status_section(data).lines == ("a.b and a.c failed: it | raised here",)
    for text in (run_report(data).page(), run_report(data).console()):
        assert "1 cell skipped: fx (no CUDA device)" in text
    assert "| no CUDA device | a.fx" in run_report(data).markdown()


def test_cells_and_notes_say_under_which_conditions_cells_ran():
    replaced = {"kind": "transform", "name": "T", "seconds": 0.1, "notes": ["2 of 2 run without their kernel"]}
    compiled = {"kind": "compiler", "name": "Inductor", "seconds": 0.1, "notes": ["1 graph for 25 blocks"]}
    latency = {"cold": False, "warmup_seconds": 0.1, "settled": False, "gpu_lost_share": 0.05}
    metrics = clocks(2.5) | {"latency": latency}
    metrics["by_call_ms"] = {"first": 2.1, "middle": 2.3, "last": 2.8}
    known = {"prepare": {"seconds": 1.0, "cache_hits": 2}, "energy": {"reason": "the driver has no counter"}}
    record = build("compile", metrics=metrics, notes=["a note"], recipe=[replaced, compiled], **known)
    assert titled(answer_section(run_data(record)))["Cells"][0]["conditions"] == (
        "5% of the GPU went to other processes; after a reset of the state, calls take first 2.10, middle 2.30, last "
        "2.80 ms; the warm-up ended at its limit, after 0.10 s"
    )
    assert notes_section(run_data(record)).lines == (
        "world_model.compile: a note",
        "world_model.compile: 2 of 2 run without their kernel",
        "world_model.compile: no energy: the driver has no counter",
        "world_model.compile: warm start (compiled from a cache); a cold start takes longer to prepare",
        "world_model: random weights; make checkpoints",
    )
    assert notes_section(run_data(in_turns("compile", 2.5, std=0.004))).lines[-1] == (
        "Equal code differs between processes by 0.4% (standard deviation; learned from 3 pairs of processes): "
        "world_model.compile"
    )


def planted():
    """Make a run of 12 cells in three components, of which a cell failed, one was skipped, and others took time."""
    found = []
    for component in ("world_model", "image_decoder", "audio_decoder"):
        named = {"component": component}
        found += [in_turns("baseline", 28.7, taken=0.1, **named), in_turns("compile", 2.5, **named)]
        found += [in_turns("cuda_graph", 2.5, **named), in_turns("compile+cuda_graph", 2.6, std=0.05, **named)]
    found[7] = build("compile+cuda_graph", component="image_decoder", status="failed", reason="out of memory")
    found[11] = build("compile+cuda_graph", component="audio_decoder", status="skipped", reason="no CUDA device")
    return found


def test_a_run_of_12_cells_prints_at_most_45_lines_each_within_100_columns():
    data = run_data(*planted())
    lines = run_report(data).console().splitlines()
    assert len(lines) <= 45, "\n".join(lines)
    assert max(map(len, lines)) <= 100
    for component in ("world_model", "image_decoder", "audio_decoder"):
        assert len([line for line in lines if line.startswith(f"{component} ")]) in (4, 5), "a line a row"
    assert len(run_report(data).console("report").splitlines()) > 2 * len(lines)


def test_the_same_record_gives_the_same_verdict_everywhere(save):
    data, result = run_data(*planted()), RunResult(save(planted()))
    cells = {(each["component"], each["variant"]): each for each in csv.DictReader(io.StringIO(as_csv(data)))}
    texts = {"console": run_report(data).console(), "report.md": run_report(data).markdown(), "python": str(result)}
    page = run_report(data).page().replace("\n", " ").replace("</tr>", "\n")
    texts["page"] = page.replace("<wbr>", "").replace("\u00a0", " ")
    texts = {name: re.sub(r"<[^>]*>|[\\|]", " ", text) for name, text in texts.items()}
    for answer in json.loads(as_json(data))["answer"]:
        component, best = answer["component"], result.best(answer["component"])
        assert best.variant == answer["fastest_correct"]
        cell = cells[component, best.variant]
        assert {"speedup_low", "p50_high_ms", "vs_baseline", "holds"} <= cell.keys() & answer.keys()
        assert all(cell[name] == str(answer[name]) for name in cell.keys() & answer.keys() if cell[name])
        vs_baseline = f"≥ {answer['speedup_low']:.1f}×"
        for name, text in texts.items():
            words = (component, best.variant, vs_baseline, answer["holds"])
            assert any(all(word in line for word in words) for line in text.splitlines()), name
            for remark in answer["remarks"]:
                assert remark in " ".join(text.split()), (name, remark)


def test_every_target_names_the_same_leader_with_the_same_answers(tmp_path):
    sweep = plant(tmp_path / "sweep", Job("seed=0", planted()), Job("seed=1"))
    run, history = sweep / "0", read_history(sweep / "0")
    searched = tune_section(run_data(*(replace(record, target="tune") for record in planted()))).lines
    for answer in load_sweep(sweep).answers:
        own = answer_of(answer.component, [each for each in planted() if each.component == answer.component])
        assert (answer.ranking.leader, answer.ranking.answers) == (own.ranking.leader, own.ranking.answers)
        assert (answer.holds, answer.speedup) == (own.holds, own.speedup)
        assert next(answer.remarks()) == next(own.remarks())
        (point,) = (series[-1] for title, series in history.items() if title.startswith(f"{answer.component} "))
        assert point.variant == own.ranking.leader
        told = "; ".join(f"{word}: {', '.join(own.ranking.named(word))}" for word in ("same", "undecided"))
        assert (point.not_slower or "") in told
        (line,) = (line for line in searched if line.startswith(f"{answer.component}: the winner is "))
        assert line.split()[4] == own.ranking.leader
    loaded = read_run(run)
    assert {cell.verdict for cell in compared_cells(loaded, loaded)} == {"same", "not compared"}
