"""The clocks of a chain of calls: on a free device, and on one that is held back until all of them are queued.

A free device shows what an eager loop gets: it starts on the first call while the host is making the second, and the
slower of the two sets the pace. The host's time comes from there. What the device needs by itself shows only when the
host is out of the way, so a gate in front of the chain keeps the device busy until the last call is queued.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import torch

Enqueue = Callable[[], Any]


@dataclass(frozen=True)
class Timing:
    """Microseconds of one sample; what is None was not measured."""

    host_us: float | None = None
    device_us: float | None = None


def call_times(operator: Callable[[], Any], count: int) -> None:
    """Call `operator` `count` times; a turn of this loop is some 20 ns, and in the numbers as it is in any model's."""
    for _ in repeat(None, count):
        operator()


def host_sample(enqueue: Enqueue) -> Timing:
    """Time `enqueue` on a CPU, where it is over when it returns."""
    start = time.perf_counter_ns()
    enqueue()
    return Timing(host_us=(time.perf_counter_ns() - start) / 1e3)


def free_sample(enqueue: Enqueue) -> Timing:
    """Time `enqueue` on an idle CUDA device, which works while the host goes on."""
    start, end = _events()
    torch.cuda.synchronize()
    start.record()
    begun = time.perf_counter_ns()
    enqueue()
    returned = time.perf_counter_ns()
    end.record()
    torch.cuda.synchronize()
    return Timing(host_us=(returned - begun) / 1e3, device_us=start.elapsed_time(end) * 1e3)


class Gate:
    """Holds the current device back for a while, by a kernel that spins or, where torch has none, by large products.

    `torch.cuda._sleep` is private and may go; it counts clock cycles, so how long one takes is measured first.
    """

    #: How often a sample is taken again, behind a gate four times as long each, before it counts as not measurable.
    TRIES = 4

    def __init__(self, device: torch.device) -> None:
        spin = getattr(torch.cuda, "_sleep", None)
        self._hold, probe = (spin, 2_000_000) if spin is not None else (_products(device), 4)
        self._hold(20 * probe)  # loads the kernel, and gives the clocks time to rise
        start, end = _events()
        start.record()
        self._hold(probe)
        end.record()
        torch.cuda.synchronize()
        self._units_per_ms = probe / start.elapsed_time(end)

    def sample(self, enqueue: Enqueue, milliseconds: float) -> Timing:
        """Return the device's time for `enqueue`, all of it queued before the device gets to its beginning.

        `milliseconds` is how long queueing may take. Whether it was enough is looked at, not hoped for: the event
        behind the gate must still be pending when the last call is queued. A full queue fails that too, since the
        host then waits for the device. When no try succeeds the time is absent.
        """
        for attempt in range(self.TRIES):
            start, end = _events()
            torch.cuda.synchronize()
            self._hold(math.ceil(milliseconds * 4**attempt * self._units_per_ms))
            start.record()
            enqueue()
            end.record()
            in_time = not start.query()
            torch.cuda.synchronize()
            if in_time:
                return Timing(device_us=start.elapsed_time(end) * 1e3)
        return Timing()


def _events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)


def _products(device: torch.device) -> Callable[[int], None]:
    square = torch.zeros(4096, 4096, device=device)
    product = torch.empty_like(square)

    def multiply(times: int) -> None:
        call_times(lambda: torch.mm(square, square, out=product), times)

    return multiply
