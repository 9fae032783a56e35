"""Tells whether the host of one of two runs is slower, which changes the times of code that did not change.

The evidence is work of the host that does not depend on the code: the launch of a kernel, which each run calibrates, or
else the replay of a captured CUDA graph, which is one launch for any network.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from profiling.compare.loaded_run import LoadedRun
from profiling.report.format import significant
from profiling.results.judgement import HOST_FACTOR
from profiling.results.record import Record

#: A cell whose host time is at most this share of its device time only replays what was captured.
REPLAY_SHARE = 0.1
#: Least number of replaying cells from which the host is judged.
LEAST_REPLAYS = 2
#: Device times are the same within this fraction.
SAME_DEVICE = 0.02
#: The host time of a cell may change by this much more than that of equal launches.
MARGIN = 1.25


@dataclass(frozen=True)
class HostChange:
    """B's host time of equal launches over A's."""

    factor: float

    @property
    def words(self) -> str:
        """What it says of the two runs."""
        times, way = (self.factor, "slower") if self.factor > 1 else (1 / self.factor, "faster")
        return (
            f"the host launches {significant(times, 2)}× {way} in B; the device does the same work in the same time, "
            "so this difference says nothing about the code"
        )

    def explains(self, a: LoadedRun, b: LoadedRun, cell: tuple[str, str]) -> bool:
        """Return whether the hosts alone can make the difference of a cell, whose device time is known to be the same.

        That is known from traces of the cell in both runs, or from another variant of its component that replays a
        captured graph: there the host is out of the way.
        """
        one, two = a.records[cell], b.records[cell]
        hosts, walls = _pair(one, two, "host_ms"), _pair(one, two, "wall_ms")
        if hosts is None or walls is None or _replays(one) or _replays(two) or _compiled_otherwise(one, two):
            return False
        ratio, change = hosts[1] / hosts[0], walls[1] - walls[0]
        most = MARGIN * max(self.factor, 1 / self.factor)
        explained = (ratio > 1) == (self.factor > 1) == (change > 0) and max(ratio, 1 / ratio) <= most
        return explained and abs(change) <= MARGIN * abs(hosts[1] - hosts[0]) and _device_is_same(a, b, cell)


def host_change(a: LoadedRun, b: LoadedRun) -> HostChange | None:
    """Return how the hosts of two runs differ; None where they do not, or where that is not known."""
    one, two = a.environment.ceilings, b.environment.ceilings
    if one is not None and two is not None and one.launch_us and two.launch_us:
        factor = two.launch_us / one.launch_us
    else:
        pairs = {cell: pair for cell in _both(a, b) if (pair := _pair(a.records[cell], b.records[cell], "host_ms"))}
        replays = [pairs[cell] for cell in pairs if _replays(a.records[cell]) and _replays(b.records[cell])]
        ratios = [after / before for before, after in replays]
        same_way = min(ratios, default=1.0) > HOST_FACTOR or max(ratios, default=1.0) < 1 / HOST_FACTOR
        if len(ratios) < LEAST_REPLAYS or not same_way:
            return None
        factor = median(after / before for before, after in pairs.values())
    return HostChange(factor) if max(factor, 1 / factor) > HOST_FACTOR else None


def _both(a: LoadedRun, b: LoadedRun) -> Iterator[tuple[str, str]]:
    for cell, record in a.records.items():
        if record.is_correct and cell in b.records and b.records[cell].is_correct:
            yield cell


def _pair(one: Record, two: Record, clock: str) -> tuple[float, float] | None:
    before, after = getattr(one.metrics, clock), getattr(two.metrics, clock)
    if before is None or after is None or min(before.p50, after.p50) <= 0:
        return None
    return before.p50, after.p50


def _replays(record: Record) -> bool:
    host, device = record.metrics.host_ms, record.metrics.device_ms
    return host is not None and device is not None and host.p50 <= REPLAY_SHARE * device.p50


def _compiled_otherwise(one: Record, two: Record) -> bool:
    before, after = one.prepare, two.prepare
    return (
        before is not None and after is not None and (before.graphs, before.compiles) != (after.graphs, after.compiles)
    )


def _device_is_same(a: LoadedRun, b: LoadedRun, cell: tuple[str, str]) -> bool:
    one, two = a.records[cell].trace, b.records[cell].trace
    if one is not None and two is not None and one.device_ms and two.device_ms:
        return abs(two.device_ms - one.device_ms) <= SAME_DEVICE * max(one.device_ms, two.device_ms)
    same = [other for other in _both(a, b) if other[0] == cell[0]]
    replays = [other for other in same if _replays(a.records[other]) and _replays(b.records[other])]
    walls = [pair for other in replays if (pair := _pair(a.records[other], b.records[other], "wall_ms"))]
    return bool(walls) and all(abs(after - before) <= SAME_DEVICE * max(before, after) for before, after in walls)
