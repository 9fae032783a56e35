"""The loop on a clock that is moved by hand: every time it writes down is known beforehand."""

import numpy as np
import pytest
from planted_loop import CELL, FakeClock, FakeLoop, judged, played

from profiling.realtime.play import Player
from profiling.results.frames import read_series, recover_series, series_file

LOOK_MS = 0.5


@pytest.fixture
def clock():
    return FakeClock()


def slow_look(clock):
    """Return a look that takes half a millisecond and finds the frame's number."""

    def look(frame, frame_ms):
        clock.pass_ms(LOOK_MS)
        return {"switches": float(frame)}

    return look


def near(*values):
    return pytest.approx(list(values), abs=1e-6, nan_ok=True)


def test_frames_of_five_milliseconds(tmp_path, clock):
    series = played(tmp_path, FakeLoop(clock, lambda frame: 3.5, 1.5), clock, 100, look=slow_look(clock))
    assert series["action_ms"] == near(*(5.5 * np.arange(100)))
    assert series["delivered_ms"] == near(*(5.5 * np.arange(100) + 5))
    taken = {"frame": 5.0, "latency": 5.0, "host_made": 1.5, "device_made": 3.5, "wait": 3.5, "rest": 0.0}
    for name, ms in taken.items():
        assert series[f"{name}_ms"] == near(*[ms] * 100), name
    assert series["gap_ms"] == near(*[LOOK_MS] * 99, np.nan), "no frame comes after the last"
    assert (series["switches"] == np.arange(100)).all(), "what a look finds is in the row of its frame"
    assert np.isnan(series["due_ms"]).all()
    section = judged(series)
    assert section["frame_ms"]["p50"] == pytest.approx(5)
    assert section["wall_fps"] == pytest.approx(1000 / 5.5)
    assert section["budget"]["parts"]["wait"]["host_ms"] == pytest.approx(3.5)
    assert section["slow"]["count"] == section["late"] == 0


def test_a_stall_every_50th_frame(tmp_path, clock):
    series = played(tmp_path, FakeLoop(clock, lambda frame: 40.0 if frame % 50 == 49 else 5.0), clock, 600)
    section = judged(series)
    assert sorted(frame["frame"] for frame in section["slow"]["frames"]) == list(range(49, 600, 50))
    assert [frame["ms"] for frame in section["slow"]["frames"]] == near(*[40] * 12)
    assert section["spikes"] == {"period": 50, "count": 12, "first": 49}
    assert section["late"] == 12
    assert section["deadlines"]["24"]["misses"] == 0, "40 ms are within 1000 / 24"
    assert not section["slope"]["growing"]


def test_a_drift_of_one_percent_a_frame(tmp_path, clock):
    section = judged(played(tmp_path, FakeLoop(clock, lambda frame: 5.0 * (1 + 0.01 * frame)), clock, 200))
    assert section["slope"]["growing"]
    assert section["slope"]["us_per_frame"] == pytest.approx(50, rel=1e-3)
    assert not section["steady"]["settled"]
    assert section["frame_ms"]["max"] == pytest.approx(5 * 2.99)


def test_two_frames_in_the_making(tmp_path, clock):
    """The device makes one by one: what begins early waits for its turn, and counts from the delivery before it."""
    series = played(tmp_path, FakeLoop(clock, lambda frame: 5.0, 1.0), clock, 4, look=slow_look(clock), depth=2)
    assert series["action_ms"] == near(0, 1, 6.5, 11.5), "the first two at once, then one for each delivery"
    assert series["delivered_ms"] == near(6, 11, 16, 21)
    assert series["frame_ms"] == near(6, 5, 5, 5)
    assert series["latency_ms"] == near(6, 10, 9.5, 9.5)
    assert series["wait_ms"] == near(4, 3.5, 3.5, 4.5), "from the end of the next one's beginning on"
    assert np.isnan(series["rest_ms"]).all(), "the host's times of a frame lie in the interval of another"
    assert series["gap_ms"] == near(LOOK_MS, LOOK_MS, 0, np.nan), "the last one had begun before the third was there"


def test_two_frames_in_the_making_on_an_idle_device(tmp_path, clock):
    """A device that is done before the host has begun the next frame: the loop learns of it when it looks."""
    series = played(tmp_path, FakeLoop(clock, lambda frame: 0.25, 1.0), clock, 4, depth=2)
    assert series["action_ms"] == near(0, 1, 2, 3)
    assert series["delivered_ms"] == near(2, 3, 4, 4.25)
    assert series["frame_ms"] == near(2, 1, 1, 0.25)
    assert series["wait_ms"] == near(0, 0, 0, 0.25)


def test_a_paced_loop(tmp_path, clock):
    times = [4, 4, 23, 4, 4, 4, 4, 4]
    series = played(tmp_path, FakeLoop(clock, times.__getitem__), clock, 8, look=slow_look(clock), period=0.010)
    assert series["due_ms"] == near(0, 10, 20, 30, 40, 50, 60, 70)
    assert series["action_ms"] == near(0, 10, 20, 43.5, 48, 52.5, 60, 70), (
        "a late one delays the next until made up for"
    )
    assert series["delivered_ms"] == near(4, 14, 43, 47.5, 52, 56.5, 64, 74)
    assert series["frame_ms"] == near(*times), "waiting until it is due is no part of a frame"
    assert series["gap_ms"] == near(6, 6, LOOK_MS, LOOK_MS, LOOK_MS, 3.5, 6, np.nan)
    section = judged(series, fps=100.0, pace="realtime")
    assert section["late"] == 3
    assert section["deadlines"]["100"]["longest_run"] == 3
    assert section["deadlines"]["100"]["longest_stall_ms"] == pytest.approx(13)
    assert section["deadlines"]["120"]["misses"] == 1, "by its own time only one frame took long"


def test_a_paced_loop_with_two_frames_in_the_making(tmp_path, clock):
    """A frame that is finished while the loop waits for the next one's moment is noticed then, not at that moment."""
    times = [5, 5, 12, 5, 5]
    series = played(
        tmp_path, FakeLoop(clock, times.__getitem__, 1.0), clock, 5, look=slow_look(clock), depth=2, period=0.010
    )
    assert series["action_ms"] == near(0, 10, 20, 30, 40)
    assert series["delivered_ms"] == near(6, 16, 33, 38, 46)
    assert series["frame_ms"] == near(6, 6, 13, 5, 6)
    assert series["latency_ms"] == near(6, 6, 13, 8, 6)
    assert series["wait_ms"] == near(0, 0, 2, 0, 5), "only the frame of 12 ms, and the last one, are waited for"
    assert series["gap_ms"] == near(4, 4, 0, 2, np.nan), "the fourth had begun before the third was there"


class Broken(FakeLoop):
    def begin(self, frame):
        if frame == 100:
            raise RuntimeError("planted")
        return super().begin(frame)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_crash_at_frame_100(tmp_path, clock, depth):
    pipeline = Broken(clock, lambda frame: 5.0 + 0.01 * frame)
    with pytest.raises(RuntimeError, match="planted"):
        played(tmp_path, pipeline, clock, 600, look=slow_look(clock), depth=depth)
    kept = 101 - depth  # with two in the making the last one was not delivered
    rescued = recover_series(tmp_path, CELL)
    series = read_series(tmp_path / series_file(CELL))
    assert rescued is not None
    assert {len(values) for values in series.values()} == {kept}
    for name, values in series.items():
        np.testing.assert_array_equal(values, rescued[name])
    np.testing.assert_allclose(series["device_made_ms"], 5.0 + 0.01 * np.arange(kept))
    assert (series["switches"] == np.arange(kept)).all()
    assert judged(series)["frames"] == kept
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
def test_warm_up_and_frames_are_one_piece(tmp_path, clock, depth, period):
    """The first row begins where the warm-up left the pipeline: no frame of it pays for filling it."""
    rows, begun = [], []
    player = Player(
        FakeLoop(clock, lambda frame: 5.0, 1.0), clock, lambda frame, ms: {"seen": frame}, depth=depth, period=period
    )
    player.play(range(6), rows.append, warmup=4, on_first=lambda: begun.append(clock.now()))
    assert [row["seen"] for row in rows] == list(range(6)), "no look at the warm-up, and no row of it"
    assert len(begun) == 1
    assert rows[0]["action_ms"] == pytest.approx(0, abs=0.3)
    alone = 6.0 if depth == 1 else 5.0
    expected = alone if period is None else 6.0
    assert [row["frame_ms"] for row in rows] == pytest.approx([expected] * 6, abs=0.3)
    if period is not None:
        assert [row["due_ms"] for row in rows] == pytest.approx([10 * i for i in range(6)])
