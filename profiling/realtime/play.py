"""The loop itself: begin frames when they are due, wait for them, and write down what each took."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping

from profiling.realtime.pipeline import Clock, Pipeline, Ticket
from profiling.results.frames import NAMES

#: The system wakes a sleeper late by up to this many seconds; the rest of a wait is spent looking at the clock.
LATE_WAKE = 0.002


class WallClock:
    """The host's monotonic clock."""

    def now(self) -> float:
        """Return seconds since some moment."""
        return time.perf_counter()

    def pause(self, until: float) -> None:
        """Let some of the time before `until` pass; the caller looks at the clock and asks again."""
        left = until - time.perf_counter()
        if left > LATE_WAKE:
            time.sleep(min(left - LATE_WAKE, LATE_WAKE))


#: What happened in a frame that took so many milliseconds.
Look = Callable[[int, float], Mapping[str, float]]
Row = dict[str, float]
#: Seconds between two looks at a frame in the making while the next one is not yet due.
POLL = 1e-4


def series_names(pipeline: Pipeline) -> tuple[str, ...]:
    """Return the names of the series that a loop over `pipeline` writes."""
    stages = (f"{clock}_{stage}_ms" for clock in ("host", "device") for stage in pipeline.stages)
    return (*NAMES, *stages)


class Player:
    """Plays frames of a pipeline, up to `depth` in the making at once; each finished one is a row given to `keep`.

    `period` is the time between two due frames in seconds; None: a frame is due when there is room for it.
    """

    def __init__(self, pipeline: Pipeline, clock: Clock, look: Look, *, depth: int = 1, period: float | None = None):
        self._pipeline, self._clock, self._look = pipeline, clock, look
        self._depth, self._period = depth, period
        self._pending: deque[tuple[Ticket, float, float]] = deque()

    def play(
        self,
        frames: range,
        keep: Callable[[Row], None],
        *,
        warmup: int = 0,
        on_first: Callable[[], None] = lambda: None,
    ) -> None:
        """Make `frames`, in one piece with the `warmup` frames before them, which are no rows.

        Times in the rows count from the first one's beginning; `on_first` is called right before it.
        """
        clock = self._clock
        self._keep, self._first, self._row = keep, frames.start, None
        origin = self._start = clock.now()
        self._delivered = float("-inf")
        try:
            for count, frame in enumerate(range(frames.start - warmup, frames.stop)):
                due = float("nan") if self._period is None else origin + count * self._period
                self._until(due)
                if frame == frames.start:
                    on_first()
                action = clock.now()
                if warmup and frame == frames.start:
                    self._start = action if self._period is None else due
                self._close_gap(action)
                self._pending.append((self._pipeline.begin(frame), action, due))
                while len(self._pending) >= self._depth:
                    self._settle()
            while self._pending:
                self._settle()
        finally:  # whatever ends the loop, the last row is kept
            self._close_gap(None)

    def _until(self, due: float) -> None:
        """Wait for `due` (NaN: do not), and notice frames that are finished meanwhile."""
        while self._clock.now() < due:
            if self._pending and self._pipeline.finished(self._pending[0][0]):
                self._settle()
            else:  # a nap would notice a frame that is finished late
                self._clock.pause(min(due, self._clock.now() + POLL) if self._pending else due)

    def _settle(self) -> None:
        """Wait for the oldest frame in the making and write down what it took."""
        ticket, action, due = self._pending.popleft()
        waiting = self._clock.now()
        self._pipeline.wait(ticket)
        delivered = self._clock.now()
        frame_ms = 1e3 * (delivered - max(action, self._delivered))
        wait_ms = 1e3 * (delivered - waiting)
        self._delivered = delivered
        if ticket.frame < self._first:
            return
        # With more frames in the making, the host's times of this one lie in the interval of another.
        alone = self._depth == 1
        row = {
            "action_ms": 1e3 * (action - self._start),
            "due_ms": 1e3 * (due - self._start),
            "delivered_ms": 1e3 * (delivered - self._start),
            "frame_ms": frame_ms,
            "latency_ms": 1e3 * (delivered - action),
            "wait_ms": wait_ms,
            **({"rest_ms": frame_ms - wait_ms - sum(ticket.host_ms.values())} if alone else {}),
            **{f"host_{stage}_ms": value for stage, value in ticket.host_ms.items()},
            **{f"device_{stage}_ms": value for stage, value in self._pipeline.device_ms(ticket).items()},
            **self._look(ticket.frame, frame_ms),
        }
        self._close_gap(action)
        self._row = row

    def _close_gap(self, action: float | None) -> None:
        """Hand on the last row, now that the next frame's action tells how long the loop was at its own business."""
        row, self._row = self._row, None
        if row is not None and action is not None:
            row["gap_ms"] = max(0.0, 1e3 * (action - self._start) - row["delivered_ms"])
        if row is not None:
            self._keep(row)
