"""The loop on a clock that the test advances, where every time is known."""

import numpy as np
import pytest
from planted_series import loop

from profiling.realtime.play import Clock, FrameLoop, series_names
from profiling.realtime.summary import summarize_frames
from profiling.results.frames import NAMES, Journal, read_series, recover_series, series_file

CELL = "realtime.planted"
OBSERVE_MS = 0.5


class FakeClock:
    """Counts whole microseconds; a pause lasts 250 of them, or until its moment if that is nearer."""

    def __init__(self):
        self.us, self.until = 1_000_000, 0.0  # a moment that was waited for may be a rounding later

    def now(self):
        return max(self.us / 1e6, self.until)

    def pass_ms(self, ms):
        self.us += round(1000 * ms)

    def pause(self, until):
        self.us = min(self.us + 250, round(1e6 * until))
        if self.us == round(1e6 * until):
            self.until = until


class FakeLoop:
    """Frames of planted times: `host_ms` of the host, then `device_ms(frame)` of a device with one frame at a time."""

    stages = ("only",)

    def __init__(self, clock, device_ms, host_ms=0.0, depth=1):
        self.clock, self.frame_ms, self.host_ms, self.depth = clock, device_ms, host_ms, depth
        self.free_us, self.done_us = 0, {}

    def begin(self, frame):
        self.clock.pass_ms(self.host_ms)
        self.free_us = max(self.free_us, self.clock.us) + round(1000 * self.frame_ms(frame))
        self.done_us[frame] = self.free_us
        return {"only": self.host_ms}

    def finished(self, frame):
        return self.clock.us >= self.done_us[frame]

    def wait(self, frame):
        self.clock.us = max(self.clock.us, self.done_us[frame])

    def device_ms(self, frame):
        return {"only": self.frame_ms(frame)}


def test_a_pause_sleeps_in_short_parts_and_leaves_the_last_one_to_the_caller(monkeypatch):
    slept = []
    monkeypatch.setattr("profiling.realtime.play.time.sleep", slept.append)
    monkeypatch.setattr("profiling.realtime.play.perf_counter", lambda: 10.0)
    for left in (0.001, 0.0025, 0.01):
        Clock().pause(10.0 + left)
    assert slept == pytest.approx([0.0005, 0.002])


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def play(tmp_path, clock):
    """Return a function that plays frames, each observed for half a millisecond, and returns their series."""

    def observe(frame, frame_ms):
        clock.pass_ms(OBSERVE_MS)
        return {"switches": float(frame)}

    def played(pipeline, frames, **how):
        journal = Journal(tmp_path, CELL, series_names(pipeline))
        try:
            FrameLoop(pipeline, clock, observe, **how).run(range(frames), journal.append)
        finally:
            journal.close()
        series = recover_series(tmp_path, CELL)
        assert set(series) == {*NAMES, "host_only_ms", "device_only_ms"}
        return series

    return played


def rows_of(clock, device_ms, frames, *, host_ms=0.0, depth=1, period=None, **how):
    """Return the rows of frames that follow a warm-up, whose observation takes no time."""
    rows = []
    planted, seen = FakeLoop(clock, device_ms, host_ms, depth), lambda frame, ms: {"seen": frame}
    frame_loop = FrameLoop(planted, clock, seen, period=period)
    frame_loop.run(range(frames), how.pop("record", rows.append), **how)
    return rows


def near(*values):
    return pytest.approx(list(values), abs=1e-6, nan_ok=True)


def column(rows, name):
    return [row[name] for row in rows]


def test_frames_of_five_milliseconds(play, clock):
    series = play(FakeLoop(clock, lambda frame: 3.5, 1.5), 100)
    assert series["action_ms"] == near(*(5.5 * np.arange(100)))
    assert series["delivered_ms"] == near(*(5.5 * np.arange(100) + 5))
    taken = {"frame": 5.0, "latency": 5.0, "host_only": 1.5, "device_only": 3.5, "wait": 3.5, "rest": 0.0}
    for name, ms in taken.items():
        assert series[f"{name}_ms"] == near(*[ms] * 100), name
    assert series["gap_ms"] == near(*[OBSERVE_MS] * 99, np.nan), "no frame comes after the last"
    assert (series["switches"] == np.arange(100)).all(), "what was observed is in the row of its frame"
    assert np.isnan(series["due_ms"]).all()


def test_two_frames_in_flight(play, clock):
    """The device works on one frame at a time: a frame that begins early is timed from the delivery before."""
    series = play(FakeLoop(clock, lambda frame: 5.0, 1.0, depth=2), 4)
    assert series["action_ms"] == near(0, 1, 6.5, 11.5), "the first two at once, then one for each delivery"
    assert series["delivered_ms"] == near(6, 11, 16, 21)
    assert series["frame_ms"] == near(6, 5, 5, 5)
    assert series["latency_ms"] == near(6, 10, 9.5, 9.5)
    assert series["wait_ms"] == near(4, 3.5, 3.5, 4.5), "from the end of the next one's beginning on"
    assert np.isnan(series["rest_ms"]).all(), "the host's times of a frame lie in the interval of another"
    assert series["gap_ms"] == near(0, 0, 0, np.nan), "each had begun before the one before was there"


def test_two_frames_in_flight_on_an_idle_device(clock):
    """The device is done before the host has begun the next frame; the loop notices when it polls."""
    rows = rows_of(clock, lambda frame: 0.25, 4, host_ms=1.0, depth=2)
    assert column(rows, "action_ms") == near(0, 1, 2, 3)
    assert column(rows, "delivered_ms") == near(2, 3, 4, 4.25)
    assert column(rows, "frame_ms") == near(2, 1, 1, 0.25)
    assert column(rows, "wait_ms") == near(0, 0, 0, 0.25)


def test_a_paced_loop(play, clock):
    times = [4, 4, 23, 4, 4, 4, 4, 4]
    series = play(FakeLoop(clock, times.__getitem__), 8, period=0.010)
    assert series["due_ms"] == near(0, 10, 20, 30.5, 41, 51.5, 61.5, 71.5), "shifted by what delays the next frame"
    assert series["action_ms"] == near(0, 10, 20, 43.5, 48, 52.5, 61.5, 71.5), "a late frame delays the next ones"
    assert series["delivered_ms"] == near(4, 14, 43, 47.5, 52, 56.5, 65.5, 75.5)
    assert series["frame_ms"] == near(*times), "waiting until it is due is no part of a frame"
    assert series["gap_ms"] == near(6, 6, OBSERVE_MS, OBSERVE_MS, OBSERVE_MS, 5, 6, np.nan)
    section = summarize_frames(series, loop(fps=100.0, pace="realtime"))
    assert section.late == 3
    assert section.deadlines["100"].longest_stall_ms == pytest.approx(13)
    assert section.deadlines["120"].misses == 1, "by its own time only one frame took long"


def test_a_paced_loop_with_two_frames_in_flight(play, clock):
    """A frame that is done while the loop waits for the next one is noticed at once, not when the next one is due."""
    series = play(FakeLoop(clock, [5, 5, 12, 5, 5].__getitem__, 1.0, depth=2), 5, period=0.010)
    assert series["action_ms"] == near(0, 10, 20, 30, 40)
    assert series["delivered_ms"] == near(6, 16, 33, 38, 46)
    assert series["frame_ms"] == near(6, 6, 13, 5, 6)
    assert series["latency_ms"] == near(6, 6, 13, 8, 6)
    assert series["wait_ms"] == near(0, 0, 2, 0, 5), "only the frame of 12 ms, and the last one, are waited for"
    assert series["gap_ms"] == near(4, 4, 0, 2, np.nan), "the fourth had begun before the third was there"


@pytest.mark.parametrize("slow", ["start", "record", "last warm-up frame"])
def test_neither_the_harness_nor_the_warm_up_makes_a_timed_frame_late(clock, slow):
    """The monitor starts within 25 ms, or a row is written within 3 ms; frames take 0.4 ms, and one is due each 10."""
    rows, times = [], {-1: 40.0} if slow == "last warm-up frame" else {}

    def record(row):
        clock.pass_ms(3.0 * (slow == "record"))
        rows.append(row)

    def start():
        clock.pass_ms(25.0 * (slow == "start"))

    rows_of(clock, lambda n: times.get(n, 0.4), 5, period=0.010, record=record, warmup=3, on_first=start)
    assert column(rows, "due_ms") == column(rows, "action_ms") == near(0, 10, 20, 30, 40)
    assert column(rows, "delivered_ms") == near(0.4, 10.4, 20.4, 30.4, 40.4)


@pytest.mark.parametrize("frame_ms", [9.8, 10.0])
def test_frames_that_need_their_whole_budget_are_not_late_by_what_the_harness_does_between_them(play, clock, frame_ms):
    """Half a millisecond of observing, where 0.2 or 0 are left before the next of 200 frames is due."""
    series = play(FakeLoop(clock, lambda frame: frame_ms), 200, period=0.010)
    assert series["action_ms"] == near(*series["due_ms"])
    assert np.diff(series["due_ms"]) == near(*[frame_ms + OBSERVE_MS] * 199), "the moments are shifted"
    section = summarize_frames(series, loop(fps=100.0, pace="realtime"), media_rate=100.0)
    assert section.late == 0
    assert [section.wall_fps, section.audio_rtf] == pytest.approx([100, 1], rel=1e-3)


@pytest.mark.parametrize(("depth", "period", "frame_ms"), [(1, None, 6), (2, None, 5), (2, 0.01, 6)])
def test_timed_frames_follow_the_warm_up_without_a_break(clock, depth, period, frame_ms):
    """The pipeline is full when the first timed frame begins."""
    begun, how = [], {"warmup": 4, "on_first": lambda: begun.append(clock.now())}
    rows = rows_of(clock, lambda frame: 5.0, 6, host_ms=1.0, depth=depth, period=period, **how)
    assert column(rows, "seen") == list(range(6)), "the warm-up is not observed and has no row"
    assert len(begun) == 1
    assert rows[0]["action_ms"] == pytest.approx(0, abs=0.3)
    assert column(rows, "frame_ms") == pytest.approx([frame_ms] * 6, abs=0.3)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_crash_at_frame_100(play, clock, tmp_path, depth):
    def device_ms(frame):
        if frame == 100:
            raise RuntimeError("planted")
        return 5.0 + 0.01 * frame

    with pytest.raises(RuntimeError, match="planted"):
        play(FakeLoop(clock, device_ms, depth=depth), 600)
    kept = 101 - depth  # with two in flight the last one was not delivered
    recovered, series = recover_series(tmp_path, CELL), read_series(tmp_path / series_file(CELL))
    assert {len(values) for values in series.values()} == {kept}
    for name, values in series.items():
        np.testing.assert_array_equal(values, recovered[name])
    np.testing.assert_allclose(series["device_only_ms"], 5.0 + 0.01 * np.arange(kept))
    assert (series["switches"] == np.arange(kept)).all()
    assert recover_series(tmp_path, CELL) is None, "nothing is left to recover a second time"


def test_an_interruption_between_two_frames_keeps_the_last_one(play, clock, tmp_path):
    pause = clock.pause

    def interrupted(until):
        if round(1e6 * until) == 1_050_000:  # frame 5 of 10 ms is waited for
            raise KeyboardInterrupt
        pause(until)

    clock.pause = interrupted
    with pytest.raises(KeyboardInterrupt):
        play(FakeLoop(clock, lambda frame: 4.0), 10, period=0.010)
    assert recover_series(tmp_path, CELL)["delivered_ms"] == near(4, 14, 24, 34, 44)
