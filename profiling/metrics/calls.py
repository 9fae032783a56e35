"""Total time of 1, 10, 100, … calls in a row: what a user of the network waits for, and when preparing pays back."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from profiling.errors import InputError
from profiling.metrics.metric import Measured, Metric, Subject
from profiling.trace.profiler import synchronize


@dataclass(frozen=True, kw_only=True)
class Calls(Metric):
    """Time each number of calls in a row, waiting once at the end, as far as `time_limit` seconds go.

    Numbers that would take longer are computed from the time of a call in the longest row that was measured, and
    marked so.

    Raises:
        InputError: no number of calls, one below 1, or no time.

    """

    calls: Sequence[int] = (1, 10, 100, 1000, 10000)
    time_limit: float = 5.0

    def __post_init__(self) -> None:
        """Put the numbers in order and check them."""
        wrong = [n for n in self.calls if isinstance(n, bool) or not isinstance(n, int) or n < 1]
        if wrong or not self.calls:
            raise InputError(f"calls={list(self.calls)}: whole numbers of calls, at least 1: calls=[1,10,100].")
        if not self.time_limit > 0:
            raise InputError(f"time_limit={self.time_limit}: seconds for one number of calls, more than 0.")
        object.__setattr__(self, "calls", tuple(sorted(set(self.calls))))

    def measure(self, subject: Subject) -> Measured:
        """Return `calls`: seconds of each number, without what preparing took, and seconds of a call in a row."""
        device = subject.component.device

        def row(count: int) -> float:
            synchronize(device)
            started = time.perf_counter()
            for _ in range(count):
                subject.step.run()
            synchronize(device)
            return time.perf_counter() - started

        points, per_call = rows(row, self.calls, self.time_limit)
        return Measured({"calls": {"points": points, "seconds_per_call": per_call}})


def rows(
    row: Callable[[int], float], numbers: Sequence[int], time_limit: float
) -> tuple[list[dict[str, float | bool]], float]:
    """Return ([{calls, seconds, measured}], seconds of a call in the longest row measured).

    `row(n)` makes n calls and returns their seconds. A row of ten says what the next ones will take; short rows are
    the median of three, since one interruption would be all of them.
    """
    per_call = row(10) / 10
    points: list[dict[str, float | bool]] = []
    for number in numbers:
        measured = number == 1 or number * per_call <= time_limit
        if measured:
            repeats = 3 if 3 * number * per_call <= time_limit else 1
            seconds = median(row(number) for _ in range(repeats))
            per_call = seconds / number if number >= 10 else per_call
        else:
            seconds = number * per_call
        points.append({"calls": number, "seconds": seconds, "measured": measured})
    return points, per_call
