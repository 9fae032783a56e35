"""The benchmark of a run's duration: order of the runs, and what it concludes of known times."""

import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def run_time(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import run_time

    return run_time


@pytest.mark.parametrize(
    ("pairs", "factor", "met"), [(1, 0.9, True), (2, 1.1, False), (6, 0.99, True), (6, 1.1, False)]
)
def test_runs_alternate_and_their_ratio_decides(run_time, monkeypatch, capsys, pairs, factor, met):
    order = []

    @contextmanager
    def checkout(revision, folder):
        assert revision == "abc"
        yield folder

    def timed(code, folder, config, device, keys):
        assert (device, keys) == ("cpu", ["scale=tiny"])
        assert sorted(file.stem for file in (config / "variant").iterdir()) == ["eager_2", "eager_3"]
        order.append("turns" if code == run_time.ROOT else "whole")
        return run_time.Timed((factor if order[-1] == "turns" else 1.0) * 1.01 ** len(order), 12, 5.0)

    monkeypatch.setattr(run_time, "checkout", checkout)
    monkeypatch.setattr(run_time, "timed_run", timed)
    arguments = [f"--pairs={pairs}", "--device=cpu", "--against=abc", "scale=tiny"]
    monkeypatch.setattr(sys, "argv", ["run_time.py", *arguments])
    with pytest.raises(SystemExit) as ended:
        run_time.main()
    assert ended.value.code != met
    assert order == (["turns", "whole", "whole", "turns"] * pairs)[: 2 * pairs]
    assert ("at most 1: met" in capsys.readouterr().out) == met
