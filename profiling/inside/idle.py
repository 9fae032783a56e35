"""How much of a call's span the device worked, and what it waited for in the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from profiling.inside.timeline import HostCall, Work


@dataclass(frozen=True)
class Idle:
    """Microseconds of one call, from its first work on the device to the end of its last.

    `busy`: something ran. `host`: nothing ran, and what came next had not been handed over when the device ran dry.
    `between`: what came next had been: it was queued, or is a node of a graph that was being replayed.
    """

    span: float
    busy: float
    host: float
    between: float


def idle_of(work: Sequence[Work], launches: Mapping[int | None, HostCall]) -> Idle:
    """Walk the gaps of a call's `work`, which is sorted by begin and not empty; streams may overlap.

    A gap before work whose launch the trace lost counts as between: nothing says that the host was late.
    """
    host = between = 0.0
    reached, seen = work[0].end, {work[0].correlation}
    for item in work[1:]:
        gap = item.begin - reached
        if gap > 0:
            launch = None if item.correlation in seen else launches.get(item.correlation)
            if launch is not None and launch.end > reached:
                host += gap
            else:
                between += gap
        reached = max(reached, item.end)
        seen.add(item.correlation)
    return Idle(span=reached - work[0].begin, busy=_busy(work), host=host, between=between)


def _busy(work: Sequence[Work]) -> float:
    """Return the time in which at least one ran, from the moments at which they begin and end."""
    moments = sorted([*((item.begin, 1) for item in work), *((item.end, -1) for item in work)])
    busy, running, since = 0.0, 0, 0.0
    for moment, change in moments:
        if running:
            busy += moment - since
        running, since = running + change, moment
    return busy
