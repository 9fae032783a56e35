"""What the benchmark of false claims says of records with known times, and that its chain is as long as it says."""

import contextlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from make_record import record
from warm_process import run_warm

from profiling.report.answer import answer_of
from profiling.report.table import markdown
from profiling.results.jsonl import append_record
from profiling.results.measured import Metrics, Parity, Summary, Turns, Window
from profiling.results.stats import summarize
from profiling.run.rounds import with_speedup

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
PARITY = Parity(reference="fp32 eager", passed=True, rel_l2=0.001)


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import false_claims

    return false_claims


def timed(centre, *, seed=0, n=1200) -> Summary:
    return summarize((centre * (1 + 0.002 * np.random.default_rng(seed).standard_normal(n))).tolist())


def cell(variant, centre, **changes):
    """A cell that took turns in 12 windows of 100 calls around `centre` ms."""
    windows = tuple(Window(block=block, start_s=0.2 * block, n=100) for block in range(12))
    turns = Turns(began="now", beside=(), windows=windows, stopped_by="decided")
    metrics = Metrics(wall_ms=timed(centre, seed=len(variant)))
    return record(variant, **{"metrics": metrics, "turns": turns, "parity": PARITY, "scale": "full", **changes})


def comparison(benchmark, factor, planted=0, **changes):
    baseline = cell("baseline", 3.0)
    again = with_speedup(cell("again", 3.0 * factor, **changes), baseline, seed=0)
    return benchmark.Comparison("in turns", planted, "net", *benchmark.said(answer_of("net", [baseline, again])))


@pytest.mark.parametrize(
    ("planted", "factor", "said", "is_false", "is_found"),
    [
        (0, 1.0, "cannot tell", False, False),
        (0, 1.05, "slower", True, False),
        (0, 0.95, "faster", True, False),
        (5, 1.05, "slower", False, True),
        (5, 1.0, "cannot tell", False, False),
        (5, 0.95, "faster", True, False),
    ],
)
def test_a_comparison_says_what_the_answer_of_the_run_says(benchmark, planted, factor, said, is_false, is_found):
    each = comparison(benchmark, factor, planted)
    assert (each.said, each.is_false, each.is_found) == (said, is_false, is_found)


@pytest.mark.parametrize("changes", [{"status": "failed", "reason": "out of memory"}, {"metrics": Metrics()}])
def test_a_cell_without_right_times_is_not_measured_and_meets_no_bar(benchmark, changes):
    each = comparison(benchmark, 1.0, **changes)
    assert each.said == "not measured"
    (row,) = benchmark.rows_of([each], "cpu", busy=0)
    assert not row.is_met
    assert "not measured" in benchmark.details([row])


def test_bars_are_one_false_claim_in_forty_and_a_share_found(benchmark):
    def row(kind, *said, device="cuda", busy=0):
        made = [benchmark.Comparison("in turns", kind, "net", each, "") for each in said]
        (row,) = benchmark.rows_of(made, device, busy=busy)
        return row

    unknown, slower, faster = (["cannot tell"], ["slower"], ["faster"])
    assert row(0, *(39 * unknown + slower)).is_met
    assert not row(0, *(38 * unknown + slower + faster)).is_met
    assert row(3, *(38 * slower + 2 * unknown)).is_met
    assert not row(3, *(37 * slower + 3 * unknown)).is_met
    assert row(1, *(30 * slower + 9 * unknown + faster)).is_met
    assert not row(1, *(29 * slower + 11 * unknown)).is_met
    assert row(5, *(36 * slower + 4 * unknown), device="cpu").is_met
    assert not row(5, *(35 * slower + 5 * unknown), device="cpu").is_met
    assert row(5, *(40 * unknown), device="cpu", busy=2).is_met, "beside busy processes nothing has to be found"
    assert not row(5, *(38 * unknown + 2 * faster), device="cpu", busy=2).is_met
    printed = markdown(benchmark.bars_table([row(1, *(30 * slower + 10 * unknown))], "H200", "idle"))
    assert "1% slower, in turns |            40 |              0 |      30 |            10 |" in printed
    assert "at most 1 false, at least 30 found" in printed


@pytest.mark.parametrize(("pairs", "parts"), [(40, 8), (40, 2), (1, 2), (3, 2)])
def test_the_components_are_spread_over_the_runs(benchmark, pairs, parts):
    numbers = benchmark.shares(pairs, parts)
    assert (len(numbers), sum(numbers)) == (parts, pairs)
    assert max(numbers) - min(numbers) <= 1


def test_each_variant_of_a_run_is_compared_with_its_baseline(benchmark, tmp_path):
    baseline = cell("baseline", 3.0)
    for variant, factor in (("slower_3", 1.03), ("again", 1.0), ("slower_1", 1.01)):
        append_record(tmp_path, with_speedup(cell(variant, 3.0 * factor), baseline, seed=0))
    append_record(tmp_path, baseline)
    said = {each.planted: (each.said, each.is_false, each.is_found) for each in benchmark.in_turns(tmp_path)}
    assert said == {3: ("slower", False, True), 0: ("cannot tell", False, False), 1: ("slower", False, True)}


def test_two_runs_of_equal_code_are_compared_by_their_baselines(benchmark, tmp_path):
    for name, factor in (("run_0", 1.0), ("run_1", 1.0), ("run_2", 1.05)):
        (tmp_path / name).mkdir()
        for variant in ("baseline", "again"):
            append_record(tmp_path / name, cell(variant, 3.0 * factor))
    same, other = (benchmark.over_runs(tmp_path / "run_0", tmp_path / name) for name in ("run_1", "run_2"))
    assert [(each.said, each.is_false) for each in same] == [("cannot tell", False)]
    assert [(each.said, each.is_false) for each in other] == [("slower", True)]


@pytest.mark.parametrize("planted", [0, 3])
def test_the_chain_has_the_planted_links_more_and_the_same_output(benchmark, planted):
    from false_claims_chain import Chain, Longer
    from torch.utils.flop_counter import FlopCounterMode

    from profiling.components.component import Component

    chain, inputs = Chain(width=16, links=100), {"x": torch.randn(8, 16)}
    expected = chain(**inputs)
    component = Component("c", chain, inputs, lambda _: inputs, torch.device("cpu"), torch.float32, 1, "random")
    step = Longer(planted=planted).prepare(component, Path())
    component.reset()  # as before each metric: what was planted must stay
    with FlopCounterMode(display=False) as counted:
        output = step.run()
    assert counted.get_total_flops() == (100 + planted) * 2 * 8 * 16 * 16
    assert output.std() > 0.1, "work on numbers that have not died out"
    torch.testing.assert_close(output, expected)


def test_busy_processes_end_with_the_block(benchmark, monkeypatch):
    started = []
    popen = subprocess.Popen
    monkeypatch.setattr(benchmark.subprocess, "Popen", lambda *given: started.append(popen(*given)) or started[-1])
    with benchmark.busy_processes(2):
        assert [process.poll() for process in started] == [None, None]
    assert all(process.poll() is not None for process in started)


@pytest.mark.slow
def test_it_ends_in_a_table_and_its_runs_are_kept(tmp_path, benchmark, monkeypatch, capsys):
    warm = SimpleNamespace(run=lambda command, env, **_: run_warm(command, cwd=tmp_path, env=env))
    monkeypatch.setattr(benchmark, "subprocess", warm)
    limits = [f"metric.latency.{key}" for key in ("warmup_max_seconds=0.1", "warmup_min_iterations=1")]
    arguments = ["--pairs=1", "--plant=1.05", "--seconds=0.5", "--isolation=none", "--device=cpu", f"--keep={tmp_path}"]
    monkeypatch.setattr(sys, "argv", ["false_claims.py", *arguments, *limits])
    with contextlib.suppress(SystemExit):  # so few windows may miss the bar
        benchmark.main()
    printed = capsys.readouterr().out
    assert "| equal code, in turns |             1 |" in printed
    assert "| 5% slower, in turns  |             1 |" in printed
    assert "not measured" not in printed
    assert (tmp_path / "run_0" / "results.jsonl").exists()
