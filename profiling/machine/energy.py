"""Energy of a GPU by the driver's counter: its step, the idle power, and windows of calls between two of its steps.

The counter (millijoules since the driver was loaded) does not run on: it steps, every 20 to 100 ms by what others have
seen. A window therefore begins and ends where it was seen to step, and the calls in it are counted between these
two moments, as fractions where a call reaches beyond one. What the counter lags behind is the same at both ends.

A reading takes up to some milliseconds, in which the interpreter's lock is free. A thread of its own makes the
readings, one after the other while a step is awaited: calls go on meanwhile, and a step is known to about two readings.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, inf
from statistics import median
from threading import Event, Thread
from time import perf_counter, sleep
from typing import NamedTuple

import pynvml
import torch

from profiling.machine import nvml
from profiling.results.energy import EnergyWindow

#: Least seconds from the beginning of a reading to that of the next while a step is awaited. They begin this share of a
#: step before it is expected.
POLL_S, EARLY = 1e-3, 0.25
#: A counter that does not change for so many seconds counts nothing: an idle GPU takes some joules in that time.
STUCK_S = 2.0
#: Seconds for which the GPU may stay in use while this process does nothing: the driver's utilisation is that of the
#: last second at most.
BUSY_S = 3.0
#: Before idle power is measured, seconds for the power to fall; then the least steps and seconds over which it is.
FALL_S, IDLE_STEPS, IDLE_S = 0.5, 5, 0.5
#: Calls that a window should hold, and those that it holds at least however long a call is; and how many times as long
#: it should be as the time within which a step is known to have been (1%: the ends of windows then differ by 0.4%).
CALLS, LEAST_CALLS, MOMENTS = 10, 2, 100


class NoEnergy(Exception):  # noqa: N818 - a result rather than an error: the message is the reason in the record
    """The energy of this device cannot be told; the message says why, in one line."""


class EnergyCounter:
    """The driver's energy counter of a CUDA device, which counts for all processes on it.

    Raises:
        NoEnergy: the driver has none for this device, or it is not of this device alone.

    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if nvml.is_mig(device):
            raise NoEnergy("MIG is on: the driver counts the energy of the whole GPU, and others may use parts of it")
        self._first = self._last = self._millijoules()

    def read(self) -> float:
        """Return the joules since the counter was made.

        Raises:
            NoEnergy: it cannot be read any more, or went back.

        """
        now = self._millijoules()
        if now < self._last:
            raise NoEnergy(f"the driver's energy counter went back by {(self._last - now) / 1000:.4g} J")
        self._last = now
        return (now - self._first) / 1000

    def _millijoules(self) -> int:
        try:
            return nvml.energy_mj(self._device)
        except pynvml.NVMLError as error:
            reasons = {
                pynvml.NVML_ERROR_NOT_SUPPORTED: "the driver has no energy counter for this GPU",
                pynvml.NVML_ERROR_NO_PERMISSION: "the driver does not permit this user to read the energy counter",
                pynvml.NVML_ERROR_NOT_FOUND: "the driver library (NVML) is missing or does not know this GPU",
            }
            code: int = getattr(error, "value", -1)
            raise NoEnergy(reasons.get(code, f"the driver's energy counter cannot be read: {error}")) from None

    @contextmanager
    def watched(self, edges: Edges) -> Iterator[None]:
        """Let a thread read the counter while the block runs, whenever `edges` awaits a step.

        Raises:
            NoEnergy: at the end of the block, what kept the thread from going on; `edges.failure` has it before.

        """
        ended = Event()

        def watch() -> None:
            try:
                while not ended.wait(max(0.0, edges.poll() - perf_counter())):
                    pass
            except Exception as error:  # raised where the calls are made
                edges.failure = error

        thread = Thread(target=watch, name="energy-counter", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        if edges.failure is not None:
            raise edges.failure

    def use_by_others(self) -> float:
        """Return the use of the GPU in the last fraction of a second, 0 to 1, while this process does nothing there."""
        return nvml.utilisation(self._device) or 0.0


class Edge(NamedTuple):
    """A step of the counter: the middle of the time within which it was, the joules from then on, and that time."""

    seconds: float
    joules: float
    within_s: float = 0.0


@dataclass(frozen=True)
class Idle:
    """Mean power of the GPU while nothing ran on it, in watts, and the time between two steps of the counter."""

    watts: float
    step_s: float


def idle_power(counter: EnergyCounter) -> Idle:
    """Do nothing for one to a few seconds and return the power of the GPU meanwhile. The device must be idle.

    Raises:
        NoEnergy: the counter stands still, or somebody else uses the GPU.

    """
    started = perf_counter()
    while (use := counter.use_by_others()) > 0:
        if perf_counter() - started > BUSY_S:
            raise NoEnergy(f"other processes use the GPU ({use:.0%}), and the driver counts their energy too")
        sleep(0.05)
    fallen, edges = perf_counter() + FALL_S, Edges(counter)
    while True:
        due = edges.poll()
        steps = [edge for edge in edges.seen if edge.seconds >= fallen]
        if len(steps) > IDLE_STEPS and steps[-1].seconds - steps[0].seconds >= IDLE_S:
            break
        sleep(max(0.0, due - perf_counter()))
    if (use := counter.use_by_others()) > 0:
        raise NoEnergy(f"other processes use the GPU ({use:.0%}), and the driver counts their energy too")
    seconds = steps[-1].seconds - steps[0].seconds
    times = [edge.seconds for edge in steps]
    return Idle(
        watts=(steps[-1].joules - steps[0].joules) / seconds,
        step_s=median(after - before for before, after in pairwise(times)),
    )


def energy_windows(
    call: Callable[[], None],
    counter: EnergyCounter,
    step_s: float,
    *,
    windows: int,
    window_steps: int,
    settle_s: float,
    max_s: float,
) -> tuple[EnergyWindow, ...]:
    """Make calls without a break, `settle_s` of them first, and return the energy of so many windows of them.

    `call()` makes a call and waits for its end. A window has at least `window_steps` steps of the counter. It has ten
    calls, and is long enough that the moments of its steps are known to 1% of it (a reading may take milliseconds),
    where such windows fit into `max_s` seconds.

    Raises:
        NoEnergy: the counter stands still or goes back, or cannot be read any more.

    """
    ends, settling = [perf_counter()], Edges(counter, step_s)  # when each call ended
    with counter.watched(settling):
        while settling.failure is None and (ends[-1] - ends[0] < settle_s or len(ends) <= LEAST_CALLS):
            call()
            ends.append(perf_counter())
    call_s = (ends[-1] - ends[0]) / (len(ends) - 1)
    moment_s = median([edge.within_s for edge in settling.seen] or [step_s])
    wanted_s = max(min(max(CALLS * call_s, MOMENTS * moment_s), max_s / windows), LEAST_CALLS * call_s)
    edges = Edges(counter, step_s, step_s * max(window_steps, ceil(wanted_s / step_s)))
    with counter.watched(edges):
        while edges.failure is None and len(edges.seen) <= windows:
            call()
            ends.append(perf_counter())
    counts = [_calls_until(edge.seconds, ends) for edge in edges.seen]
    pairs = list(zip(edges.seen, counts, strict=True))[: windows + 1]
    return tuple(
        EnergyWindow(seconds=end.seconds - begin.seconds, calls=after - before, joules=end.joules - begin.joules)
        for (begin, before), (end, after) in pairwise(pairs)
    )


def _calls_until(moment: float, ends: list[float]) -> float:
    """Return how many calls had been made at a moment; of the one under way, the share of its time that had passed."""
    place = min(max(bisect_right(ends, moment), 1), len(ends) - 1)
    begin, end = ends[place - 1], ends[place]
    return place - 1 + (min(max((moment - begin) / (end - begin), 0.0), 1.0) if end > begin else 0.0)


class Edges:
    """Watches a counter for its steps: for each one, or for the one that is expected after each `window_s`.

    A step lies between the beginning of the last reading before it and the end of the first one after it, at most
    `step_s` before this end; its time is the middle. One that comes before it is expected is missed, and the next one
    ends the window. `failure` is what a thread that calls `poll` met.
    """

    def __init__(self, counter: EnergyCounter, step_s: float = inf, window_s: float = 0.0) -> None:
        self.seen: list[Edge] = []
        self.failure: Exception | None = None
        self._counter, self._step_s, self._window_s = counter, step_s, window_s
        self._due, self._before, self._since = -inf, Edge(inf, inf), inf

    def poll(self) -> float:
        """Read the counter if a step is awaited and the last reading is not too short ago; return when to call again.

        Raises:
            NoEnergy: the counter stands still or goes back, or cannot be read any more.

        """
        asked = perf_counter()
        if asked < self._due:
            return self._due
        joules, read = self._counter.read(), perf_counter()
        if self._before.joules == inf:
            self._since = read
        elif joules > self._before.joules:
            after = max(self._before.seconds, read - self._step_s)
            self.seen.append(Edge((after + read) / 2, joules, read - after))
            rest = self._window_s - EARLY * self._step_s
            self._due, self._before = self.seen[-1].seconds + rest, Edge(inf, inf)
            if rest > 0:
                return self._due
            self._since = read
        elif read - self._since > STUCK_S:
            raise NoEnergy(f"the driver's energy counter has not changed for {STUCK_S:g} s")
        self._before, self._due = Edge(asked, joules), asked + POLL_S
        return self._due
