"""The answer names the leader, what is the same or undecided and what would tell, and the conditions, with numbers."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from planted_sweep import Job, plant
from report_records import build, build_loop, clocks, faster, frame_loop, in_turns, rate, rows, run_data, titled

from profiling.compare.cells import judged, matched_cells, read_run
from profiling.history import read_history
from profiling.report.answer import answer_of, answer_section, held_rate, notes_section, status_section
from profiling.report.export import as_csv, as_json
from profiling.report.render import render_console, render_html, render_markdown
from profiling.report.result import RunResult
from profiling.report.sweep import load_sweep
from profiling.report.tune import tune_section
from profiling.results.measured import LEAST_FOR
from profiling.results.record import Record

#: Conditions of a timed window in which nothing else happened.
QUIET = {"cold": False, "warmup_seconds": 0.1, "settled": True}
Save = Callable[[Sequence[Record]], Path]


def row_of(*records: Record) -> dict[str, str]:
    (row,) = rows(answer_section(run_data(*records)).tables[0])
    return row


def remarks(*records: Record) -> str:
    return "; ".join(answer_of("net", records).remarks)


def test_what_could_not_be_explained_of_the_fastest_is_said_in_the_answer() -> None:
    failed = replace(build("compile", 2.5), notes=("the roofline failed: no such field", "random weights"))
    assert "the roofline failed: no such field" in remarks(build("baseline", 28.7), failed)
    assert "random weights" not in remarks(build("baseline", 28.7), failed)


def test_the_fastest_correct_variant_with_its_speedup(three: tuple[Record, ...]) -> None:
    bad = build("compile", 0.1, status="invalid", reason="recompiled in the timed window")
    lie = build("lie", 0.2, parity={"reference": "x", "passed": False})
    assert row_of(*three, bad, lie) == {
        **{"component": "world_model", "fastest correct": "compile", "p50 ms": "2.500 ±0.1%"},
        **{"vs baseline": "11.5× ±2.6%", "holds": "≥ 120 FPS"},
    }


def test_what_has_no_speedup_says_why(three: tuple[Record, ...]) -> None:
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


@pytest.mark.parametrize(
    ("ratio", "noise", "std", "answer", "wants"),
    [
        (1.002, 1e-3, 2e-4, "same", ""),
        (1.03, 1e-3, 2e-4, "slower", ""),
        (1.03, 1e-3, 0.05, "undecided", r"(over )?\d+ times as many processes would tell"),
        (1.03, 0.2, 2e-4, "undecided", r"(over )?\d+ times the time \(seconds=\) would tell"),
    ],
)
def test_which_take_the_same_time_and_which_may_be_as_fast(
    ratio: float, noise: float, std: float, answer: str, wants: str
) -> None:
    found = answer_of(
        "net",
        (
            in_turns("baseline", 28.7, std=std),
            in_turns("graph", 2.5, noise=noise, std=std),
            in_turns("compile", 2.5 * ratio, noise=noise, std=std),
        ),
    )
    assert found.ranking is not None
    assert (found.ranking.leader, found.ranking.answers["compile"]) == ("graph", answer)
    assert (found.same, found.undecided) == (["compile"] * (answer == "same"), ["compile"] * (answer == "undecided"))
    said = "; ".join(found.remarks)
    assert ("same within 1%: compile" in said) == (answer == "same")
    undecided = re.search(f"undecided: whether compile (?:is|are) as fast; {wants}", said)
    assert (undecided is not None) == (answer == "undecided"), said


def test_windows_that_are_too_few_and_busy_ones_decide_nothing() -> None:
    few = [in_turns(name, ms, windows=3) for name, ms in (("baseline", 2.0), ("fx", 2.5))]
    loops = [build_loop(name, frame_loop(ms, windows_ms=[])) for name, ms in (("fx", 9.0), ("baseline", 12.0))]
    for group, leader, other in ((few, "baseline", "fx"), (loops, "fx", "baseline")):
        assert row_of(*group)["fastest correct"] == leader
        assert f"whether {other} is as fast; more time (seconds=) would tell" in remarks(*group)
    busy = in_turns("baseline", 2.58, taken=0.38), in_turns("compile", 2.5)
    said = remarks(*busy)
    assert "undecided: whether baseline is as fast; a quiet machine would tell" in said
    assert said.count("would tell") == 1, "of the baseline it is said once"
    assert "baseline: 38% of the CPU went to other processes" in said
    assert row_of(*busy)["vs baseline"] == "1.0× (0.64-1.0)", "what the others may have taken is in the interval"


@pytest.mark.parametrize(
    ("slow", "fast", "shown"),
    [
        ({}, {}, "10.0× ±0.1%"),
        ({"taken": 0.4}, {}, "≥ 6.00×"),
        ({}, {"taken": 0.4}, "≥ 10.0×"),
        ({"std": 0.15, "freedom": 6.0}, {}, "10× (6.9-14)"),
        ({"taken": 0.95}, {}, "10× (0.50-10)"),
        ({"taken": 0.9995}, {}, "undecided"),
    ],
)
def test_a_speedup_has_the_interval_between_processes_and_a_bound_beside_others(
    slow: dict[str, Any], fast: dict[str, Any], shown: str
) -> None:
    records = in_turns("baseline", 25.0, **slow), in_turns("compile", 2.5, **fast)
    assert row_of(*records)["vs baseline"] == shown
    wide = "baseline differs by 15% between processes (standard deviation), which widens the ratio"
    assert (wide in remarks(*records)) == ("std" in slow)


def test_a_cell_that_drifts_says_so_and_its_interval_holds_both_ends() -> None:
    record = in_turns("baseline", 2.0, drift=1.2)
    assert remarks(record) == "baseline: drifting: 1.83 → 2.19 ms"
    wall = replace(record.metrics.wall_ms, min=1.8, max=2.3)
    record = replace(record, metrics=replace(record.metrics, wall_ms=wall))
    assert row_of(record)["p50 ms"] == "2.0 (1.8-2.3)"


@pytest.mark.parametrize(
    ("late", "groups", "n", "taken", "held"),
    [
        (0, 0, 400, 0.0, "≥ 120 FPS"),
        (0, 0, 200, 0.0, "undecided"),
        (12, 12, 400, 0.0, "below 24 FPS"),
        (12, 1, 400, 0.0, "undecided"),  # one burst: late calls are not independent
        (12, 12, 400, 0.8, "undecided"),  # others may have made them late
    ],
)
def test_a_rate_is_held_undecided_or_missed(late: int, groups: int, n: int, taken: float, held: str) -> None:
    rates = [rate(fps, late, groups) for fps in (24, 30, 60, 120)]
    conditions = QUIET | {"cpu_lost_share": taken}
    record = build("baseline", metrics=clocks(5.0, n=n) | {"rates": rates, "latency": conditions})
    assert held_rate(record) == held
    wanted = {200: "24 FPS: undecided: 0 of 200 late; 99 calls more would tell"}
    assert wanted.get(n, "") in remarks(record)


def test_a_loop_is_judged_by_its_deadlines_and_a_training_step_by_none() -> None:
    assert held_rate(build_loop("cuda_graph")) == "60 FPS"
    assert held_rate(build("baseline", 5.0, training={"log": []})) is None
    assert held_rate(build("baseline", 40.0)) == "24 FPS"


def test_a_row_a_component_and_none_for_one_that_was_skipped() -> None:
    unchecked = [build("baseline", 2.0, component=name, parity=None) for name in ("a", "b")]
    skipped = build("compile", component="vae", status="skipped", reason="no GPU")
    section = answer_section(run_data(*unchecked, build("baseline", 3.0, component="net"), skipped))
    assert [row["component"] for row in rows(section.tables[0])] == ["a", "b", "net"]
    (line,) = section.lines
    assert line.startswith("a and b: not checked"), "one line for both"
    assert answer_section(run_data()).lines == ("No cell has ended yet.",)


def test_nothing_pays_where_no_speedup_is_claimed() -> None:
    def pays(*records: Record) -> str | None:
        return titled(answer_section(run_data(*records)))["Cells"][1].get("pays after calls")

    paying = {"speedup": faster(2.5, break_even_calls=3334)}
    assert pays(in_turns("baseline", 5.0), in_turns("compile", 2.0, **paying)) == "3334"
    assert pays(in_turns("baseline", 5.0, taken=0.6), in_turns("compile", 4.9, **paying)) is None


@pytest.mark.parametrize(("n", "percentiles"), [(100, "p90 p95 p99"), (99, "p90 p95"), (19, "p90"), (9, "")])
def test_a_percentile_needs_a_sample_beyond_it(n: int, percentiles: str) -> None:
    record = build("baseline", metrics=clocks(5.0, n=n, p99=8.2, max=40.0))
    wall = record.metrics.wall_ms
    assert wall is not None
    assert " ".join(name for name in LEAST_FOR if wall.percentile(name) is not None) == percentiles
    timing = titled(answer_section(run_data(record)))["Cells"][0]
    assert timing["p99 ms"] == ("8.200" if n >= 100 else "max 40.00")
    (row,) = csv.DictReader(io.StringIO(as_csv(run_data(record))))
    assert row["p99_ms"] == ("8.2" if n >= 100 else "")


def test_failures_have_their_reason_and_what_was_skipped_is_not_among_them() -> None:
    skipped = build("fx", component="a", status="skipped", reason="no CUDA device")
    failed, alike = (build(name, component="a", status="failed", reason="it | raised\nhere") for name in ("b", "c"))
    data = run_data(skipped, failed, alike)
    assert status_section(data).lines == ("a.b and a.c failed: it | raised here",)
    for text in (render_html(data), render_console(data)):
        assert "1 cell skipped: fx (no CUDA device)" in text
    assert "| no CUDA device | a.fx" in render_markdown(data)


def test_cells_and_notes_say_under_which_conditions_cells_ran() -> None:
    replaced = {"kind": "transform", "name": "T", "seconds": 0.1, "notes": ["2 of 2 run without their kernel"]}
    compiled = {"kind": "compiler", "name": "Inductor", "seconds": 0.1, "notes": ["1 graph for 25 blocks"]}
    metrics = clocks(2.5) | {"latency": QUIET | {"settled": False, "gpu_lost_share": 0.05}}
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
        "Equal code differs between processes by 0.4% (standard deviation; device-bound; learned from 3 pairs of "
        "processes)"
    )


def planted() -> list[Record]:
    """Make a run of 12 cells in three components, of which a cell failed, one was skipped, and others took time."""
    found = []
    for component in ("world_model", "image_decoder", "audio_decoder"):
        named = {"component": component}
        found += [in_turns("baseline", 28.7, taken=0.1, **named), in_turns("compile", 2.5, **named)]
        found += [in_turns("cuda_graph", 2.5, **named), in_turns("compile+cuda_graph", 2.6, std=0.05, **named)]
    found[7] = build("compile+cuda_graph", component="image_decoder", status="failed", reason="out of memory")
    found[11] = build("compile+cuda_graph", component="audio_decoder", status="skipped", reason="no CUDA device")
    return found


def test_a_run_of_12_cells_prints_at_most_45_lines_each_within_100_columns() -> None:
    data = run_data(*planted())
    lines = render_console(data).splitlines()
    assert len(lines) <= 45, "\n".join(lines)
    assert max(map(len, lines)) <= 100
    for component in ("world_model", "image_decoder", "audio_decoder"):
        assert len([line for line in lines if line.startswith(f"{component} ")]) in (4, 5), "a line a row"
    assert len(render_console(data, details=True).splitlines()) > 2 * len(lines)


def test_the_same_record_gives_the_same_verdict_everywhere(save: Save) -> None:
    data, result = run_data(*planted()), RunResult(save(planted()))
    cells = {(each["component"], each["variant"]): each for each in csv.DictReader(io.StringIO(as_csv(data)))}
    texts = {"console": render_console(data), "report.md": render_markdown(data), "python": str(result)}
    page = render_html(data).replace("\n", " ").replace("</tr>", "\n")
    texts["page"] = page.replace("<wbr>", "").replace("\u00a0", " ")
    texts = {name: re.sub(r"<[^>]*>|[\\|]", " ", text) for name, text in texts.items()}
    for answer in json.loads(as_json(data))["answer"]:
        component, best = answer["component"], result.best(answer["component"])
        assert best is not None
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


def test_every_target_names_the_same_leader_with_the_same_answers(tmp_path: Path) -> None:
    sweep = plant(tmp_path / "sweep", Job("seed=0", planted()), Job("seed=1"))
    run, history = sweep / "0", read_history(sweep / "0")
    searched = tune_section(run_data(*(replace(record, target="tune") for record in planted()))).lines
    for answer in load_sweep(sweep).answers:
        own = answer_of(answer.component, [each for each in planted() if each.component == answer.component])
        assert own.ranking is not None
        assert answer.ranking is not None
        assert (answer.ranking.leader, answer.ranking.answers) == (own.ranking.leader, own.ranking.answers)
        assert (answer.holds, answer.speedup) == (own.holds, own.speedup)
        assert next(answer.remarks()) == own.remarks[0]
        (point,) = (series[-1] for title, series in history.items() if title.startswith(f"{answer.component} "))
        assert point.variant == own.ranking.leader
        told = "; ".join(f"{word}: {', '.join(own.ranking.named(word))}" for word in ("same", "undecided"))
        assert (point.not_slower or "") in told
        (line,) = (line for line in searched if line.startswith(f"{answer.component}: the winner is "))
        assert line.split()[4] == own.ranking.leader
    loaded = read_run(run)
    assert {cell.verdict for cell in judged(matched_cells(loaded, loaded))} == {"same", "not compared"}
