"""Pipelines whose every frame takes what a test says, on a clock that a test moves or on the wall's."""

import time

from profiling.realtime.pipeline import Pipeline, Ticket
from profiling.realtime.play import Player, series_names
from profiling.realtime.summary import summarize_frames
from profiling.results.frames import NAMES, Journal, recover_series

FACTS = {"schedule": "sequential"}
CELL = "realtime.planted"


class FakeClock:
    """Counts whole microseconds; a pause lasts 250 of them, or until its moment where that is nearer."""

    PAUSE = 250

    def __init__(self, start_ms=1000.0):
        self.us = round(1000 * start_ms)

    def now(self):
        return self.us / 1e6

    def pass_ms(self, ms):
        self.us += round(1000 * ms)

    def pause(self, until):
        self.us = min(self.us + self.PAUSE, round(1e6 * until))


class FakeLoop(Pipeline):
    """A frame takes `host_ms` of the host, and then its turn of `device_ms(frame)` on a device that does one by one."""

    stages = ("made",)

    def __init__(self, clock, device_ms, host_ms=0.0):
        self.clock, self.frame_ms, self.host_ms = clock, device_ms, host_ms
        self.free_us, self.done_us = 0, {}

    def begin(self, frame):
        self.clock.pass_ms(self.host_ms)
        self.free_us = max(self.free_us, self.clock.us) + round(1000 * self.frame_ms(frame))
        self.done_us[frame] = self.free_us
        return Ticket(frame, {"made": self.host_ms})

    def finished(self, ticket):
        return self.clock.us >= self.done_us[ticket.frame]

    def wait(self, ticket):
        self.clock.us = max(self.clock.us, self.done_us[ticket.frame])

    def device_ms(self, ticket):
        return {"made": self.frame_ms(ticket.frame)}


class RealLoop(Pipeline):
    """A frame looks at the wall's clock for `base_ms` on the host and then does what is planted for it."""

    stages = ("made",)

    def __init__(self, planted, base_ms=2.0):
        self.planted, self.base_s = planted, base_ms / 1e3

    def begin(self, frame):
        started = time.perf_counter()
        while time.perf_counter() < started + self.base_s:
            pass
        self.planted(frame)
        return Ticket(frame, {"made": 1e3 * (time.perf_counter() - started)})

    def finished(self, ticket):
        return True

    def wait(self, ticket):
        pass

    def device_ms(self, ticket):
        return {}


def played(folder, pipeline, clock, frames, *, look=lambda frame, frame_ms: {}, depth=1, period=None):
    """Return the series of so many frames, which went through the journal; it is left behind where the loop raises."""
    journal = Journal(folder, CELL, series_names(pipeline))
    try:
        Player(pipeline, clock, look, depth=depth, period=period).play(range(frames), journal.append)
    finally:
        journal.close()
    series = recover_series(folder, CELL)
    assert series is not None
    assert set(series) == {*NAMES, "host_made_ms", "device_made_ms"}
    return series


def judged(series, *, fps=60.0, pace="free", events=()):
    return summarize_frames(series, target_fps=fps, pace=pace, facts=FACTS, events=events)
