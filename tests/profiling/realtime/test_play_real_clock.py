"""Faults that really happen, on the wall's clock, watched by what watches every loop: each is named where it was."""

import gc
import mmap
import time

import numpy as np
import pytest
import torch
from planted_loop import RealLoop, judged, played

from profiling.machine.gc_policy import garbage
from profiling.realtime.monitor import FrameWatch
from profiling.realtime.play import WallClock
from profiling.trace.counters import compile_ids

FRAMES, FAULT = 120, 60
#: What a machine that others use may do to any frame.
MACHINE = {"host descheduled", "not attributed"}


def watched(folder, planted, frames=FRAMES, **how):
    """Return (the series, the section) of a loop in which only the planted collects garbage."""
    watch = FrameWatch(torch.device("cpu"))
    try:
        with garbage("off"):
            watch.start()
            series = played(folder, RealLoop(planted), WallClock(), frames, look=watch, **how)
    finally:
        watch.close()
    return series, judged(series, events=watch.events)


def named(section):
    """Return the causes of slow frames by frame, without what the machine may do."""
    causes = {frame["frame"]: set(frame["causes"]) - MACHINE for frame in section["slow"]["frames"]}
    return {frame: names for frame, names in causes.items() if names}


def leaks(section):
    return [kind for kind, memory in section["memory"].items() if memory["leak"]]


def test_nothing_is_named_where_nothing_is_planted(tmp_path):
    for _ in range(3):  # a machine that others use may grow slower for a while, but not three times
        series, section = watched(tmp_path, lambda frame: None)
        for name in ("compiles", "captures", "graphs_recorded", "collections", "collection_ms"):
            assert not series[name].any(), name
        assert section["frames"] == FRAMES
        assert named(section) == {}
        if not section["slope"]["growing"] and not leaks(section):
            return
    pytest.fail("three loops in a row of which each frame does the same are said to grow or to leak")


def test_a_recompile(tmp_path):
    compiled = torch.compile(lambda x: x * 2 + 1, backend="eager", dynamic=False)
    first = {size: torch.ones(size) for size in (4, 5)}
    before = compile_ids()
    compiled(first[4])
    (known,) = compile_ids() - before
    series, section = watched(tmp_path, lambda frame: compiled(first[5 if frame == FAULT else 4]))
    assert known.endswith("/0")
    assert named(section) == {FAULT: {f"recompile {known[:-1]}1"}}
    assert np.flatnonzero(series["compiles"]).tolist() == [FAULT]


class Cyclic:
    def __init__(self):
        self.me = self


def test_a_collection_of_garbage(tmp_path):
    heap = [Cyclic() for _ in range(200_000)]
    series, section = watched(tmp_path, lambda frame: gc.collect() if frame == FAULT else None)
    assert len(heap) == 200_000
    assert named(section) == {FAULT: {"garbage collection"}}
    assert series["collections"][FAULT] >= 1
    assert int(series["collection_ms"].argmax()) == FAULT
    assert 0 < series["collection_ms"][FAULT] < series["frame_ms"][FAULT]


def test_memory_that_grows(tmp_path):
    kept, size = [], 256 * 1024

    def planted(frame):
        kept.append(mmap.mmap(-1, size))  # pages of its own, whatever the allocator has left over
        kept[-1].write(b"x" * size)

    series, section = watched(tmp_path, planted)
    assert leaks(section) == ["host_rss"]
    assert section["memory"]["host_rss"]["bytes_per_frame"] == pytest.approx(size, rel=0.1)
    assert series["host_rss"][-1] - series["host_rss"][0] >= 0.9 * size * (FRAMES - 1)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_stall_every_20th_frame(tmp_path, depth):
    planted = set(range(19, FRAMES, 20))
    _, section = watched(tmp_path, lambda frame: time.sleep(0.04 * (frame in planted)), depth=depth)
    slow = {frame["frame"]: set(frame["causes"]) for frame in section["slow"]["frames"]}
    behind = {frame - (depth - 1) for frame in planted}  # two in the making: the one before waits for the host
    assert behind <= set(slow)
    assert set().union(*slow.values()) <= MACHINE, "a sleep is none of the causes that are known"
    assert all(frame["ms"] >= 40 for frame in section["slow"]["frames"] if frame["frame"] in behind)


def test_a_paced_loop_waits_for_each_moment(tmp_path):
    series, _ = watched(tmp_path, lambda frame: None, frames=30, period=0.01)
    assert (series["action_ms"] >= series["due_ms"]).all(), "no frame begins before it is due"
    np.testing.assert_allclose(series["due_ms"], 10 * np.arange(30), atol=1e-6)
    early = series["delivered_ms"][:-1] < series["due_ms"][1:]
    assert early.any(), "frames of 2 ms every 10 ms"
    waited = series["action_ms"][1:] - series["delivered_ms"][:-1]
    np.testing.assert_allclose(series["gap_ms"][:-1], waited, atol=1e-6)
