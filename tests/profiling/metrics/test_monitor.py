"""What a FrameMonitor says after a frame: which frames it looks at, and that it misses nothing in the others."""

import gc
import mmap
import threading
import time
from contextlib import closing

import pytest
import torch

from profiling.machine import nvml
from profiling.metrics.monitor import LONG_EVERY, FrameMonitor

EVERY = 64


@pytest.fixture
def monitor():
    gc.disable()
    try:
        with closing(FrameMonitor(every=EVERY)) as monitor:
            yield monitor
    finally:
        gc.enable()


def looked(row):
    return "host_rss" in row


@pytest.mark.parametrize(
    ("usual_ms", "frame_ms", "is_long"), [(10, 13, True), (10, 11, False), (0.5, 0.9, False), (0.5, 1.5, True)]
)
def test_a_long_frame_is_looked_at_if_that_is_worth_its_time(monitor, usual_ms, frame_ms, is_long):
    assert [looked(monitor(frame, usual_ms)) for frame in range(EVERY + 1)] == [True, *[False] * (EVERY - 1), True]
    frame = EVERY + 1
    assert looked(monitor(frame, frame_ms)) is is_long
    assert not looked(monitor(frame + 1, frame_ms)), "the next ones are not"
    assert looked(monitor(frame + LONG_EVERY, 3 * frame_ms))


def test_an_event_is_one_of_the_frame_in_which_it_was(monitor):
    rows = []
    for frame in range(1, 10):
        if frame == 5:
            gc.collect()
        rows.append(dict(monitor(frame, 1.0)))
    assert [row["collections"] for row in rows] == [0, 0, 0, 0, 1, 0, 0, 0, 0]
    assert rows[4]["collection_ms"] > 0
    assert all(row.keys() == rows[0].keys() for row in rows), "and nothing is absent in the others"


def test_memory_that_grows_is_that_of_the_process(monitor):
    before, size = monitor(EVERY, 1.0)["host_rss"], 64 * 2**20
    with mmap.mmap(-1, size) as pages:  # new ones, even if the allocator has free ones
        pages.write(b"x" * size)
        assert monitor(2 * EVERY, 1.0)["host_rss"] - before == pytest.approx(size, rel=0.1)


def frame_with(monitor, frame, mhz):
    """Return the number of the first frame from `frame` on that has this answer of the driver."""
    deadline = time.monotonic() + 20
    while monitor(frame, 1.0).get("sm_clock_mhz") != mhz:
        assert time.monotonic() < deadline, "the driver's answer is in no frame"
        frame += 1
    return frame


@pytest.fixture
def driver(monkeypatch):
    """A device whose allocator holds nothing, and whose driver knows nothing but what a test lets it say."""
    sizes = {"all": {"current": 0}}
    stats = {"num_alloc_retries": 0, "num_device_alloc": 0, "allocated_bytes": sizes, "reserved_bytes": sizes}
    monkeypatch.setattr("torch.cuda.memory_stats_as_nested_dict", lambda device: stats)
    monkeypatch.setattr(nvml, "handle_of", lambda device: None)
    monkeypatch.setattr("profiling.machine.memory.malloc_cost", lambda device: None)
    return torch.device("cuda", 0)


@pytest.mark.parametrize("apart", [False, True])
def test_what_others_took_of_a_frame_is_their_share_of_the_last_second_which_a_thread_asks_for(
    driver, monkeypatch, apart
):
    asked_in = []
    monkeypatch.setattr(nvml, "share_of_others", lambda *_: asked_in.append(threading.current_thread()) or 0.25)
    with closing(FrameMonitor(driver, apart=apart)) as monitor:
        deadline, row = time.monotonic() + 20, {}
        while "others_ms" not in row and time.monotonic() < deadline:
            row = monitor(0, 8.0)
        assert row["others_ms"] == 2.0
        assert threading.current_thread() not in asked_in


def test_a_driver_that_is_asked_apart_holds_up_no_frame_and_its_failure_is_said_once(driver, monkeypatch):
    """Its answer is that of the frame that ends next."""
    may_answer, asked_in = threading.Event(), []

    def clock(device):
        asked_in.append(threading.current_thread())
        assert may_answer.wait(20)
        return 1755

    def fails(device):
        raise RuntimeError("the driver is gone")

    monkeypatch.setattr(nvml, "sm_clock_mhz", clock)
    with closing(FrameMonitor(driver, every=EVERY, apart=True)) as monitor:
        assert not any("sm_clock_mhz" in monitor(frame, 1.0) for frame in range(3 * EVERY))
        may_answer.set()
        frame = frame_with(monitor, 3 * EVERY + 1, 1755)
        assert "sm_clock_mhz" not in monitor(frame + 1, 1.0)
        assert monitor.clocks().sm_clock_median_mhz == 1755
        assert threading.current_thread() not in asked_in
        monkeypatch.setattr(nvml, "sm_clock_mhz", fails)
        with pytest.raises(RuntimeError, match="the driver is gone"):
            frame_with(monitor, frame + 2, "no answer any more")
        monitor(1, 1.0)
