"""The loop itself: begin each frame when it is due, wait until it is delivered, and record its times.

The first few ticks are a session, in which pipelines are compared.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter  # bound here: a network may replace the one in `time`

from profiling.components.component import CHECK_SEED
from profiling.components.outputs import OutputLog, to_host
from profiling.components.trajectory import seed_generators
from profiling.realtime.pipeline import StagedPipeline
from profiling.realtime.plan import Plan
from profiling.results.frames import NAMES

#: Seconds by which a sleeping thread may wake up late: the last part of each wait polls the clock instead.
LATE_WAKE = 0.002
#: Seconds between two polls of a frame in flight while the next one is not yet due.
POLL = 1e-4
#: Sessions of the whole pipeline that are compared: one that leaves a wrong state behind is wrong in the second.
SESSIONS = 2

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


@dataclass(frozen=True)
class _InFlight:
    frame: int
    host_ms: Mapping[str, float]  # by stage
    action: float  # seconds
    due: float  # seconds; NaN without a period


def series_names(pipeline: StagedPipeline) -> tuple[str, ...]:
    """Return the names of the series that a loop over `pipeline` records."""
    stages = (f"{clock}_{stage}_ms" for clock in ("host", "device") for stage in pipeline.stages)
    return (*NAMES, *stages)


class FrameLoop:
    """Runs frames through a pipeline, up to its `depth` in flight at once, and records a row of times for each.

    `period` is the time between two due frames in seconds; None: a frame is due as soon as fewer than `depth` are in
    flight.
    """

    def __init__(
        self, pipeline: StagedPipeline, clock: Clock, observe: Observe, *, period: float | None = None
    ) -> None:
        self._pipeline, self._clock, self._observe = pipeline, clock, observe
        self._depth, self._period = pipeline.depth, period
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

        Times in a row are in ms after the first of `frames` began or, with a period, was due; before that comes
        `on_first`. The time that it takes, and what warm-up frames were late by, makes no timed frame late: the first
        one is due at the next multiple of the period. Rows are recorded when their frames are delivered, before the
        next frame is waited for. Where that takes longer than until the next frame is due, or could begin, all later
        moments are shifted by it: it makes no frame late.
        """
        self._record, self._first = record, frames.start
        self._delivered = self._recorded = float("-inf")
        due = self._clock.now() if self._period is not None else float("nan")
        for frame in range(frames.start - warmup, frames.stop):
            if frame == frames.start:
                on_first()
                due = self._next_due(due)
            self._wait_until(due)
            due += max(0.0, self._recorded - max(due, self._delivered))
            action = self._clock.now()
            if frame == frames.start:
                self._start = action if self._period is None else due
            self._in_flight.append(_InFlight(frame, self._pipeline.begin(frame), action, due))
            while len(self._in_flight) >= self._depth:
                self._complete_oldest()
            due += self._period or 0.0
        while self._in_flight:
            self._complete_oldest()

    def _next_due(self, due: float) -> float:
        """Return `due`, or if that is over, the first moment after it that is whole periods later and not over."""
        behind = self._clock.now() - due
        return due + math.ceil(behind / self._period) * self._period if self._period and behind > 0 else due

    def _wait_until(self, due: float) -> None:
        """Wait for `due` (NaN: return at once), and complete frames that are delivered meanwhile."""
        while self._clock.now() < due:
            if self._in_flight and self._pipeline.finished(self._in_flight[0].frame):
                self._complete_oldest()
            else:  # a longer sleep would notice a delivered frame late
                self._clock.pause(min(due, self._clock.now() + POLL) if self._in_flight else due)

    def _complete_oldest(self) -> None:
        """Wait for the oldest frame in flight and record its row; what comes after it is in no frame's time."""
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
        self._record(row)
        self._recorded = self._clock.now()


def play_sessions(
    plan: Plan, pipeline: StagedPipeline, *, ticks: int | None = None, sessions: int = SESSIONS, seed: int = 0
) -> OutputLog:
    """Play the first ticks of new sessions; return what each tick delivers, in host memory. Then put S0 back.

    `ticks` are those of a session, None: as many as the plan compares. The global random number generators begin with
    the run's seed, to which `seed` is added. Tensors are compared in host memory: where a tick is delivered to is an
    option of the run.

    Raises:
        InputError: an output does not fit the input that it is handed to.

    """
    log = OutputLog()

    def collect(tick: int, _frame_ms: float) -> Mapping[str, float]:
        log.append(to_host(output={name: tensor.to("cpu") for name, tensor in pipeline.delivered(tick).items()}))
        return {}

    seed_generators(plan.settings.seed + CHECK_SEED + seed)
    for _ in range(sessions):
        pipeline.reset()
        FrameLoop(pipeline, Clock(), collect).run(range(ticks or plan.session_ticks), lambda row: None)
    pipeline.reset()
    return log
