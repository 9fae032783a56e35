"""Total time of 1, 10, 100, … calls in a row; gives break-even, the calls after which preparation has paid off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import msgspec

from profiling.errors import InputError, check_number, check_whole, value_text
from profiling.machine import nvml
from profiling.machine.run_queue import RunQueueMonitor
from profiling.metrics.metric import Measured, Metric, Subject
from profiling.results.measured import Calls as CallsSection
from profiling.results.measured import CallsPoint
from profiling.trace.profiler import synchronize


@dataclass(frozen=True, kw_only=True)
class Calls(Metric):
    """Time each number of calls in a row, with one wait for the device at the end.

    Copying the inputs of each call is part of a row, as in an application. Of a module with state a row is made of
    trajectories, each of which is waited for.

    A number of calls that would take longer than `time_limit` seconds is extrapolated from the longest measured row,
    and marked as extrapolated.

    Raises:
        InputError: `calls` is empty or holds a number below 1, or `time_limit` is not above 0.

    """

    calls: Sequence[int] = (1, 10, 100, 1000, 10000)
    time_limit: float = 5.0

    def __post_init__(self) -> None:
        """Check the options, and sort the numbers of calls."""
        if not isinstance(self.calls, list | tuple) or not self.calls:
            raise InputError(
                f"calls={value_text(self.calls)} must list at least one number of calls, as in calls=[1,10,100]."
            )
        for number in self.calls:
            check_whole("calls", number)
        check_number("time_limit", self.time_limit, above=0)
        object.__setattr__(self, "calls", tuple(sorted(set(self.calls))))

    def measure(self, subject: Subject) -> Measured:
        """Return `calls`: seconds of each number of calls without preparation, and what others took of them."""
        component, device = subject.component, subject.component.device

        def row(count: int) -> float:
            seconds, part = 0.0, component.place.calls if component.has_state else count
            for first in range(0, count, part):
                component.reset()  # S0 is put back between trajectories, outside of the timing
                component.draw(component.place.calls)
                synchronize(device)
                started = perf_counter()
                for call in range(min(part, count - first)):
                    component.feed(call % component.place.calls)
                    subject.step.run()
                synchronize(device)
                seconds += perf_counter() - started
            return seconds

        run_queue, started = RunQueueMonitor(), perf_counter()
        rows = time_rows(row, self.calls, self.time_limit)
        cpu, seconds = run_queue.lost_share(), perf_counter() - started
        gpu = nvml.share_of_others(device, seconds) if device.type == "cuda" else None
        return Measured({"calls": msgspec.structs.replace(rows, cpu_lost_share=cpu, gpu_lost_share=gpu)})


def time_rows(row: Callable[[int], float], numbers: Sequence[int], time_limit: float) -> CallsSection:
    """Time each number of calls that fits into `time_limit` seconds; `row(n)` makes n calls and returns their seconds.

    A first row of ten calls predicts the times. A short row is timed three times and its median kept, so that one
    interruption does not change it.
    """
    per_call = row(10) / 10
    points = []
    for number in numbers:
        measured = number == 1 or number * per_call <= time_limit
        if measured:
            repeats = 3 if 3 * number * per_call <= time_limit else 1
            seconds = median(row(number) for _ in range(repeats))
            per_call = seconds / number if number >= 10 else per_call
        else:
            seconds = number * per_call
        points.append(CallsPoint(calls=number, seconds=seconds, measured=measured))
    return CallsSection(points=tuple(points), seconds_per_call=per_call)
