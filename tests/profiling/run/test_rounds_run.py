"""Rounds of the real main job: the order of the cells, the records on disk, and resuming in the middle."""

import pytest

from profiling.compare.__main__ import main as compare

CELLS = ("component=[net,net_made]", "variant=[baseline]", "isolation=none", "rounds=2")


def cells_and_rounds(lines):
    return [(line["component"], len(line.get("rounds", ()))) for line in lines]


def test_rounds_take_turns_and_a_run_resumes_in_the_middle(profile, capsys):
    first = profile(*CELLS)
    assert first.code == 0, first.err
    assert cells_and_rounds(first.lines) == [("net", 1), ("net_made", 1), ("net", 2), ("net_made", 2)]
    for cell, record in first.records.items():
        wall = record.metrics.wall_ms
        assert len(record.rounds) == 2, cell
        assert sum(part.wall_ms.n for part in record.rounds) == wall.n == len(wall.samples)
    before = first.records["net_made", "baseline"].metrics.wall_ms.samples

    results = first.folder / "results.jsonl"
    results.write_text("\n".join(results.read_text().splitlines()[:3]) + "\n")  # as if stopped in the last of four
    second = profile(*CELLS, f"resume={first.folder}", folder=first.folder)
    assert second.code == 0, second.err
    assert "3 of 4 rounds of cells done, 1 left" in second.err
    assert cells_and_rounds(second.lines) == [("net", 1), ("net_made", 1), ("net", 2), ("net_made", 2)]
    record = second.records["net_made", "baseline"]
    kept = record.rounds[0].wall_ms.n
    samples = record.metrics.wall_ms.samples
    assert samples[:kept] == before[:kept], "the first round does not run again"
    assert samples[kept:] != before[kept:], "the second is"

    assert compare([str(first.folder), str(first.folder)]) == 0
    printed = capsys.readouterr().out
    assert "2 same" in printed
    assert "One round" not in printed


def test_a_cell_that_fails_in_a_round_runs_in_no_other(profile):
    outcome = profile("component=[net]", "variant=[baseline,faulty_raise]", "isolation=none", "rounds=2")
    assert outcome.code == 1
    assert [(line["variant"], line["status"]) for line in outcome.lines] == [
        ("baseline", "ok"),
        ("faulty_raise", "failed"),
        ("baseline", "ok"),
    ]
    reason = outcome.records["net", "faulty_raise"].reason
    assert reason.startswith("round 1 of 2: ")
    assert "planted failure" in reason


def test_one_round_leaves_the_record_as_it_is(profile):
    outcome = profile("component=[net]", "variant=[baseline]", "isolation=none")
    assert [line.get("rounds") for line in outcome.lines] == [None]


@pytest.mark.parametrize("rounds", ["0", "1.5", "true", "many"])
def test_a_bad_number_of_rounds_is_refused(profile, rounds):
    outcome = profile("component=[net]", "variant=[baseline]", "isolation=none", f"rounds={rounds}")
    assert outcome.code == 2
    assert "rounds=" in outcome.err
    assert "whole number" in outcome.err


def test_a_loop_keeps_the_frames_of_every_round(realtime):
    outcome = realtime("variant=[baseline]", "loop.frames=8", "loop.warmup_frames=2", "isolation=none", "rounds=2")
    assert outcome.code == 0, outcome.err
    (record,) = outcome.records.values()
    assert [part.frame_ms.n for part in record.rounds] == [8, 8]
    cells = outcome.folder / "cells"
    assert {path.name for path in cells.glob("*.npz")} == {
        f"realtime.baseline.{stem}frames.npz" for stem in ("", "round1.", "round2.")
    }
    assert compare([str(outcome.folder), str(outcome.folder)]) == 0
