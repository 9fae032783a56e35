"""What a call did on the device, from its trace: a line a cell for the console, tables for `report.md` and the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from profiling.reporting.facts import added, at, is_right, items_at, number_at
from profiling.reporting.format import ABSENT, average_count, count_of, decimals, one_line, percent, significant, whole
from profiling.reporting.grid import Titled, grid, noted
from profiling.reporting.inside_kernels import kernel_table
from profiling.reporting.inside_modules import module_table
from profiling.reporting.inside_waits import wait_table
from profiling.reporting.table import shown_times
from profiling.results.records import Record
from profiling.trace.kernel_classes import CLASSES

#: Rows a cell that `report.md` has room for.
KERNELS, MODULES = 12, 20
#: The console names so many classes, each of at least such a share.
_MOST_CLASSES, _LEAST_SHARE = 4, 0.01

#: What a reader of idle times must know.
PROFILED = (
    "The profiler slows the host down, and replays by up to a tenth: idle time is longer here than in the timed calls."
)

_BUSY = (
    *("component", "variant", "calls traced", "kernels, copies, fills", "span ms", "busy ms", "idle ms", "idle share"),
    *("idle: waiting for the host ms", "idle: between kernels ms", "sum of kernels ms"),
)


def inside_lines(records: Sequence[Record]) -> tuple[str, ...]:
    """Return a line for each right cell whose trace saw the device: busy and idle time, classes, waits of the host."""
    told = [(record, (_busy(record), _shares(record), _waits(record))) for record in records if is_right(record)]
    return tuple(
        one_line(f"{record.component}.{record.variant}: {'; '.join(part for part in parts if part)}")
        for record, parts in told
        if parts[0]
    )


def inside_tables(
    records: Sequence[Record], environment: Mapping[str, Any], *, kernels: int = KERNELS, modules: int = MODULES
) -> tuple[Titled, ...]:
    """Return the Markdown tables of what traces say, those that have something in them; all times are of one call.

    `kernels` and `modules` are how many rows of them a cell gets; the others are added up in one.
    """
    traced = [record for record in records if record.inside]
    timed = [record for record in traced if number_at(record.inside, "span_ms") is not None]
    busy = noted(grid(_BUSY, [_row(record) for record in timed], markdown=True), (PROFILED,) if timed else ())
    shares = [row for record in traced if (row := _classes(record))]
    titled = (
        ("Device time of a call, busy and idle", busy),
        ("Device time by class of kernel, ms", grid(("component", "variant", *CLASSES), shares, markdown=True)),
        ("Kernels by total time", kernel_table(traced, environment, most=kernels)),
        ("Time by submodule", module_table(traced, most=modules)),
        ("Waits of the host, and copies between host and device", wait_table(traced)),
    )
    return tuple((title, table) for title, table in titled if table)


def class_times(record: Record) -> dict[str, float]:
    """Return the milliseconds of each class of kernel in a call; a class that is not known yet counts as other."""
    times: dict[str, float] = {}
    for item in items_at(record.inside, "classes"):
        name, ms = at(item, "class"), number_at(item, "ms")
        if ms is not None:
            known = name if name in CLASSES else CLASSES[-1]
            times[known] = times.get(known, 0.0) + ms
    return {name: times[name] for name in CLASSES if name in times}


def _busy(record: Record) -> str:
    inside = record.inside
    span, busy, idle = (number_at(inside, key) for key in ("span_ms", "busy_ms", "idle_ms"))
    if span is None or busy is None:
        return ""
    places = decimals(busy, 3)
    count = number_at(inside, "count")
    parts = [] if count is None else [count_of(round(count, 1), "kernel")]
    parts.append(f"busy {busy:.{places}f} of {span:.{places}f} ms")
    if idle is not None:
        host, between = number_at(inside, "idle", "host_ms"), _between(record)
        kinds = (("waiting for the profiled host", host), ("between kernels", between))
        split = ", ".join(f"{kind} {ms:.{places}f}" for kind, ms in kinds if ms is not None)
        parts.append(f"idle {idle:.{places}f} ms{f' ({split})' if split else ''}")
    return ", ".join(parts)


def _between(record: Record) -> float | None:
    return number_at(record.inside, "idle", "between_ms")


def _shares(record: Record) -> str:
    total = number_at(record.inside, "kernel_ms")
    if not total:
        return ""
    ranked = sorted(class_times(record).items(), key=lambda item: -item[1])[:_MOST_CLASSES]
    return ", ".join(f"{name} {percent(ms / total)}" for name, ms in ranked if ms >= _LEAST_SHARE * total)


def _waits(record: Record) -> str:
    """Say how often the host waits inside a call, and on which line longest: it should not wait at all."""
    waits = items_at(record.inside, "waits")
    count = added(waits, "count")
    if not count:
        return ""
    longest = max(waits, key=lambda wait: number_at(wait, "ms") or 0.0)
    line = at(longest, "line")
    where = f" ({'longest at ' if len(waits) > 1 else ''}{line})" if line else ""
    return f"the host waits {count_of(round(count, 1), 'time')} a call{where}"


def _row(record: Record) -> tuple[str, ...]:
    inside = record.inside
    span, idle = number_at(inside, "span_ms"), number_at(inside, "idle_ms")
    share = idle / span if span and idle is not None else None
    ends = (number_at(inside, "idle", "host_ms"), _between(record), number_at(inside, "kernel_ms"))
    return (
        *(record.component, record.variant, whole(number_at(inside, "calls"))),
        average_count(number_at(inside, "count")),
        *shown_times(record, *map(significant, (span, number_at(inside, "busy_ms"), idle))),
        percent(share, 1),
        *shown_times(record, *map(significant, ends)),
    )


def _classes(record: Record) -> tuple[str, ...]:
    """Return the row of classes; empty where none is known."""
    times, total = class_times(record), number_at(record.inside, "kernel_ms")
    shown = (_with_share(times[name], total) if name in times else ABSENT for name in CLASSES)
    return (record.component, record.variant, *shown_times(record, *shown)) if times else ()


def _with_share(ms: float, total: float | None) -> str:
    return f"{significant(ms)} ({percent(ms / total)})" if total else significant(ms)
