"""What the benchmark of referees says of two sides whose times are known, and how it asks nvbench."""

import json
import random
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from profiling.report.table import markdown

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def referees(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import referees

    return referees


def side(log, name, ms, noise=0.001):
    """A side whose calls take `ms`; the machine gets slower by 0.1% with each window."""
    rng = random.Random(name)

    def measure(seconds):
        log.append(name)
        return ms * 1.001 ** len(log) * rng.gauss(1, noise)

    return measure


@pytest.mark.parametrize(
    ("factor", "tolerance", "verdict"),
    [(1.0, 0.01, "yes"), (1.006, 0.01, "yes"), (1.03, 0.01, "no"), (1.016, 0.02, "yes"), (0.97, 0.02, "no")],
)
def test_sides_that_take_turns_agree_within_the_tolerance_or_not(referees, factor, tolerance, verdict):
    log = []
    rows = referees.Rows("net", tolerance, has_bars=True)
    (row,) = rows.in_turns(side(log, "ours", 3.0 * factor), {"Timer": side(log, "Timer", 3.0)})
    assert (row.verdict, row.is_bar, row.referee) == (verdict, True, "Timer")
    assert row.pair.ratio == pytest.approx(factor, abs=0.002), "the machine's drift is in both"
    windows = log[2:]  # each side was called once to know how long a call takes
    assert len(windows) >= 2 * referees.LEAST
    blocks = [windows[at : at + 2] for at in range(0, len(windows), 2)]
    assert all(set(block) == {"ours", "Timer"} for block in blocks)
    assert all(second == first[::-1] for first, second in zip(blocks[::2], blocks[1::2], strict=True)), "A B B A"
    assert verdict in markdown(referees.table_of([row]))


def test_few_windows_or_wide_intervals_decide_nothing(referees):
    rows = referees.Rows("net", 0.01, has_bars=True)
    assert rows.row("Timer", [3.0] * 3, [3.0] * 3, is_bar=True).verdict == "undecided"
    noisy = [3.0, 3.1] * 4
    assert rows.row("Timer", noisy, noisy[::-1], is_bar=True).verdict == "undecided"


@pytest.mark.parametrize("held_back", [True, False])
def test_nvbench_is_asked_for_a_window_between_ours(referees, monkeypatch, held_back):
    log, ours_ms = [], []
    monkeypatch.setattr(referees, "our_median", lambda *_, **options: log.append(("ours", options)) or 3.0)
    settings = {name: lambda value, name=name: log.append((name, value)) for name in ("timeout", "throttle_threshold")}
    turn = referees.nvbench_turn(lambda: None, torch.device("cuda"), ours_ms, held_back=held_back)
    for number in range(4):
        state = SimpleNamespace(
            **{f"set_{name}": each for name, each in settings.items()},
            get_int64=lambda axis, number=number: number,
            exec=lambda launch, **options: log.append(("theirs", options)),
        )
        turn(state)
    order = [name for name, _ in log if name in ("ours", "theirs")]
    assert order == ["theirs", "ours", "ours", "theirs", "theirs", "ours", "ours", "theirs"]
    assert ours_ms == [3.0] * 4
    assert {tuple(options.items()) for name, options in log if name == "theirs"} == {
        (("batched", False), ("sync", not held_back))
    }
    assert all(options == {"cold": True} for name, options in log if name == "ours")


def test_the_time_of_an_nvbench_turn_is_the_median_of_its_samples_or_its_mean(referees):
    mean = SimpleNamespace(value=0.004)
    assert referees.nvbench_ms(SimpleNamespace(samples=[0.001, 0.002, 0.009], summaries={})) == 2.0
    assert referees.nvbench_ms(SimpleNamespace(samples=None, summaries={"nv/cold/time/gpu/mean": mean})) == 4.0


def test_rows_of_nvbench_are_no_bars(referees, monkeypatch):
    def write(command, **_):
        Path(command[-1]).write_text(json.dumps([("copy", "captured", [3.0] * 12, [3.0] * 12)]))
        return SimpleNamespace(returncode=0, stdout="", stderr="")

    monkeypatch.setattr(referees.subprocess, "run", write)
    (row,), reason = referees.nvbench_rows()
    assert (row.referee, row.verdict, row.is_bar, reason) == ("nvbench, captured, cold", "yes", False, "")


def test_nvbench_that_cannot_be_imported_is_left_out_with_the_reason(referees, monkeypatch):
    with pytest.raises(SystemExit, match="cannot be imported: ModuleNotFoundError") as ended:
        referees.nvbench_process(Path("unused.json"))
    failed = SimpleNamespace(returncode=1, stdout="", stderr=f"Warning: a line\n{ended.value}\n")
    monkeypatch.setattr(referees.subprocess, "run", lambda *_, **__: failed)
    assert referees.nvbench_rows() == ([], str(ended.value))
