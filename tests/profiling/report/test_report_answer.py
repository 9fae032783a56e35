"""The answer table claims what measurement supports, says what is missing, and names one next step."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from report_records import build, build_loop, clocks, faster, frame_loop, rows, run_data, titled

from profiling.report.answer import answer_of, answer_section, held_rate, notes_section, status_section
from profiling.report.doubts import doubts_of
from profiling.report.latency import latency_section
from profiling.report.realtime import realtime_section
from profiling.results.measured import LEAST_FOR
from profiling.results.record import Record
from profiling.results.stats import median_interval, summarize

#: Two loops, of which others disturbed the second: variant, median frame time in ms, share.
PAIR = (("sequential", 9.0, 0.0), ("overlap", 9.2, 0.3))
#: Conditions of a timed window in which nothing else happened.
QUIET = {"cold": False, "warmup_iterations": 1, "warmup_seconds": 0.1, "settled": True}


def answer(*records: Record) -> dict[str, str]:
    (table,) = answer_section(run_data(*records)).tables
    (row,) = rows(table)
    return row


def marks(*records: Record) -> list[str]:
    return [doubt.mark for doubt in answer_of("net", records).doubts]


def words(*records: Record) -> str:
    return "; ".join(doubt.words for doubt in answer_of("net", records).doubts)


def disturbed(record: Record, share: float | None = 0.38, **latency: Any) -> Record:
    conditions: dict[str, Any] = QUIET if share is None else {**QUIET, "cpu_lost_share": share}
    wall = clocks(record.wall_p50 or 1.0)["wall_ms"]
    metrics = {"wall_ms": wall, "latency": conditions | latency}
    return build(record.variant, record.wall_p50, metrics=metrics, speedup=faster(11.5))


def test_the_fastest_correct_variant_with_its_speedup(three: tuple[Record, ...]) -> None:
    assert answer(*three) == {
        "component": "world_model",
        "fastest correct": "compile",
        "p50 ms": "2.500 [2.490, 2.510]",
        "p99 ms": "2.600",
        "speedup vs baseline": "11.5× [11.4, 11.6]",
        "holds": "120 FPS",
        "conditions": "! cuda_graph failed",
        "peak allocated MiB": "2506",
        "prepare s": "28.0",
    }


def test_an_invalid_cell_is_never_fastest() -> None:
    bad = build("compile", 0.1, status="invalid", reason="recompiled in the timed window")
    assert answer(build("baseline", 28.7), bad)["fastest correct"] == "baseline"


def test_overlapping_intervals_are_a_tie() -> None:
    graph, other = (build(name, p50, speedup=faster(11.5)) for name, p50 in (("graph", 2.495), ("compile", 2.5)))
    assert "graph and compile are tied" in words(build("baseline", 28.7), graph, other)
    assert marks(build("baseline", 28.7), graph, other) == ["tied"]
    assert marks(build("baseline", 28.7), graph, build("compile", 2.6)) == []
    few = build("compile", 2.6, metrics=clocks(2.6, half=None))
    assert marks(build("baseline", 28.7), graph, few) == ["few samples"]


def test_the_speedup_is_that_against_the_baseline_also_where_another_variant_may_be_as_fast() -> None:
    baseline = build("baseline", 28.7)
    near = build("graph", 2.5, speedup=faster(11.5)), build("compile", 2.53, speedup=faster(11.3))
    row = answer(baseline, *near)
    assert (row["fastest correct"], row["conditions"]) == ("cannot tell (graph)", "! within noise")
    assert row["speedup vs baseline"] == "11.5× [11.4, 11.6]", "both variants are far from the baseline"
    busy = disturbed(build("compile", 2.53), 0.06)
    row = answer(baseline, near[0], busy)
    assert (row["fastest correct"], row["speedup vs baseline"]) == ("cannot tell (graph)", "11.5× [11.4, 11.6]")
    row = answer(build("baseline", 2.5), build("compile", 2.53, speedup=faster(0.99)))
    assert (row["fastest correct"], row["speedup vs baseline"]) == ("cannot tell (baseline)", "cannot tell")


def test_cells_that_took_turns_are_tied_by_their_ratio() -> None:
    """They differ by 0.2%: their intervals do not overlap, and the difference is no claim."""

    def timed(variant: str, p50: float, spread: float = 1e-4) -> Record:
        windows = [(p50 * (1 + spread * sign),) * 10 for sign in (-1, 1) * 6]
        section = {"began": "now", "beside": [], "windows": [{"block": n, "start_s": n, "n": 10} for n in range(12)]}
        samples = [ms for window in windows for ms in window]
        measured = build(variant, p50, speedup=faster(11.5), turns=section)
        clock = replace(summarize(samples), ci95=median_interval(*windows))
        return replace(measured, metrics=replace(measured.metrics, wall_ms=clock))

    graph, other = timed("graph", 2.495), timed("compile", 2.5)
    assert graph.metrics.wall_ms.ci95[1] < other.metrics.wall_ms.ci95[0]
    text = words(build("baseline", 28.7), graph, other)
    assert "graph and compile are tied: compile takes 1.002 times as long (99% interval 1.002 to 1.002)" in text
    assert "overlap" not in text
    graph, other = timed("graph", 2.495, 0.04), timed("compile", 2.53)
    assert marks(build("baseline", 28.7), graph, other) == ["undecided"]
    text = words(build("baseline", 28.7), graph, other)
    assert "more turns are needed to tell which of graph and compile is the fastest: compile takes" in text
    assert "tied" not in text, "a ratio known to ±4% is no tie"


def test_clocks_that_could_explain_a_difference_rank_nothing() -> None:
    def at(variant: str, p50: float, mhz: float, **changes: Any) -> Record:
        timed = clocks(p50)
        return build(
            variant, p50, metrics=timed | {"latency": timed["latency"] | {"sm_clock_median_mhz": mhz}}, **changes
        )

    baseline = at("baseline", 28.7, 1980)
    pair = at("graph", 2.3, 1980, speedup=faster(12.5)), at("compile", 2.5, 1755, speedup=faster(11.5))
    assert answer(baseline, *pair)["fastest correct"] == "cannot tell (graph)"
    (line,) = answer_section(run_data(baseline, *pair)).lines
    assert line.startswith("! clocks differ: SM clock 1980 against 1755 MHz could explain the difference")
    row = answer(baseline, at("compile", 2.5, 1755, speedup=faster(11.5)))
    assert row["speedup vs baseline"].startswith("11.5×"), "the clocks cannot explain this"


def test_a_disturbed_machine_ranks_nothing_that_it_could_have_turned_round() -> None:
    baseline, compiled = build("baseline", 2.58), disturbed(build("compile", 2.5))
    row = answer(baseline, compiled)
    assert row["fastest correct"] == "cannot tell (compile)"
    assert row["speedup vs baseline"] == "cannot tell"
    assert row["conditions"] == "! disturbed"
    (line,) = answer_section(run_data(baseline, compiled)).lines
    assert line == (
        "! disturbed: cannot tell which variant is fastest: other processes took 38% of the CPU while compile was "
        "timed; repeat on a quiet machine."
    )
    notes = notes_section(run_data(baseline, compiled)).lines
    assert notes == ("compile: disturbed: other processes took 38% of the CPU while it was timed",)
    row = titled(latency_section(run_data(baseline, compiled)))["Variants"][1]
    assert (row["speedup vs baseline"], row["conditions"]) == ("cannot tell", "! disturbed")
    # Where nearly every call of the one was faster than any call of the other, no disturbance explains it.
    row = answer(build("baseline", 28.7), compiled)
    assert (row["speedup vs baseline"], row["conditions"]) == ("11.5× [11.4, 11.6]", "! disturbed")
    assert answer(baseline, disturbed(build("compile", 2.5), 0.05))["fastest correct"] == "compile"


def test_what_is_known_only_from_interruptions_is_said_so() -> None:
    record = disturbed(build("compile", 2.5), None, descheduled=20)
    assert notes_section(run_data(record)).lines == (
        "compile: disturbed: other processes took up to 16% of the CPU while it was timed",
    )


def test_no_speedup_without_a_correct_baseline() -> None:
    compiled = build("compile", 2.5, speedup=faster(11.5))
    wrong = build("baseline", 28.7, status="invalid", reason="throttled")
    assert "speedup vs baseline" not in answer(compiled)
    assert "speedup vs baseline" not in answer(wrong, compiled)
    assert words(compiled) == "no speedup is claimed: baseline did not run"
    assert marks(wrong, compiled) == ["no baseline", "baseline invalid"]
    lie = build("compile", 2.5, parity={"reference": "x", "passed": False}, speedup=faster(11.5))
    assert answer(build("baseline", 28.7), lie)["fastest correct"] == "baseline"


def test_the_baseline_may_win_and_one_alone_is_said() -> None:
    slower = build("compile", 2.5, speedup=faster(0.8))
    for group in ((build("baseline", 2.0), slower), (build("baseline", 2.0),)):
        row = answer(*group)
        assert (row["fastest correct"], row["speedup vs baseline"]) == ("baseline", "1.00×")
        assert marks(*group) == []


def test_nothing_correct_is_said(three: tuple[Record, ...]) -> None:
    wrong = build("baseline", 2.0, status="invalid", reason="recompiled")
    row = answer(wrong, three[2])
    assert (row["fastest correct"], row.get("speedup vs baseline", "–")) == ("none", "–")
    assert row["conditions"] == "! no correct result, baseline invalid, cuda_graph failed"
    assert marks(build("baseline")) == ["no latency was measured"]
    assert marks(build("baseline", 28.7, parity=None)) == ["not checked"]


def test_a_mean_that_ranks_otherwise_is_told() -> None:
    tailed = build("compile", 2.5, metrics=clocks(2.5, mean=9.0), speedup=faster(11.5))
    assert "by the mean baseline is faster" in words(build("baseline", 3.0), tailed)


def test_every_doubt_about_the_conditions_has_its_mark() -> None:
    latency = {"cold": False, "warmup_iterations": 1, "warmup_seconds": 0.1, "settled": False}
    limited = clocks(2.5, n=33) | {"latency": latency | {"throttled_share": {"power cap": 0.4}}}
    record = build("compile", 2.5, metrics=limited, speedup=faster(11.5), scale="tiny")
    skipped = build("cuda_graph", status="skipped", reason="no CUDA device")
    assert answer(build("baseline", 28.7), record, skipped)["conditions"] == (
        "! not settled, few samples, clocks limited, tiny, 1 skipped"
    )
    lines = answer_section(run_data(build("baseline", 28.7), record, skipped)).lines
    assert "! clocks limited: compile: by power cap 40% of the timed window." in lines
    assert lines[-1] == "Skipped: cuda_graph (no CUDA device)."


@pytest.mark.parametrize("warm", [None, {"seconds": 9.25, "phases": {}}])
def test_the_answer_says_when_a_process_gives_its_first_output(warm: dict[str, Any] | None) -> None:
    cold = {"seconds": 38.04, "phases": {"inductor": 20.0}}
    compiled = build("compile", 1.0, starts={"cold": cold, "warm": warm}, speedup=faster(2.0))
    (*_, line) = answer_section(run_data(build("baseline", 2.0, starts={"cold": cold}), compiled)).lines
    ends = "." if warm is None else ", 9.25 s with a filled one."
    assert line.startswith("From the start of a process to its first output, ")
    assert line.endswith(f".compile: 38.0 s with an empty compiler cache{ends}")


def test_a_doubt_of_several_components_is_one_line_that_names_them() -> None:
    tiny = [build("baseline", 2.0, component=name, scale="tiny") for name in ("a", "b")]
    assert len(answer_section(run_data(*tiny)).lines) == 1
    (line,) = answer_section(run_data(*tiny, build("baseline", 2.0, component="c"))).lines
    assert line.startswith("! tiny (a and b): a small network")


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


@pytest.mark.parametrize(
    ("shortest", "p99", "held"),
    [
        (4.9, 8.3, "120 FPS"),
        (4.9, 20.0, "30 FPS or more"),
        (13.0, 16.6, "60 FPS or more"),  # 8.1 ms without what others took
        (14.0, 16.6, "60 FPS"),
        (4.9, 50.0, "cannot tell"),
    ],
)
def test_a_rate_that_others_may_have_prevented_is_not_judged(shortest: float, p99: float, held: str) -> None:
    metrics = clocks(12.0, p99=p99, min=shortest) | {"latency": {"cpu_lost_share": 0.38, **QUIET}}
    assert held_rate(build("baseline", metrics=metrics)) == held
    assert held_rate(build("baseline", metrics=clocks(80.0, p99=90.0, min=70.0) | {"latency": metrics["latency"]})) == (
        "below 24 FPS"
    )


@pytest.mark.parametrize(("waited_ms", "held"), [(200.0, "below 24 FPS"), (600.0, "cannot tell")])
def test_threads_that_wait_one_after_the_other_delay_a_call_by_the_sum(waited_ms: float, held: str) -> None:
    """A thread waited for 20% of 1.5 s; all of them together for 13%, or for 40%, which others can have cost."""
    latency = {"cpu_lost_share": 0.2, "run_queue_wait_ms": waited_ms, **QUIET}
    metrics = clocks(60.0, p99=70.0, min=55.0, n=25) | {"latency": latency}
    assert held_rate(build("baseline", metrics=metrics, device="cpu")) == held


@pytest.mark.parametrize(
    ("device", "shortest", "held"),
    [("cuda:0", 8.5, "60 FPS or more"), ("cuda:0", 14.0, "60 FPS"), ("cpu", 14.0, "60 FPS or more")],
)
def test_a_rate_of_a_loop_that_others_may_have_prevented_is_not_judged(device: str, shortest: float, held: str) -> None:
    """On a CPU threads of the loop wait for each other, so that any frame may be late because of others."""
    section = frame_loop(cpu_lost_share=0.38)
    section["frame_ms"]["min"] = shortest
    assert held_rate(build_loop("cuda_graph", section, device=device)) == held
    section["cpu_lost_share"] = 0.04
    assert held_rate(build_loop("cuda_graph", section, device=device)) == "60 FPS"


def test_nothing_pays_where_no_speedup_is_claimed() -> None:
    paying = {"speedup": faster(2.5, break_even_calls=3334)}

    def pays(*records: Record) -> str | None:
        return titled(latency_section(run_data(*records)))["Variants"][1].get("pays after calls")

    baseline, compiled = build("baseline", 5.0), build("compile", 2.0, **paying)
    assert pays(baseline, compiled) == "3334"
    busy = disturbed(baseline, 0.6)
    assert pays(busy, build("compile", 4.9, **paying)) is None


@pytest.mark.parametrize(("n", "shown", "held"), [(100, "8.200", "120 FPS"), (99, "max 40.00", "24 FPS")])
def test_few_calls_are_judged_by_the_longest(n: int, shown: str, held: str) -> None:
    record = build("baseline", 5.0, metrics=clocks(5.0, n=n, p99=8.2, max=40.0))
    row = answer(record)
    assert (row["p99 ms"], row["holds"]) == (shown, held)
    assert ("few samples" in marks(record)) == (n < 100)
    timing = titled(latency_section(run_data(record)))["Variants"][0]
    assert timing["p99 ms"] == shown


@pytest.mark.parametrize(("n", "percentiles"), [(100, "p90 p95 p99"), (99, "p90 p95"), (19, "p90"), (9, "")])
def test_a_percentile_needs_a_sample_beyond_it(n: int, percentiles: str) -> None:
    wall = build("baseline", metrics=clocks(5.0, n=n)).metrics.wall_ms
    assert wall is not None
    assert " ".join(name for name in LEAST_FOR if wall.percentile(name) is not None) == percentiles


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
    data = run_data(*skipped, failed, alone)
    assert status_section(data).lines == ("a.broken failed: it | raised here",)
    assert answer_section(data).lines == ("Skipped: cuda_graph, fx (no CUDA device); a.other (no compiler).",)


def test_notes_say_under_which_conditions_cells_ran() -> None:
    latency = {"cold": False, "warmup_iterations": 1, "warmup_seconds": 0.1, "settled": False}
    metrics = clocks(2.5) | {"latency": latency}
    steps = [
        {
            "kind": "transform",
            "name": "T",
            "seconds": 0.1,
            "notes": ["2 of 2 replaced layers run without their kernel"],
        },
        {"kind": "compiler", "name": "Inductor", "seconds": 0.1, "notes": ["1 graph for 25 blocks"]},
    ]
    prepare = {"seconds": 1.0, "cache_hits": 2}
    record = build("compile", metrics=metrics, prepare=prepare, notes=["a note"], recipe=steps)
    lines = notes_section(run_data(record)).lines
    assert lines[:2] == (
        "world_model.compile: a note",
        "world_model.compile: 2 of 2 replaced layers run without their kernel",
    )
    assert not any("25 blocks" in line for line in lines), "those are in the table of steps only"
    assert any("not settled: its times were still changing" in line for line in lines)
    assert any("warm start" in line for line in lines)


def test_what_could_not_be_read_is_a_note() -> None:
    record = build("compile", 2.5, prepare={"seconds": "many"})
    lines = notes_section(run_data(record, build("baseline", 3.0))).lines
    assert any(line.startswith("world_model.compile: not read: prepare.seconds") for line in lines)


def test_a_loop_that_others_disturbed_is_marked() -> None:
    quiet, busy = (build_loop(name, frame_loop(p50, cpu_lost_share=share)) for name, p50, share in PAIR)
    assert [doubt.mark for doubt in doubts_of(busy)] == ["disturbed"]
    assert "disturbed" in marks(quiet, busy)
    assert "other processes took 30% of the CPU while overlap was timed" in words(quiet, busy)
    (_, row) = titled(realtime_section(run_data(quiet, busy)))["Frames"]
    assert row["conditions"] == "! disturbed"
