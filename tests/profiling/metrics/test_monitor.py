"""What a FrameMonitor says after a frame: which frames it looks at, and that it misses nothing in the others."""

import gc
from contextlib import closing

import pytest

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
