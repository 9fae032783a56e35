"""Pipelines whose frames take planted times, on a clock that the test advances or on the wall clock."""

import time

from planted_series import loop

from profiling.realtime.play import FrameLoop, Pipeline, series_names
from profiling.realtime.summary import summarize_frames
from profiling.results.frames import NAMES, Journal, recover_series

CELL = "realtime.planted"


class FakeClock:
    """Counts whole microseconds; a pause lasts 250 of them, or until its moment if that is nearer."""

    PAUSE = 250

    def __init__(self, start_ms=1000.0):
        self.us = round(1000 * start_ms)
        self.until = 0.0  # a moment that was waited for, which may be a rounding later than the microsecond

    def now(self):
        return max(self.us / 1e6, self.until)

    def pass_ms(self, ms):
        self.us += round(1000 * ms)

    def pause(self, until):
        self.us = min(self.us + self.PAUSE, round(1e6 * until))
        if self.us == round(1e6 * until):
            self.until = until


class FakeLoop(Pipeline):
    """A frame takes `host_ms` of the host, then `device_ms(frame)` of a device that works on one frame at a time."""

    stages = ("only",)

    def __init__(self, clock, device_ms, host_ms=0.0):
        self.clock, self.frame_ms, self.host_ms = clock, device_ms, host_ms
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


class RealLoop(Pipeline):
    """A frame keeps the host busy for `base_ms` of wall time and then does what is planted for it."""

    stages = ("only",)

    def __init__(self, planted, base_ms=2.0):
        self.planted, self.base_s = planted, base_ms / 1e3

    def begin(self, frame):
        started = time.perf_counter()
        while time.perf_counter() < started + self.base_s:
            pass
        self.planted(frame)
        return {"only": 1e3 * (time.perf_counter() - started)}

    def finished(self, frame):
        return True

    def wait(self, frame):
        pass

    def device_ms(self, frame):
        return {}


def played(folder, pipeline, clock, frames, *, observe=lambda frame, frame_ms: {}, depth=1, period=None):
    """Return the series of the frames, through the journal, which stays in `folder` if the loop raises."""
    journal = Journal(folder, CELL, series_names(pipeline))
    try:
        FrameLoop(pipeline, clock, observe, depth=depth, period=period).run(range(frames), journal.append)
    finally:
        journal.close()
    series = recover_series(folder, CELL)
    assert series is not None
    assert set(series) == {*NAMES, "host_only_ms", "device_only_ms"}
    return series


def summarized(series, events=(), **options):
    return summarize_frames(series, loop(**options), events=events)
