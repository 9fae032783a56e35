"""What the slowdown benchmark says of runs whose times are known, and that its chain is as long as it claims."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec import to_builtins

from profiling.results.records import Record, append_record
from profiling.results.stats import summarize

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def pairs_module(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import slowdown_pairs

    return slowdown_pairs


def kept(folder, name, centre, *, seed, device=None, n=100, **changes):
    """A run with one cell of that name: `n` wall times around `centre`, and a device clock on request."""
    folder.mkdir(exist_ok=True)
    times = centre * (1 + 0.002 * np.random.default_rng(seed).standard_normal(n))
    metrics = {"wall_ms": to_builtins(summarize(times))}
    metrics |= {} if device is None else {"device_ms": {"p50": device}, "host_ms": {"p50": 0.5 * device}}
    record = Record("generic_forward", name, "baseline", "ok", scale="full", frames_per_call=1, metrics=metrics)
    append_record(folder, replace(record, **changes))
    return folder


@pytest.fixture
def judged(tmp_path, pairs_module):
    def judged(kind, factor, number=0, **changes):
        name = f"chain_{number}"
        a = kept(tmp_path / "a", name, 3.0, seed=2 * number, device=2.9)
        b = kept(tmp_path / "b", name, 3.0 * factor, seed=2 * number + 1, device=2.9 * factor, **changes)
        return pairs_module.pair_of(kind, a, b, name, "baseline")

    return judged


@pytest.mark.parametrize(
    ("kind", "factor", "false_alarm", "found"),
    [
        ("A/A", 1.0, False, False),
        ("A/A", 1.05, True, False),
        ("A/A", 0.95, True, False),
        ("slowdown", 1.03, False, True),
        ("slowdown", 1.0, False, False),
        ("slowdown", 0.97, False, False),
    ],
)
def test_a_pair_is_what_was_planted(judged, kind, factor, false_alarm, found):
    pair = judged(kind, factor)
    assert (pair.false_alarm, pair.found) == (false_alarm, found)
    assert pair.device_ratio == pytest.approx(factor)
    assert pair.host_share == pytest.approx(0.5)


def reached(pairs_module, pairs):
    return {what.split(",")[0]: ok for what, _, _, ok in pairs_module.bars(pairs)}


def test_bars_hold_what_they_promise(pairs_module, judged):
    alike, alarm = judged("A/A", 1.0), judged("A/A", 1.05, 1)
    found, missed = judged("slowdown", 1.03, 2), judged("slowdown", 1.0, 3)
    good = [alike] * 19 + [alarm] + [found] * 9 + [missed]
    assert all(reached(pairs_module, good).values())
    assert not reached(pairs_module, [*good, alarm])["false alarms in 21 A/A pairs"]
    assert not reached(pairs_module, [*good, missed])["slowdowns of 3% found"]
    red = [replace(alike, code=2)] * 2
    assert not reached(pairs_module, [*good, *red])["exit codes other than 0 in 22 A/A pairs"]
    assert reached(pairs_module, [*good, *red])["false alarms in 22 A/A pairs"], "no verdict, and still a red CI"
    weak = [replace(found, device_ratio=1.01)] * 3
    assert not reached(pairs_module, weak)["what was planted"], "found, but not what was to be found"
    launches = [replace(found, host_share=0.95)]
    assert not all(reached(pairs_module, launches).values()), "the host set the time"


def test_a_pair_that_cannot_be_told_is_counted_and_stops_ci_beyond_the_threshold(tmp_path, pairs_module):
    few = [kept(tmp_path / side, "chain", ms, seed=1, n=3) for side, ms in (("a", 3.0), ("b", 3.3))]
    pair = pairs_module.pair_of("A/A", *few, "chain", "baseline")
    assert (pair.judged.verdict, pair.code, pair.false_alarm) == ("can't tell", 2, False)
    slow = replace(pair, kind="slowdown", judged=replace(pair.judged, verdict="slower"))
    assert pairs_module.untold([pair, pair, slow]) == "can't tell: 2 of 2 A/A pairs, 0 of 1 slowdown"
    assert pairs_module.untold([pair]) == "can't tell: 1 of 1 A/A pair"
    rows = {what: (measured, ok) for what, _, measured, ok in pairs_module.bars([pair, pair])}
    assert rows["exit codes other than 0 in 2 A/A pairs"] == ("2", False)
    assert rows["false alarms in 2 A/A pairs"] == ("0", True)


def test_a_cell_that_was_disturbed_is_not_passed_over(pairs_module, judged):
    pair = judged("A/A", 1.0, status="invalid", reason="clocks held down: power cap")
    assert not pair.false_alarm
    assert "power cap" in pairs_module.row(1, pair)[-1]
    assert not reached(pairs_module, [pair])["pairs that could be compared"]


def test_without_a_device_clock_nothing_is_said_of_it(tmp_path, pairs_module):
    sides = [kept(tmp_path / side, "chain", 3.0, seed=seed) for seed, side in enumerate("ab")]
    pair = pairs_module.pair_of("A/A", *sides, "chain", "baseline")
    assert (pair.device_ratio, pair.host_share) == (None, None)
    assert not [what for what, *_ in pairs_module.bars([pair]) if "device" in what]


@pytest.mark.parametrize("links", [100, 103])
def test_the_chain_does_as_many_products_as_it_has_links(monkeypatch, links):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from slowdown_chain import Chain
    from torch.utils.flop_counter import FlopCounterMode

    x = torch.randn(8, 16)
    with FlopCounterMode(display=False) as counted:
        output = Chain(width=16, links=links)(x)
    assert counted.get_total_flops() == links * 2 * 8 * 16 * 16
    assert output.std() > 0.1, "work on numbers that have not died out"


def test_it_ends_in_a_table_and_its_runs_are_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import slowdown

    few = ("min_iterations=6", "max_iterations=8", "warmup_max_seconds=0.1", "warmup_min_iterations=1")
    keys = [f"metric.latency.{key}" for key in few]
    arguments = ["--pairs=1", "--same=1", "--batches=1", "--rounds=1", f"--keep={tmp_path}", "device=cpu", *keys]
    monkeypatch.setattr(sys, "argv", ["slowdown.py", *arguments])
    slowdown.main()
    printed = capsys.readouterr().out
    assert "| A/A 1 " in printed
    assert "| slowdown 1 " in printed
    assert re.search(r"\ncan't tell: [01] of 1 A/A pair, [01] of 1 slowdown\n", printed)
    links = [
        (tmp_path / f"0_{run}_config" / "component" / "chain_00.yaml").read_text().split("links: ")[1].split()[0]
        for run in ("a", "same", "slower")
    ]
    assert links == ["100", "100", "103"]
