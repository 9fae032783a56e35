"""`python -m profiling.history`: the best right variant of every run, in order, and its plot."""

import sys
from xml.etree import ElementTree

import pytest
from hand_made import ENVIRONMENT, cell, noisy, write_run

from profiling.comparison.timeline import timelines
from profiling.history import main


def at(day, revision, *, dirty=False):
    git = {"revision": revision * 40, "dirty": dirty}
    return {**ENVIRONMENT, "captured_at": f"2026-01-{day:02}T00:00:00+00:00", "git": git}


@pytest.fixture
def runs(tmp_path):
    """Three runs, written in another order than they were made in: 8 ms, then 4 ms, then 5 ms."""
    wrong = cell("wrong", noisy(1), parity={"rel_l2": 3.0, "passed": False})
    failed = cell("failed", noisy(1), status="failed", reason="planted")
    (tmp_path / "deep").mkdir()
    write_run(tmp_path / "a", cell("v", noisy(5)), cell("w", noisy(9)), environment=at(3, "c", dirty=True))
    write_run(tmp_path / "deep" / "b", cell("v", noisy(8)), wrong, failed, environment=at(1, "a"))
    write_run(tmp_path / "c", cell("v", noisy(8)), cell("w", noisy(4)), environment=at(2, "b"))
    return tmp_path


def test_the_best_right_variant_run_by_run(runs):
    ((title, line),) = timelines(runs, print).items()
    assert title == "net · generic_forward · GPU of 2026 · float32 · full · 1 a call"
    assert [(stone.run, stone.variant, stone.revision) for stone in line] == [
        ("deep/b", "v", "a" * 12),
        ("c", "w", "b" * 12),
        ("a", "v", "c" * 12 + "+"),
    ]
    assert [stone.p50_ms for stone in line] == pytest.approx([8, 4, 5], rel=0.01)


def test_what_does_not_compare_stands_in_lines_of_its_own(runs):
    write_run(runs / "d", cell("v", noisy(0.1), scale="tiny"), environment=at(4, "d"))
    write_run(runs / "e", cell("v", noisy(0.1), dtype="bfloat16"), environment=None)
    assert sorted(map(len, timelines(runs, print).values())) == [1, 1, 3]


@pytest.mark.parametrize("text", ['{"schema": 1, "target"', "garbage\n", "[1, 2]\n"])
def test_a_run_that_cannot_be_read_costs_no_other_one_its_place(runs, capsys, text):
    (runs / "killed").mkdir()
    (runs / "killed" / "results.jsonl").write_text(text)
    assert main([str(runs)]) == 0
    told = capsys.readouterr()
    assert [date in told.out for date in ("2026-01-01", "2026-01-02", "2026-01-03")] == [True, True, True]
    assert told.err.startswith(f"skipped {runs / 'killed'}: ")


def test_table_and_plot(runs, capsys):
    assert main([str(runs)]) == 0
    lines = capsys.readouterr().out.splitlines()
    (last,) = [line for line in lines if "2026-01-03" in line]
    assert last.split()[-2:] == ["1.60×", "0.800×"], "8 / 5 and 4 / 5"
    assert lines[-1] == f"plot: {runs / 'history.svg'}"
    texts = ElementTree.parse(runs / "history.svg").getroot()
    assert texts.tag.endswith("svg")
    assert "2026-01-02" in (runs / "history.svg").read_text(), "matplotlib keeps each text as a comment"


def test_without_matplotlib_the_table_is_still_there(runs, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main([str(runs)]) == 0
    printed = capsys.readouterr().out
    assert "2026-01-03" in printed
    assert "no plot: matplotlib is not installed" in printed


def test_no_runs_is_one_line(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert "holds no runs" in capsys.readouterr().err
    write_run(tmp_path / "run", cell(status="failed", reason="planted"))
    assert main([str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
