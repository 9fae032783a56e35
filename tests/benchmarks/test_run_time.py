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

    def timed(code, folder, config, device, keys, variants, gpu):
        assert (device, keys) == ("cpu", ["scale=tiny"])
        assert variants == run_time.VARIANTS["cpu"]
        assert {file.stem for file in (config / "variant").iterdir()} == {"eager_2", "eager_3", "compile_2"}
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


@pytest.mark.parametrize(("share", "met"), [(0.55, True), (0.7, False)])
def test_shared_compiles_against_cold_ones(run_time, monkeypatch, capsys, share, met):
    order = []

    def timed(code, folder, config, device, keys, variants, gpu):
        assert code == run_time.ROOT
        assert variants == ("baseline", "compile", "eager_2", "compile_2")
        order.append("cold" if "compile_cache=cold" in keys else "shared")
        return run_time.Timed(100.0 if order[-1] == "cold" else 100.0 * share, 12, 5.0)

    monkeypatch.setattr(run_time, "timed_run", timed)
    monkeypatch.setattr(sys, "argv", ["run_time.py", "--pairs=2", "--device=cpu", "--sharing", "scale=tiny"])
    with pytest.raises(SystemExit) as ended:
        run_time.main()
    assert ended.value.code != met
    assert order == ["shared", "cold", "cold", "shared"]
    assert f"at most 0.6: {'met' if met else 'missed'}" in capsys.readouterr().out
