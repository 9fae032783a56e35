"""Times of different work are never called faster: neither by the comparison nor in a line of the history."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hand_made import cell, dated, noisy, write_run
from msgspec import to_builtins

from profiling.compare import main
from profiling.comparison.judgement import judge
from profiling.comparison.side import read_side
from profiling.comparison.timeline import timelines
from profiling.comparison.work import other_work
from profiling.results.records import RESULTS_FILE
from profiling.results.stats import summarize

COMMITTED = Path(__file__).parents[3] / "docs" / "results" / "h200_realtime"
LOOP = {
    **{"pace": "free", "schedule": "sequential", "deliver": "host", "steps": 4, "commit": "fused", "guidance": 1.5},
    "sound": {"window": "windowed", "decoded": 30, "of": 120},
}
OTHER = [
    ({"steps": 1}, "steps 4 → 1"),
    ({"guidance": None}, "guidance 1.5 → off"),
    ({"guidance": 3.0}, "guidance 1.5 → 3.0"),
    ({"deliver": "device"}, "deliver host → device"),
    ({"commit": "separate"}, "commit fused → separate"),
    ({"pace": "realtime"}, "pace free → realtime"),
    ({"sound": {"window": "windowed", "decoded": 15, "of": 120}}, "sound latents 30 → 15"),
    ({"sound": {"window": "exact", "decoded": 120, "of": 120}}, "sound windowed → exact, sound latents 30 → 120"),
]
ALIKE = [{"schedule": "overlap"}, {"garbage": "on"}, {"frames": 60}, {"steps": None, "guidance": None}, {"sound": None}]


def loop(changes=None, **facts):
    """A loop that plays frames of 10 ms, or what `facts` say; a change to None takes a fact away."""
    times = to_builtins(summarize(noisy(10)))
    section = {"frame_ms": {key: times[key] for key in ("n", "p50", "mean", "ci95")}, **LOOP, **(changes or {})}
    known = {key: value for key, value in section.items() if value is not None}
    return cell("v", target="realtime", component="realtime", parameters=1188129600, realtime=known, **facts)


@pytest.mark.parametrize(("changed", "told"), OTHER)
def test_a_loop_of_other_work_is_not_compared(changed, told):
    assert other_work(loop(), loop(changed)) == told


@pytest.mark.parametrize("changed", ALIKE)
def test_a_way_to_run_it_and_what_only_one_side_says_are_no_other_work(changed):
    assert other_work(loop(), loop(changed)) == ""


def test_an_exact_window_is_the_same_whether_its_latents_were_told_or_not():
    told, untold = ({"sound": {"window": "exact", **more}} for more in ({"decoded": 120, "of": 120}, {}))
    assert other_work(loop(told), loop(untold)) == ""


@pytest.mark.parametrize("other", [cell(parameters=2), replace(loop(), parameters=2)])
def test_another_number_of_parameters_is_other_work(other):
    assert other_work(replace(other, parameters=3), other) == "parameters 3 → 2"
    assert other_work(replace(other, parameters=None), other) == ""


def test_fewer_passes_are_not_faster(tmp_path, capsys):
    """The committed loop with half the frame times: a gain, until the record says that it made half the passes."""
    runs = {"a": {"steps": 4}, "same": {}, "less": {"steps": 1}}
    for name, changed in runs.items():
        shutil.copytree(COMMITTED, tmp_path / name)
        file = tmp_path / name / RESULTS_FILE
        records = [json.loads(line) for line in file.read_text().splitlines()]
        for record in records:
            record["realtime"] |= {"steps": 4, **changed}
            stem = f"{record['component']}.{record['variant']}"
            times = noisy(20 if name == "a" else 10, seed=len(name))
            (tmp_path / name / "cells").mkdir(exist_ok=True)
            np.savez(tmp_path / name / "cells" / f"{stem}.frames.npz", frame_ms=np.array(times))
        file.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert main([str(tmp_path / "a"), str(tmp_path / "same")]) == 0
    assert "2 faster" in capsys.readouterr().out
    assert main([str(tmp_path / "a"), str(tmp_path / "less")]) == 2
    printed = capsys.readouterr().out
    assert "faster" not in printed
    assert printed.count("not the same work: steps 4 → 1") == 2
    assert "2 not compared" in printed


def test_other_work_blocks_and_has_no_ratio(tmp_path):
    sides = [
        read_side(write_run(tmp_path / name, cell(samples=noisy(ms, seed=number), parameters=number)))
        for number, (name, ms) in enumerate((("a", 2), ("b", 1)), 1)
    ]
    (judged,) = judge(*sides, 0.02)
    assert (judged.verdict, judged.ratio, judged.blocks) == ("not compared", None, True)
    assert judged.reason == "not the same work: parameters 1 → 2"


@pytest.mark.parametrize("changed", [changed for changed, _ in OTHER])
def test_a_loop_of_other_work_is_a_line_of_its_own_in_the_history(tmp_path, changed):
    for number, made in enumerate((None, changed, {"schedule": "overlap"})):
        write_run(tmp_path / str(number), loop(made), environment=dated(f"2026-01-0{number + 1}"))
    assert sorted([stone.run for stone in line] for line in timelines(tmp_path, print).values()) == [["0", "2"], ["1"]]


def test_another_number_of_parameters_is_a_line_of_its_own(tmp_path):
    for number in (1, 2):
        write_run(tmp_path / str(number), cell(samples=noisy(1), parameters=number))
    titles = list(timelines(tmp_path, print))
    assert [title.partition("full · ")[2] for title in titles] == [f"{n} parameters · 1 a call" for n in (1, 2)]
