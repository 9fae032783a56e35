"""What records say once they are judged: which are right, what the baseline is, what may be claimed.

Every other file here asks these questions of this one, so that the table and the verdicts cannot disagree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from profiling.results.records import BASELINE, Record

#: The target that runs a pipeline in a loop.
REALTIME = "realtime"

#: The peaks a record may hold, the one worth a table column first, and the kind each is called by.
PEAK_KINDS = (
    ("peak_held", "peak held"),
    ("peak_allocated", "peak allocated"),
    ("peak_host_rss", "peak host RSS"),
)

#: Interruptions per timed call from which a cell was disturbed by other programs.
_BUSY_SHARE = 0.1


def at(content: object, *keys: str) -> Any:
    """Return what stands under `keys` in nested mappings, or None where any of them is missing."""
    for key in keys:
        if not isinstance(content, Mapping):
            return None
        content = content.get(key)
    return content


def number_at(content: object, *keys: str) -> float | None:
    """Return the finite number under `keys`, or None: what is absent, not a number or not finite was not measured."""
    found = at(content, *keys)
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    return float(found) if math.isfinite(found) else None


def interval_at(content: object, *keys: str) -> tuple[float, float] | None:
    """Return the (low, high) pair under `keys`, or None."""
    found = at(content, *keys)
    if not isinstance(found, list | tuple) or len(found) != 2:
        return None
    low, high = (number_at({"end": end}, "end") for end in found)
    return None if low is None or high is None else (low, high)


def items_at(content: object, *keys: str) -> tuple[Any, ...]:
    """Return the list under `keys` as a tuple; empty where there is none (a count, say)."""
    found = at(content, *keys)
    return tuple(found) if isinstance(found, list | tuple) else ()


def added(items: Iterable[object], key: str) -> float | None:
    """Return the sum of the numbers under `key` of the items, or None where none of them has one."""
    known = [value for item in items if (value := number_at(item, key)) is not None]
    return sum(known) if known else None


def mapping_at(content: object, *keys: str) -> Mapping[str, Any]:
    """Return the mapping under `keys`; empty where there is none."""
    found = at(content, *keys)
    return found if isinstance(found, Mapping) else {}


def call_points(record: Record) -> dict[int, Mapping[str, Any]]:
    """Return the record's rows of calls by how many they are; what does not say how many is no row."""
    points = items_at(record.metrics, "calls", "points")
    return {int(number): point for point in points if (number := number_at(point, "calls")) is not None}


def is_realtime(record: Record) -> bool:
    """Say whether the record is of a loop of frames, measured or not: it is judged by deadlines and not by calls."""
    return record.target == REALTIME or bool(record.realtime)


def deadlines(record: Record) -> dict[float, Mapping[str, Any]]:
    """Return what is known of each frame rate (frames a second) that a loop of frames was held against, ascending."""
    known = (item for item in mapping_at(record.realtime, "deadlines").values() if isinstance(item, Mapping))
    rates = {rate: item for item in known if (rate := number_at(item, "fps")) is not None and rate > 0}
    return dict(sorted(rates.items()))


def by_component(records: Iterable[Record]) -> dict[str, tuple[Record, ...]]:
    """Group records by component, both in the order in which they came."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.component, []).append(record)
    return {component: tuple(group) for component, group in groups.items()}


def is_right(record: Record) -> bool:
    """Say whether the record's times may be compared at all: it is ok, and no parity check speaks against it."""
    return record.status == "ok" and at(record.parity, "passed") is not False


def times_taken_away(record: Record) -> float | None:
    """Return how often the processor was taken away while timing, where other programs disturbed it; else None."""
    taken, calls = number_at(record.metrics, "latency", "descheduled"), number_at(record.metrics, "wall_ms", "n")
    return taken if taken and calls and taken >= _BUSY_SHARE * calls else None


def wall_p50(record: Record) -> float | None:
    """Return the median wall time of a call in milliseconds."""
    return number_at(record.metrics, "wall_ms", "p50")


def peak_memory(record: Record) -> tuple[str, float] | None:
    """Return (kind, bytes) of the peak while the step was timed; never one without the other."""
    for key, kind in PEAK_KINDS:
        value = number_at(record.memory, key)
        if value is not None:
            return kind, value
    return None


def baseline_name(group: Sequence[Record]) -> str:
    """Return the variant that a component's speedups refer to."""
    named = (at(record.speedup, "vs") for record in group)
    return next((name for name in named if isinstance(name, str)), BASELINE)


def right_baseline(group: Sequence[Record]) -> Record | None:
    """Return the component's baseline if it ran and is right; without one nothing may be claimed against it."""
    name = baseline_name(group)
    return next((record for record in group if record.variant == name and is_right(record)), None)


def claimed_speedup(record: Record, group: Sequence[Record]) -> float | None:
    """Return the speedup that may be shown: that of a right record, against a baseline that is right as well."""
    baseline = right_baseline(group)
    if baseline is None or not is_right(record) or baseline.cell == record.cell:
        return None
    return number_at(record.speedup, "wall")


def overlap(first: Record, second: Record) -> bool | None:
    """Say whether the 95% intervals of two wall medians overlap; None where one of them has no interval."""
    one = interval_at(first.metrics, "wall_ms", "ci95")
    other = interval_at(second.metrics, "wall_ms", "ci95")
    if one is None or other is None:
        return None
    return one[0] <= other[1] and other[0] <= one[1]
