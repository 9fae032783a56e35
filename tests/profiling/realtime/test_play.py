"""The loop on a clock that the test advances, where every time is known; on the wall clock; and in a dying process."""

import gc
import mmap
import subprocess
import sys

import numpy as np
import pytest
import torch
from as_user import ROOT, environment
from planted_loop import CELL, FakeClock, FakeLoop, RealLoop, played, summarized

from profiling.components.spec import ComponentSpec, Settings
from profiling.machine.gc_policy import gc_policy
from profiling.metrics.monitor import FrameMonitor
from profiling.realtime.play import Clock, FrameLoop
from profiling.realtime.recovery import FrameFiles
from profiling.results.frames import read_series, recover_series, series_file
from profiling.run.job import Job
from profiling.trace.counters import compile_ids

OBSERVE_MS = 0.5


@pytest.fixture
def clock():
    return FakeClock()


def slowly(clock):
    """Return an observer that takes half a millisecond and returns the frame's number."""

    def observe(frame, frame_ms):
        clock.pass_ms(OBSERVE_MS)
        return {"switches": float(frame)}

    return observe


def near(*values):
    return pytest.approx(list(values), abs=1e-6, nan_ok=True)


def test_frames_of_five_milliseconds(tmp_path, clock):
    series = played(tmp_path, FakeLoop(clock, lambda frame: 3.5, 1.5), clock, 100, observe=slowly(clock))
    assert series["action_ms"] == near(*(5.5 * np.arange(100)))
    assert series["delivered_ms"] == near(*(5.5 * np.arange(100) + 5))
    taken = {"frame": 5.0, "latency": 5.0, "host_only": 1.5, "device_only": 3.5, "wait": 3.5, "rest": 0.0}
    for name, ms in taken.items():
        assert series[f"{name}_ms"] == near(*[ms] * 100), name
    assert series["gap_ms"] == near(*[OBSERVE_MS] * 99, np.nan), "no frame comes after the last"
    assert (series["switches"] == np.arange(100)).all(), "what was observed is in the row of its frame"
    assert np.isnan(series["due_ms"]).all()
    section = summarized(series)
    assert section.frame_ms.p50 == pytest.approx(5)
    assert section.wall_fps == pytest.approx(1000 / 5.5)
    assert section.budget.parts["wait"].host_ms == pytest.approx(3.5)
    assert section.slow.count == section.late == 0


def test_two_frames_in_flight(tmp_path, clock):
    """The device works on one frame at a time: a frame that begins early is timed from the delivery before."""
    series = played(tmp_path, FakeLoop(clock, lambda frame: 5.0, 1.0), clock, 4, observe=slowly(clock), depth=2)
    assert series["action_ms"] == near(0, 1, 6.5, 11.5), "the first two at once, then one for each delivery"
    assert series["delivered_ms"] == near(6, 11, 16, 21)
    assert series["frame_ms"] == near(6, 5, 5, 5)
    assert series["latency_ms"] == near(6, 10, 9.5, 9.5)
    assert series["wait_ms"] == near(4, 3.5, 3.5, 4.5), "from the end of the next one's beginning on"
    assert np.isnan(series["rest_ms"]).all(), "the host's times of a frame lie in the interval of another"
    assert series["gap_ms"] == near(0, 0, 0, np.nan), "each had begun before the one before was there"


def test_two_frames_in_flight_on_an_idle_device(tmp_path, clock):
    """The device is done before the host has begun the next frame; the loop notices when it polls."""
    series = played(tmp_path, FakeLoop(clock, lambda frame: 0.25, 1.0), clock, 4, depth=2)
    assert series["action_ms"] == near(0, 1, 2, 3)
    assert series["delivered_ms"] == near(2, 3, 4, 4.25)
    assert series["frame_ms"] == near(2, 1, 1, 0.25)
    assert series["wait_ms"] == near(0, 0, 0, 0.25)


def test_a_paced_loop(tmp_path, clock):
    times = [4, 4, 23, 4, 4, 4, 4, 4]
    series = played(tmp_path, FakeLoop(clock, times.__getitem__), clock, 8, observe=slowly(clock), period=0.010)
    assert series["due_ms"] == near(0, 10, 20, 30.5, 41, 51.5, 61.5, 71.5), (
        "shifted by the observation of each frame that delays the next one"
    )
    assert series["action_ms"] == near(0, 10, 20, 43.5, 48, 52.5, 61.5, 71.5), (
        "a late frame delays the next ones until the loop has caught up"
    )
    assert series["delivered_ms"] == near(4, 14, 43, 47.5, 52, 56.5, 65.5, 75.5)
    assert series["frame_ms"] == near(*times), "waiting until it is due is no part of a frame"
    assert series["gap_ms"] == near(6, 6, OBSERVE_MS, OBSERVE_MS, OBSERVE_MS, 5, 6, np.nan)
    section = summarized(series, fps=100.0, pace="realtime")
    assert section.late == 3
    assert section.deadlines["100"].longest_run == 3
    assert section.deadlines["100"].longest_stall_ms == pytest.approx(13)
    assert section.deadlines["120"].misses == 1, "by its own time only one frame took long"


def test_a_paced_loop_with_two_frames_in_flight(tmp_path, clock):
    """A frame that is done while the loop waits for the next one is noticed at once, not when the next one is due."""
    times = [5, 5, 12, 5, 5]
    series = played(
        tmp_path, FakeLoop(clock, times.__getitem__, 1.0), clock, 5, observe=slowly(clock), depth=2, period=0.010
    )
    assert series["action_ms"] == near(0, 10, 20, 30, 40)
    assert series["delivered_ms"] == near(6, 16, 33, 38, 46)
    assert series["frame_ms"] == near(6, 6, 13, 5, 6)
    assert series["latency_ms"] == near(6, 6, 13, 8, 6)
    assert series["wait_ms"] == near(0, 0, 2, 0, 5), "only the frame of 12 ms, and the last one, are waited for"
    assert series["gap_ms"] == near(4, 4, 0, 2, np.nan), "the fourth had begun before the third was there"


@pytest.mark.parametrize("slow", ["start", "record"])
def test_nothing_of_the_harness_lies_between_the_moment_at_which_a_frame_is_due_and_its_begin(clock, slow):
    """The monitor starts within 25 ms, and a row is written within 3 ms; frames take 0.4 ms, and one is due each 10."""
    rows = []

    def record(row):
        clock.pass_ms(3.0 * (slow == "record"))
        rows.append(row)

    def start():
        clock.pass_ms(25.0 * (slow == "start"))

    loop = FrameLoop(FakeLoop(clock, lambda frame: 0.4), clock, lambda frame, ms: {}, period=0.010)
    loop.run(range(5), record, warmup=3, on_first=start)
    assert [row["action_ms"] for row in rows] == near(0, 10, 20, 30, 40)
    assert [row["due_ms"] for row in rows] == near(0, 10, 20, 30, 40)
    assert [row["delivered_ms"] for row in rows] == near(0.4, 10.4, 20.4, 30.4, 40.4)


@pytest.mark.parametrize("frame_ms", [9.8, 10.0])
def test_frames_that_need_their_whole_budget_are_not_late_by_what_the_harness_does_between_them(
    tmp_path, clock, frame_ms
):
    """Half a millisecond of observing, where 0.2 or 0 are left before the next of 200 frames is due."""
    pipeline = FakeLoop(clock, lambda frame: frame_ms)
    series = played(tmp_path, pipeline, clock, 200, observe=slowly(clock), period=0.010)
    assert series["action_ms"] == near(*series["due_ms"])
    assert np.diff(series["due_ms"]) == near(*[frame_ms + OBSERVE_MS] * 199), "the moments are shifted"
    assert summarized(series, fps=100.0, pace="realtime").late == 0


def test_frames_that_were_late_in_the_warm_up_do_not_make_timed_frames_late(clock):
    """The last warm-up frame takes four periods."""
    rows, times = [], {-1: 40.0}
    loop = FrameLoop(FakeLoop(clock, lambda frame: times.get(frame, 4.0)), clock, lambda frame, ms: {}, period=0.010)
    loop.run(range(3), rows.append, warmup=3)
    assert [row["action_ms"] - row["due_ms"] for row in rows] == near(0, 0, 0)
    assert [row["delivered_ms"] for row in rows] == near(4, 14, 24)


class Broken(FakeLoop):
    def begin(self, frame):
        if frame == 100:
            raise RuntimeError("planted")
        return super().begin(frame)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_crash_at_frame_100(tmp_path, clock, depth):
    pipeline = Broken(clock, lambda frame: 5.0 + 0.01 * frame)
    with pytest.raises(RuntimeError, match="planted"):
        played(tmp_path, pipeline, clock, 600, observe=slowly(clock), depth=depth)
    kept = 101 - depth  # with two in flight the last one was not delivered
    recovered = recover_series(tmp_path, CELL)
    series = read_series(tmp_path / series_file(CELL))
    assert recovered is not None
    assert {len(values) for values in series.values()} == {kept}
    for name, values in series.items():
        np.testing.assert_array_equal(values, recovered[name])
    np.testing.assert_allclose(series["device_only_ms"], 5.0 + 0.01 * np.arange(kept))
    assert (series["switches"] == np.arange(kept)).all()
    assert summarized(series).frames == kept
    if depth == 1:
        np.testing.assert_allclose(series["frame_ms"], 5.0 + 0.01 * np.arange(100), atol=1e-6)


def test_an_interruption_between_two_frames_keeps_the_last_one(tmp_path, clock):
    class Interrupted(FakeClock):
        def pause(self, until):
            if round(1e6 * until) == 1_050_000:  # frame 5 of 10 ms is waited for
                raise KeyboardInterrupt
            super().pause(until)

    clock = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        played(tmp_path, FakeLoop(clock, lambda frame: 4.0), clock, 10, period=0.010)
    series = recover_series(tmp_path, CELL)
    assert series is not None
    assert series["delivered_ms"] == near(4, 14, 24, 34, 44)


@pytest.mark.parametrize("period", [None, 0.01])
@pytest.mark.parametrize("depth", [1, 2])
def test_timed_frames_follow_the_warm_up_without_a_break(tmp_path, clock, depth, period):
    """The pipeline is full when the first timed frame begins."""
    rows, begun = [], []
    loop = FrameLoop(
        FakeLoop(clock, lambda frame: 5.0, 1.0), clock, lambda frame, ms: {"seen": frame}, depth=depth, period=period
    )
    loop.run(range(6), rows.append, warmup=4, on_first=lambda: begun.append(clock.now()))
    assert [row["seen"] for row in rows] == list(range(6)), "the warm-up is not observed and has no row"
    assert len(begun) == 1
    assert rows[0]["action_ms"] == pytest.approx(0, abs=0.3)
    alone = 6.0 if depth == 1 else 5.0
    expected = alone if period is None else 6.0
    assert [row["frame_ms"] for row in rows] == pytest.approx([expected] * 6, abs=0.3)
    if period is not None:
        assert [row["due_ms"] for row in rows] == pytest.approx([10 * i for i in range(6)])


FRAMES, FAULT = 120, 60
#: Causes that a shared machine may add to any frame.
MACHINE = (
    "run-queue wait",
    "CPU stolen by another virtual machine",
    "stage only",
    "outside all stages",
    "not attributed",
)


def monitored(folder, planted, frames=FRAMES, **how):
    """Return (series, section) of a loop in which only the planted fault collects garbage."""
    return observed(folder, RealLoop(planted), Clock(), frames, **how)


def observed(folder, pipeline, clock, frames=FRAMES, **how):
    """Return (series, section) of frames after which the machine is asked what happened in them."""
    monitor = FrameMonitor(torch.device("cpu"))
    try:
        with gc_policy("off"):
            monitor.start()
            series = played(folder, pipeline, clock, frames, observe=monitor, **how)
    finally:
        monitor.close()
    return series, summarized(series, monitor.events)


def named(section):
    """Return the causes of slow frames by frame, without those of the machine."""
    causes = {
        frame.frame: {cause for cause in frame.causes if not cause.startswith(MACHINE)} for frame in section.slow.frames
    }
    return {frame: names for frame, names in causes.items() if names}


def leaks(section):
    return [kind for kind, memory in section.memory.items() if memory.leak]


def test_a_loop_without_faults(tmp_path):
    for _ in range(3):  # a shared machine may get slower for a while, but not three times
        series, section = monitored(tmp_path, lambda frame: None)
        for name in ("compiles", "captures", "graphs_recorded", "collections", "collection_ms"):
            assert not series[name].any(), name
        assert section.frames == FRAMES
        assert named(section) == {}
        if not section.slope.growing and not leaks(section):
            return
    pytest.fail("three loops of identical frames in a row were said to grow or to leak")


def test_a_recompile(tmp_path):
    compiled = torch.compile(lambda x: x * 2 + 1, backend="eager", dynamic=False)
    first = {size: torch.ones(size) for size in (4, 5)}
    before = compile_ids()
    compiled(first[4])
    (known,) = compile_ids() - before
    series, section = monitored(tmp_path, lambda frame: compiled(first[5 if frame == FAULT else 4]))
    assert known.endswith("/0")
    assert named(section) == {FAULT: {f"recompile {known[:-1]}1 in only"}}
    assert np.flatnonzero(series["compiles"]).tolist() == [FAULT]


class Cyclic:
    def __init__(self):
        self.me = self


def test_a_garbage_collection(tmp_path):
    heap = [Cyclic() for _ in range(200_000)]
    series, section = monitored(tmp_path, lambda frame: gc.collect() if frame == FAULT else None)
    assert len(heap) == 200_000
    assert named(section) == {FAULT: {"garbage collection in only"}}
    assert series["collections"][FAULT] >= 1
    assert int(series["collection_ms"].argmax()) == FAULT
    assert 0 < series["collection_ms"][FAULT] < series["frame_ms"][FAULT]


def test_memory_that_grows(tmp_path):
    kept, size = [], 256 * 1024

    def planted(frame):
        kept.append(mmap.mmap(-1, size))  # new pages, even if the allocator has free ones
        kept[-1].write(b"x" * size)

    series, section = monitored(tmp_path, planted)
    assert leaks(section) == ["host_rss"]
    assert section.memory["host_rss"].bytes_per_frame == pytest.approx(size, rel=0.1)
    assert series["host_rss"][-1] - series["host_rss"][0] >= 0.9 * size * (FRAMES - 1)


class Stalling(FakeLoop):
    """Its host stands still for 40 ms before every 20th frame."""

    def begin(self, frame):
        if frame % 20 == 19:
            self.clock.pass_ms(40.0)
        return super().begin(frame)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_stall_every_20th_frame(tmp_path, clock, depth):
    _, section = observed(tmp_path, Stalling(clock, lambda frame: 0.0, 2.0), clock, depth=depth)
    stalls = [frame for frame in section.slow.frames if frame.ms > 40]
    # With two in flight the frame before waits for the host.
    assert {frame.frame for frame in stalls} == {frame - (depth - 1) for frame in range(19, FRAMES, 20)}
    assert all(any(cause.startswith(MACHINE) for cause in frame.causes) for frame in stalls), "no cause was planted"
    if depth == 1:
        assert section.slow.cause_ms["outside all stages"] == pytest.approx(6 * 40, rel=0.05)
    assert [frame.ms for frame in stalls] == near(*[42.0] * 6)


def test_a_paced_loop_on_the_wall_clock_waits_for_each_moment(tmp_path):
    series, _ = monitored(tmp_path, lambda frame: None, frames=30, period=0.01)
    assert (series["action_ms"] >= series["due_ms"]).all(), "no frame begins before it is due"
    assert (np.diff(series["due_ms"]) >= 10 - 1e-6).all(), "more where the harness was interrupted"
    waited = series["action_ms"][1:] - series["delivered_ms"][:-1]
    np.testing.assert_allclose(series["gap_ms"][:-1], waited, atol=1e-6)


DIES = """
import os, signal, sys
from pathlib import Path
from planted_loop import FakeClock, FakeLoop, played

class Dying(FakeLoop):
    def begin(self, frame):
        if frame == 100:
            {how}
        return super().begin(frame)

clock = FakeClock()
played(Path(sys.argv[1]), Dying(clock, lambda frame: 5.0 + 0.01 * frame, 1.0), clock, 600)
"""


@pytest.mark.parametrize(("how", "code"), [("os._exit(3)", 3), ("os.kill(os.getpid(), signal.SIGKILL)", -9)])
def test_frames_of_a_dead_process(tmp_path, how, code):
    here = str(ROOT / "tests" / "profiling" / "realtime")
    start = [sys.executable, "-c", DIES.format(how=how), str(tmp_path)]
    done = subprocess.run(start, env=environment(PYTHONPATH=f"{ROOT}:{here}"), capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert not (tmp_path / series_file(CELL)).exists()
    series = recover_series(tmp_path, CELL)
    assert series is not None
    np.testing.assert_allclose(series["frame_ms"], 6.0 + 0.01 * np.arange(100), atol=1e-6)
    for name, values in read_series(tmp_path / series_file(CELL)).items():
        np.testing.assert_array_equal(values, series[name])
    assert recover_series(tmp_path, CELL) is None, "nothing is left to recover a second time"


def job(folder):
    options = {"_target_": "profiling.realtime.options.LoopOptions", "fps": 50, "warmup_frames": 7}
    return Job(
        target="realtime",
        component=ComponentSpec("realtime", {"_target_": "x"}, {"_target_": "x"}),
        variant=CELL.removeprefix("realtime."),
        variant_options={},
        metrics={},
        settings=Settings(device="cpu"),
        run=str(folder),
        procedure={
            "plan": {
                "options": options | {"schedule": "overlap"},
                "pipeline": {"stages": {"only": {"component": "net"}}, "deliver": ["only"], "work": {"steps": 2}},
                "stages": {"only": {"name": "net", "module": {"_target_": "x"}, "inputs": {"_target_": "x"}}},
            }
        },
    )


def test_the_section_of_a_dead_process(tmp_path):
    assert FrameFiles().recover(tmp_path, job(tmp_path)) == {}, "there is no journal"
    clock = FakeClock()
    with pytest.raises(IndexError):
        played(tmp_path, FakeLoop(clock, ([5.0] * 99).__getitem__), clock, 600)
    section = FrameFiles().recover(tmp_path, job(tmp_path))["realtime"]
    assert (section.frames, section.target_fps, section.warmup_frames) == (99, 50.0, 7)
    assert (section.schedule, section.deliver, section.work) == ("overlap", "host", {"steps": 2})
    assert section.frame_ms.max == pytest.approx(5.0)
