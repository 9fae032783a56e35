"""Rounds: merged records, speedup and break-even calls; order of the cells and resuming in the real main job."""

import re

import pytest
from msgspec.structs import replace

from profiling.compare.__main__ import main as compare
from profiling.results.jsonl import RESULTS_FILE, append_record, decode_record, encode_record, read_records
from profiling.results.measured import (
    FrameRate,
    LatencyConditions,
    Metrics,
    Prepare,
    SlowFrame,
    SlowFrames,
)
from profiling.results.record import NOT_ENDED, Record
from profiling.results.rounds import merged
from profiling.results.run_folder import keep_newest_lines
from profiling.results.stats import summarize
from profiling.results.verdicts import break_even_calls, samples_by_round, with_speedup


def record(variant="v", **fields) -> Record:
    return Record(**{"target": "t", "component": "c", "variant": variant, "status": "ok", **fields})


def measured(samples, variant="v", **conditions) -> Record:
    wall = replace(summarize(samples), stopped_by="interval")
    base = LatencyConditions(cold=False, warmup_seconds=0.1, settled=True)
    fps = FrameRate(mean=3000 / wall.mean, min=0.0, max=0.0)
    metrics = Metrics(wall_ms=wall, latency=replace(base, **conditions), fps=fps)
    return record(variant, metrics=metrics, frames_per_call=3, prepare=Prepare(seconds=samples[0]))


def of_rounds(*rounds) -> Record:
    """Return the record of a cell that ran so many times."""
    return merged([replace(each, round=number) for number, each in enumerate(rounds, 1)])


def test_the_record_of_two_rounds_holds_the_samples_of_both():
    limits = ({"power": 0.2}, {"power": 0.6, "heat": 0.1})
    alone = measured([1.0, 3.0], cpu_lost_share=0.2, sm_clock_median_mhz=5, limited_share=limits[0])
    assert samples_by_round(alone) == ((1.0, 3.0),)
    first = of_rounds(alone)
    assert (len(first.rounds), first.round) == (1, None)
    second = measured([5.0, 7.0, 9.0], settled=False, cpu_lost_share=0.3, limited_share=limits[1])
    ended = replace(second.metrics.wall_ms, stopped_by="time")
    second = replace(second, metrics=replace(second.metrics, wall_ms=ended))
    both = decode_record(encode_record(of_rounds(alone, second)))
    assert len(both.rounds) == 2
    wall, conditions = both.metrics.wall_ms, both.metrics.latency
    assert (wall.n, wall.p50, wall.mean, wall.samples) == (5, 5.0, 5.0, (1.0, 3.0, 5.0, 7.0, 9.0))
    assert wall.stopped_by == "time", "what ended the newest round"
    assert [part.wall_ms.p50 for part in both.rounds] == [2.0, 7.0]
    assert samples_by_round(both) == ((1.0, 3.0), (5.0, 7.0, 9.0))
    fps = both.metrics.fps
    assert (fps.mean, fps.min, fps.max) == pytest.approx((600.0, 3000 / 9, 3000.0))
    assert (conditions.settled, conditions.cpu_lost_share) == (False, pytest.approx(0.25))
    assert conditions.limited_share == pytest.approx({"power": 0.4, "heat": 0.05})
    assert conditions.sm_clock_median_mhz is None, "the second round did not measure it"
    assert wall.ci95 is None, "two rounds do not know how far rounds lie apart"
    third = measured([6.0], cpu_lost_share=0.7, limited_share={"heat": 0.5})
    three = of_rounds(alone, second, third).metrics.latency
    assert three.limited_share == pytest.approx({"power": 0.8 / 3, "heat": 0.2})
    assert three.cpu_lost_share == pytest.approx(0.4), "each round has the same weight"


def test_slow_calls_of_all_rounds_are_added():
    def with_slow(samples, call, **cause_ms):
        frame = SlowFrame(frame=call, ms=max(samples), causes=tuple(cause_ms))
        slow = SlowFrames(
            threshold_ms=min(samples), count=1, causes=dict.fromkeys(cause_ms, 1), cause_ms=cause_ms, frames=(frame,)
        )
        cell = measured(samples)
        return replace(cell, metrics=replace(cell.metrics, slow_calls=slow))

    first = with_slow([1.0, 9.0], 1, wait=7.0)
    both = of_rounds(first, with_slow([8.0, 1.5, 1.5], 0, wait=6.0, steal=6.5))
    slow = both.metrics.slow_calls
    assert (slow.count, slow.causes, slow.cause_ms) == (2, {"wait": 2, "steal": 1}, {"wait": 13.0, "steal": 6.5})
    assert slow.threshold_ms == 1.5, "that of the newest round"
    assert [each.frame for each in slow.frames] == [1]
    later = of_rounds(first, with_slow([20.0, 1.0], 0, wait=6.0))
    assert [each.frame for each in later.metrics.slow_calls.frames] == [2], "calls are numbered over all rounds"


def test_a_round_that_is_not_ok_replaces_the_record_of_the_cell():
    failed = measured([2.0]).with_status("failed", "planted")
    cell = of_rounds(measured([1.0, 3.0]), failed)
    assert (cell.status, cell.reason, cell.rounds) == ("failed", "planted", None)
    assert cell.metrics == failed.metrics


def test_lines_of_rounds_are_merged_when_they_are_read(tmp_path):
    """Each round is a line; the newest of a round counts, and a line of no round begins the cell anew."""
    first, second = replace(measured([1.0, 3.0]), round=1), replace(measured([5.0]), round=2)
    for line in (first, replace(first, notes=("with its compile log",)), second):
        append_record(tmp_path, line)
    (read,) = read_records(tmp_path).records
    assert (read.metrics.wall_ms.samples, read.notes, read.round) == ((1.0, 3.0, 5.0), ("with its compile log",), None)
    append_record(tmp_path, measured([9.0]).with_status("failed", NOT_ENDED))  # resumed: it begins once more
    append_record(tmp_path, first)
    (read,) = read_records(tmp_path).records
    assert read.metrics.wall_ms.samples == (1.0, 3.0)
    keep_newest_lines(tmp_path)
    (line,) = (tmp_path / RESULTS_FILE).read_text().splitlines()
    assert decode_record(line.encode()) == read


def of_no_time(variant):
    return record(variant, metrics=Metrics(wall_ms=summarize([0.0, 0.0]), fps=FrameRate(mean=0, min=0, max=0)))


def test_a_speedup_is_the_ratio_of_medians_of_two_cells_that_are_ok_and_timed():
    baseline, faster = measured([4.0] * 20, "baseline"), measured([2.0] * 20)
    speedup = with_speedup(faster, baseline).speedup
    assert (speedup.vs, speedup.wall) == ("baseline", 2.0)
    assert speedup.break_even_calls == 0, "it was prepared in less time"
    for never in (measured([8.0] * 20), baseline, record()):
        assert break_even_calls(never, baseline) is None
    failed, zero = baseline.with_status("failed", "planted"), of_no_time("baseline")
    for one, other in ((faster, None), (faster, failed), (baseline, baseline), (record(), baseline), (faster, zero)):
        assert with_speedup(one, other).speedup is None
    assert with_speedup(of_no_time("v"), baseline).speedup is None
    assert of_rounds(zero, zero).metrics.wall_ms.n == 4


#: The second keeps tensors of its first call, which the reference in float32 must not find.
CELLS = ("component=[net,caches]", "variant=[baseline]", "isolation=none", "rounds=2", "dtype=bfloat16")


def test_rounds_take_turns(profile, capsys):
    first = profile(*CELLS)
    assert first.code == 0, first.err
    order = [("net", "1"), ("caches", "1"), ("net", "2"), ("caches", "2")]
    assert re.findall(r"/4\] (\w+) · baseline · round (\d): ok", first.err) == order
    assert [line["component"] for line in first.lines] == ["net", "caches"]
    for cell, record in first.records.items():
        wall = record.metrics.wall_ms
        assert 0 < record.parity.rel_l2 < 0.02, cell
        assert len(record.rounds) == 2, cell
        assert sum(part.wall_ms.n for part in record.rounds) == wall.n == len(wall.samples)
    assert compare([str(first.folder), str(first.folder)]) == 0
    printed = capsys.readouterr().out
    assert "2 same" in printed
    assert "One round" not in printed


def test_a_loop_keeps_the_frames_of_every_round(realtime):
    few = ("loop.frames=8", "loop.warmup_frames=2", "isolation=none", "rounds=2")
    outcome = realtime("pipeline=mine", "variant=[baseline]", *few)
    assert outcome.code == 0, outcome.err
    (record,) = outcome.records.values()
    assert record.roofline is None, "ceilings=off"
    assert [(part.frame_ms.n, part.wall_ms) for part in record.rounds] == [(8, None)] * 2
    assert record.rounds[1].frame_ms.p50 == pytest.approx(record.realtime.frame_ms.p50)
    cells = outcome.folder / "cells"
    names = {"mine.baseline.frames.npz", "mine.baseline.round1.frames.npz"}  # the last round has the cell's name
    assert {path.name for path in cells.glob("*.npz")} == names
    assert compare([str(outcome.folder), str(outcome.folder)]) == 0
