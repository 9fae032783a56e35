"""The loop itself: begin each frame when it is due, wait until it is delivered, and record its times."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter  # bound here: a network may replace the one in `time`

from profiling.results.frames import NAMES

#: Seconds by which a sleeping thread may wake up late: the last part of each wait polls the clock instead.
LATE_WAKE = 0.002
#: Seconds between two polls of a frame in flight while the next one is not yet due.
POLL = 1e-4

#: (frame, its time in ms) -> further series of that frame.
Observe = Callable[[int, float], Mapping[str, float]]


class Clock:
    """The host's monotonic clock, in seconds."""

    def now(self) -> float:
        """Return seconds since an arbitrary moment."""
        return perf_counter()

    def pause(self, until: float) -> None:
        """Sleep for a part of the time before `until`; the caller checks the clock and calls again."""
        left = until - perf_counter()
        if left > LATE_WAKE:
            time.sleep(min(left - LATE_WAKE, LATE_WAKE))


class Pipeline(ABC):
    """Produces frames in stages; `stages` holds their names in order. A frame is identified by its number."""

    stages: tuple[str, ...]

    @abstractmethod
    def begin(self, frame: int) -> Mapping[str, float]:
        """Hand the frame's work to the device (on a CPU: do it); return the host time in ms of each stage."""

    @abstractmethod
    def finished(self, frame: int) -> bool:
        """Return whether a begun frame is delivered."""

    @abstractmethod
    def wait(self, frame: int) -> None:
        """Wait until a begun frame is delivered."""

    @abstractmethod
    def device_ms(self, frame: int) -> Mapping[str, float]:
        """Return the device time in ms of each stage of a delivered frame; empty without a device clock."""


@dataclass(frozen=True)
class _InFlight:
    frame: int
    host_ms: Mapping[str, float]  # by stage
    action: float  # seconds
    due: float  # seconds; NaN without a period


def series_names(pipeline: Pipeline) -> tuple[str, ...]:
    """Return the names of the series that a loop over `pipeline` records."""
    stages = (f"{clock}_{stage}_ms" for clock in ("host", "device") for stage in pipeline.stages)
    return (*NAMES, *stages)


class FrameLoop:
    """Runs frames through a pipeline, up to `depth` in flight at once, and records a row of times for each.

    `period` is the time between two due frames in seconds; None: a frame is due as soon as fewer than `depth` are in
    flight.
    """

    def __init__(
        self, pipeline: Pipeline, clock: Clock, observe: Observe, *, depth: int = 1, period: float | None = None
    ) -> None:
        self._pipeline, self._clock, self._observe = pipeline, clock, observe
        self._depth, self._period = depth, period
        self._in_flight: deque[_InFlight] = deque()

    def run(
        self,
        frames: range,
        record: Callable[[dict[str, float]], None],
        *,
        warmup: int = 0,
        on_first: Callable[[], None] = lambda: None,
    ) -> None:
        """Run `warmup` frames and then `frames` without a break; call `record` with the row of each of `frames`.

        Times in a row are in ms after the first of `frames` began; `on_first` is called right before that.
        """
        clock = self._clock
        self._record, self._first, self._row = record, frames.start, None
        origin = self._start = clock.now()
        self._delivered = float("-inf")
        try:
            for count, frame in enumerate(range(frames.start - warmup, frames.stop)):
                due = float("nan") if self._period is None else origin + count * self._period
                self._wait_until(due)
                if frame == frames.start:
                    on_first()
                action = clock.now()
                if warmup and frame == frames.start:
                    self._start = action if self._period is None else due
                self._record_row(next_action=action)
                self._in_flight.append(_InFlight(frame, self._pipeline.begin(frame), action, due))
                while len(self._in_flight) >= self._depth:
                    self._complete_oldest()
            while self._in_flight:
                self._complete_oldest()
        finally:  # an error in a later frame must not lose the row of the last delivered one
            self._record_row(next_action=None)

    def _wait_until(self, due: float) -> None:
        """Wait for `due` (NaN: return at once), and complete frames that are delivered meanwhile."""
        while self._clock.now() < due:
            if self._in_flight and self._pipeline.finished(self._in_flight[0].frame):
                self._complete_oldest()
            else:  # a longer sleep would notice a delivered frame late
                self._clock.pause(min(due, self._clock.now() + POLL) if self._in_flight else due)

    def _complete_oldest(self) -> None:
        """Wait for the oldest frame in flight and make its row."""
        oldest = self._in_flight.popleft()
        waiting = self._clock.now()
        self._pipeline.wait(oldest.frame)
        delivered = self._clock.now()
        frame_ms = 1e3 * (delivered - max(oldest.action, self._delivered))
        wait_ms = 1e3 * (delivered - waiting)
        self._delivered = delivered
        if oldest.frame < self._first:
            return
        row = {
            "action_ms": 1e3 * (oldest.action - self._start),
            "due_ms": 1e3 * (oldest.due - self._start),
            "delivered_ms": 1e3 * (delivered - self._start),
            "frame_ms": frame_ms,
            "latency_ms": 1e3 * (delivered - oldest.action),
            "wait_ms": wait_ms,
            **{f"host_{stage}_ms": value for stage, value in oldest.host_ms.items()},
            **{f"device_{stage}_ms": value for stage, value in self._pipeline.device_ms(oldest.frame).items()},
            **self._observe(oldest.frame, frame_ms),
        }
        if self._depth == 1:  # with more frames in flight, this frame's host times lie in the interval of another
            row["rest_ms"] = frame_ms - wait_ms - sum(oldest.host_ms.values())
        self._record_row(next_action=oldest.action)
        self._row = row

    def _record_row(self, *, next_action: float | None) -> None:
        """Record the row that waits for its `gap_ms`: the time from its delivery to the action of the next frame."""
        row, self._row = self._row, None
        if row is not None and next_action is not None:
            row["gap_ms"] = max(0.0, 1e3 * (next_action - self._start) - row["delivered_ms"])
        if row is not None:
            self._record(row)
