from collections.abc import Callable
from typing import Any

from profiling.reporting.verdict import verdict, verdicts
from profiling.results.records import Record

Make = Callable[..., Record]
SPEEDUP = {"vs": "baseline", "wall": 11.5, "ci95": [11.4, 11.6]}
MIB = 2**20


def test_fastest_right_variant_how_much_and_at_what_cost(three: tuple[Record, ...]) -> None:
    (line,) = verdicts(three)
    assert line.startswith("world_model: compile is fastest, 2.500 ms (wall p50)")
    assert "11.5× [11.4, 11.6] as fast as baseline" in line
    assert "costs 28.0 s to prepare and +215 MiB peak allocated vs baseline" in line
    assert "left out: cuda_graph (failed)" in line
    assert "told apart" not in line


def test_invalid_is_never_fastest(make: Make) -> None:
    bad = make("compile", 0.1, status="invalid", reason="recompiled")
    assert verdict([make("baseline", 28.7), bad]).startswith("only baseline is right, 28.70 ms")


def test_overlapping_intervals_are_said(make: Make, make_clocks: Callable[..., dict[str, Any]]) -> None:
    graph = make("compile_cuda_graph", 2.495, speedup=SPEEDUP)
    line = verdict([make("baseline", 28.7), make("compile", 2.5, speedup=SPEEDUP), graph])
    assert line.startswith("compile_cuda_graph is fastest")
    assert "compile_cuda_graph and compile can't be told apart (their 95% intervals overlap)" in line
    one_sample = make("compile", 2.6, metrics=make_clocks(2.6, half=None))
    assert "can't be told apart (too few samples)" in verdict([make("baseline", 28.7), graph, one_sample])


def test_intervals_apart_claim_no_tie(make: Make) -> None:
    assert "told apart" not in verdict([make("baseline", 28.7), make("compile", 2.5), make("fused", 2.6)])


def test_baseline_may_win(make: Make) -> None:
    line = verdict([make("baseline", 2.0), make("compile", 2.5, speedup={"vs": "baseline", "wall": 0.8})])
    assert line.startswith("baseline is fastest")
    assert "nothing beats the baseline" in line
    assert "costs 28.0 s to prepare and 2291 MiB peak allocated" in line


def test_nothing_right_is_said(make: Make, parity_failed: Record) -> None:
    line = verdict([make("baseline", 2.0, status="invalid", reason="throttled"), parity_failed])
    assert line == "no variant is right, so none is fastest: baseline (invalid), cuda_graph (failed)"
    assert "nothing ran: compile skipped" in verdict([make("compile", status="skipped", reason="no GPU")])


def test_single_variant_says_what_is_missing(make: Make) -> None:
    assert "only baseline ran, 28.70 ms" in verdict([make("baseline", 28.7)])
    assert "no other variant to compare it with" in verdict([make("baseline", 28.7)])
    alone = verdict([make("compile", 2.5, speedup=SPEEDUP)])
    assert "only compile ran" in alone
    assert "no speedup is claimed without a right baseline: baseline did not run" in alone
    assert "11.5" not in alone


def test_wrong_baseline_backs_no_claim(make: Make) -> None:
    wrong = make("baseline", 28.7, status="failed", reason="parity")
    line = verdict([wrong, make("compile", 2.5, speedup=SPEEDUP)])
    assert "no speedup is claimed without a right baseline: baseline (failed)" in line
    assert "2291 MiB peak allocated" in line
    assert "vs baseline" not in line


def test_memory_of_different_kinds_is_not_subtracted(make: Make) -> None:
    base = make("baseline", 28.7, memory={"peak_host_rss": 100 * MIB})
    assert "2291 MiB peak allocated" in verdict([base, make("compile", 2.5, speedup=SPEEDUP)])


def test_memory_may_shrink_or_stay(make: Make) -> None:
    less = make("compile", 2.5, speedup=SPEEDUP, memory={"peak_allocated": 2000 * MIB})
    assert "−291 MiB peak allocated vs baseline" in verdict([make("baseline", 28.7), less])
    assert "±0 MiB" in verdict([make("baseline", 28.7), make("compile", 2.5, speedup=SPEEDUP)])


def test_missing_everything(make: Make) -> None:
    assert verdict([make("baseline")]) == "no latency was measured"
    assert "not checked" in verdict([make("baseline", 28.7, parity=None)])
    bare = verdict([make("baseline", 28.7), make("compile", 2.5, memory=None, prepare=None)])
    assert "its speedup was not measured" in bare
    assert "costs" not in bare


def test_each_component_has_its_line(make: Make) -> None:
    lines = verdicts([make("baseline", 2.0), make("baseline", 3.0, component="vae")])
    assert [line.partition(":")[0] for line in lines] == ["world_model", "vae"]
    assert verdicts([]) == ()


def test_a_mean_that_ranks_otherwise_is_told(make: Make, make_clocks: Callable[..., dict[str, Any]]) -> None:
    tailed = make_clocks(2.5)
    tailed["wall_ms"] = {**tailed["wall_ms"], "mean": 9.0}
    text = verdict([make("baseline", 3.0), make("compile", metrics=tailed, speedup=SPEEDUP)])
    assert text.startswith("compile") or "compile is fastest" in text
    assert "by the mean baseline is faster" in text


def test_times_that_other_programs_disturbed_are_called_so(
    make: Make, make_clocks: Callable[..., dict[str, Any]]
) -> None:
    def line(taken: int) -> str:
        clocks = make_clocks(2.5)
        clocks["wall_ms"] = {**clocks["wall_ms"], "n": 100}
        disturbed = {**clocks, "latency": {"descheduled": taken}}
        return verdict([make("baseline", 3.0), make("compile", metrics=disturbed, speedup=SPEEDUP)])

    assert "other programs ran while compile was timed" in line(10)
    assert "other programs" not in line(9)


def test_the_frame_rates_that_a_call_leaves_room_for(make: Make, make_clocks: Callable[..., dict[str, Any]]) -> None:
    def line(p99: float) -> str:
        clocks = make_clocks(5.0)
        return verdict([make("baseline", metrics={**clocks, "wall_ms": {**clocks["wall_ms"], "p99": p99}})])

    assert "its p99 fits a frame at 24, 30, 60 and 120 FPS;" in line(8.3)
    assert "its p99 fits a frame at 24, 30 and 60 FPS, not at 120;" in line(16.6)
    assert "its p99 fits a frame at 24 and 30 FPS, not at 60 and 120;" in line(16.7)
    assert "its p99 of 50.00 ms does not fit a frame even at 24 FPS" in line(50.0)


def test_when_its_preparation_is_paid_back(make: Make) -> None:
    paid = make("compile", 2.5, speedup={**SPEEDUP, "break_even_calls": 136}, prepare={"seconds": 0.241})
    assert "costs 0.241 s to prepare (paid back after 136 calls)" in verdict([make("baseline", 28.7), paid])


def test_a_training_step_is_not_held_against_frame_rates(make: Make) -> None:
    assert "FPS" in verdict([make("baseline", 28.7)])
    assert "FPS" not in verdict([make("baseline", 28.7, training={"log": []})])
