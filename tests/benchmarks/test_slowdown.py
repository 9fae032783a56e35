"""What the slowdown benchmark says of runs whose times are known, and that its chain is as long as it claims."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from profiling.report.table import markdown
from profiling.results.jsonl import append_record
from profiling.results.record import Metrics, Record
from profiling.results.stats import summarize

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def slowdown(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import slowdown

    return slowdown


def write(folder, name, centre, *, seed, device=None, n=100, **changes):
    """A run with one cell of that name: `n` wall times around `centre`, and a device clock on request."""
    folder.mkdir(exist_ok=True)
    times = centre * (1 + 0.002 * np.random.default_rng(seed).standard_normal(n))
    clocks = {} if device is None else {"device_ms": summarize([device]), "host_ms": summarize([0.5 * device])}
    fields = {"target": "generic_forward", "component": name, "variant": "baseline", "status": "ok", "scale": "full"}
    metrics = Metrics(wall_ms=summarize(times.tolist()), **clocks)
    append_record(folder, Record(**{**fields, "metrics": metrics, **changes}))
    return folder


@pytest.fixture
def compared(tmp_path, slowdown):
    def compared(kind, factor, number=0, **changes):
        name = f"chain_{number}"
        a = write(tmp_path / "a", name, 3.0, seed=2 * number, device=2.9)
        b = write(tmp_path / "b", name, 3.0 * factor, seed=2 * number + 1, device=2.9 * factor, **changes)
        return slowdown.pair_of(kind, a, b, name, "baseline")

    return compared


@pytest.mark.parametrize(
    ("kind", "factor", "error", "found"),
    [
        ("A/A", 1.0, None, False),
        ("A/A", 1.05, "false alarm", False),
        ("A/A", 0.95, "false alarm", False),
        ("slowdown", 1.03, None, True),
        ("slowdown", 1.0, "missed", False),
        ("slowdown", 0.97, "missed", False),
    ],
)
def test_a_pair_is_what_was_planted(compared, kind, factor, error, found):
    pair = compared(kind, factor)
    assert (pair.error, pair.false_alarm, pair.found) == (error, error == "false alarm", found)
    assert pair.device_ratio == pytest.approx(factor)
    assert pair.host_share == pytest.approx(0.5)


def reached(slowdown, pairs):
    return {row.name.split(",")[0]: row.reached for row in slowdown.criteria(pairs)}


def test_criteria_hold_what_they_promise(slowdown, compared):
    alike, alarm = compared("A/A", 1.0), compared("A/A", 1.05, 1)
    found, missed = compared("slowdown", 1.03, 2), compared("slowdown", 1.0, 3)
    good = [alike] * 19 + [alarm] + [found] * 9 + [missed]
    assert all(reached(slowdown, good).values())
    assert not reached(slowdown, [*good, alarm])["false alarms in 21 A/A pairs"]
    assert not reached(slowdown, [*good, missed])["slowdowns of 3% found"]
    red = [replace(alike, code=2)] * 2
    assert not reached(slowdown, [*good, *red])["exit codes other than 0 in 22 A/A pairs"]
    assert reached(slowdown, [*good, *red])["false alarms in 22 A/A pairs"], "no verdict, and still a red CI"
    weak = [replace(found, device_ratio=1.01)] * 3
    assert not reached(slowdown, weak)["planted slowdown by the device's clock: median B / A"]
    launches = [replace(found, host_share=0.95)]
    assert not all(reached(slowdown, launches).values()), "the host set the time"


def test_an_undecided_pair_is_counted_and_stops_ci_beyond_the_threshold(tmp_path, slowdown):
    few = [write(tmp_path / run, "chain", ms, seed=1, n=3) for run, ms in (("a", 3.0), ("b", 3.3))]
    pair = slowdown.pair_of("A/A", *few, "chain", "baseline")
    assert (pair.cell.verdict, pair.code, pair.false_alarm) == ("cannot tell", 2, False)
    slow = replace(pair, kind="slowdown", cell=replace(pair.cell, verdict="slower"))
    assert slowdown.undecided([pair, pair, slow]) == "cannot tell: 2 of 2 A/A pairs, 0 of 1 slowdown"
    assert slowdown.undecided([pair]) == "cannot tell: 1 of 1 A/A pair"
    rows = {row.name: (row.measured, row.reached) for row in slowdown.criteria([pair, pair])}
    assert rows["exit codes other than 0 in 2 A/A pairs"] == ("2", False)
    assert rows["false alarms in 2 A/A pairs"] == ("0", True)


def test_an_invalid_cell_is_not_left_out(slowdown, compared):
    pair = compared("A/A", 1.0, status="invalid", reason="recompiled while timed")
    assert not pair.false_alarm
    assert "recompiled while timed" in markdown(slowdown.pair_table([pair]))
    assert not reached(slowdown, [pair])["pairs that could be compared"]


def test_without_a_device_clock_its_criteria_are_absent(tmp_path, slowdown):
    runs = [write(tmp_path / run, "chain", 3.0, seed=seed) for seed, run in enumerate("ab")]
    pair = slowdown.pair_of("A/A", *runs, "chain", "baseline")
    assert (pair.device_ratio, pair.host_share) == (None, None)
    assert not [row.name for row in slowdown.criteria([pair]) if "device" in row.name]


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


def test_it_ends_in_tables_and_its_runs_are_kept(tmp_path, slowdown, monkeypatch, capsys):
    few = ("min_iterations=6", "max_iterations=8", "warmup_max_seconds=0.1", "warmup_min_iterations=1")
    keys = [f"metric.latency.{key}" for key in few]
    arguments = ["--pairs=1", "--same=1", "--batches=1", "--rounds=1", f"--keep={tmp_path}", "device=cpu", *keys]
    monkeypatch.setattr(sys, "argv", ["slowdown.py", *arguments])
    slowdown.main()
    printed = capsys.readouterr().out
    assert "| A/A " in printed
    assert "| slowdown " in printed
    assert re.search(r"\ncannot tell: [01] of 1 A/A pair, [01] of 1 slowdown\n", printed)
    links = [
        (tmp_path / f"0_{run}_config" / "component" / "chain_00.yaml").read_text().split("links: ")[1].split()[0]
        for run in ("a", "same", "slower")
    ]
    assert links == ["100", "100", "103"]
