"""What the benchmark of hardware counters says of records with known kernels."""

from pathlib import Path

import pytest
from make_record import record

from profiling.results.explanations import CountedKernel, HardwareCounters
from profiling.results.jsonl import append_record

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def counted(ms, by_counters, by_trace):
    bounds = {"bound_by_counters": by_counters, "bound_by_trace": by_trace}
    return CountedKernel(name="k", ms=ms, share=ms / 10, dram=0.5, **bounds)


@pytest.fixture
def agreement_of(monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import counter_agreement

    def run(*cells):
        for number, kernels in enumerate(cells):
            section = None if kernels is None else HardwareCounters(file="x.csv", kernels=kernels)
            append_record(
                tmp_path, record(f"v{number}", 1.0, hardware_counters=section, notes=("no hardware counters: x",))
            )
        monkeypatch.setattr("sys.argv", ["-", "--run", str(tmp_path)])
        return counter_agreement.main(), capsys.readouterr().out

    return run


def test_cells_count_alike_and_what_nothing_judges_does_not_agree(agreement_of):
    code, out = agreement_of(
        (counted(9.0, "memory bandwidth", "memory bandwidth"), counted(1.0, "compute", None)),
        (counted(0.1, "neither", "neither"),),
    )
    assert code == 0
    assert "95.0%" in out  # (90% + 100%) / 2
    code, out = agreement_of((counted(1.0, "compute", "neither"),))
    assert code == 1
    assert "NOT reached" in out


def test_l2_is_below_both_ceilings_and_told_apart(agreement_of):
    code, out = agreement_of(
        (
            counted(5.0, "neither", "neither"),
            counted(3.0, "L2 bandwidth", "neither"),
            counted(1.0, "L2 bandwidth", "memory bandwidth"),  # bytes that pass at the rate of L2
            counted(1.0, "compute", "neither"),
        )
    )
    assert code == 0
    assert ["all", "100.0%", "90.0%", "30.0%", "10.0%"] in [line.split() for line in out.splitlines()]
    assert "class of its own, which no trace shows: 60.0%" in out
    assert "a rule that says `neither` of every kernel: 90.0%" in out
    assert "at a ceiling by counters: 20.0%, of which the trace names 50%" in out
    assert "at a ceiling by trace: 10.0%, of which counters confirm 100%" in out


def test_a_run_without_counters_reaches_nothing(agreement_of):
    code, out = agreement_of(None)
    assert code == 1
    assert "no hardware counters: x" in out
