"""The kernels of a cell on either side: which appeared, vanished, or changed in number, time or source.

From what the records say about the inside of a call where both do, else from the profiler traces where both runs kept
them; and from the list of files that inductor generated.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from profiling.comparison.side import Side
from profiling.comparison.surroundings import Difference
from profiling.reporting.facts import at, items_at, number_at
from profiling.reporting.format import ABSENT, TIMES, count_of, one_line, shortened, significant
from profiling.results.records import Record

#: A kernel's time changed where it differs by this much, and the difference is this share of all kernels' time.
TIME_CHANGE, TIME_SHARE = 0.1, 0.01
_LONGEST_NAME = 80
# What gzip, json, and events that are none raise.
_UNREADABLE = (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, RecursionError, zlib.error)


@dataclass(frozen=True)
class Kernel:
    """All launches of one name in a call of the step."""

    launches: float
    microseconds: float


def kernel_changes(a: Side, b: Side, one: Record, two: Record) -> list[Difference]:
    """Return the differences, those that cost or save most time first; a trace that cannot be read is told before."""
    before, after = _recorded(one), _recorded(two)
    told: list[Difference] = []
    if not before or not after:  # only like with like: records cut long names, and traces of one side alone say nothing
        (before, lost), (after, lost_too) = _traced(a, one), _traced(b, two)
        if lost or lost_too:  # the times were judged without it
            told = [("kernels", lost or _how_many(before), lost_too or _how_many(after))]
    return [*told, *(_by_time(before, after) if before and after else ()), *_generated(one, two)]


def _how_many(kernels: Mapping[str, Kernel]) -> str:
    return count_of(len(kernels), "name") if kernels else ABSENT


def _by_time(before: Mapping[str, Kernel], after: Mapping[str, Kernel]) -> list[Difference]:
    none = Kernel(0, 0)
    total = max(sum(kernel.microseconds for kernel in side.values()) for side in (before, after))
    found: list[tuple[float, Difference]] = []
    for name in {**before, **after}:
        one, two = before.get(name, none), after.get(name, none)
        apart = abs(one.microseconds - two.microseconds)
        slower = apart > TIME_CHANGE * max(one.microseconds, two.microseconds) and apart > TIME_SHARE * total
        if one.launches != two.launches or slower:
            how = "appeared" if name not in before else "vanished" if name not in after else "changed"
            found.append((apart, (f"kernel {how}: {shortened(name, _LONGEST_NAME)}", _shown(one), _shown(two))))
    return [difference for _, difference in sorted(found, key=lambda item: -item[0])]


def _generated(one: Record, two: Record) -> list[Difference]:
    """Compare generated kernels by name and, since inductor names files by what is in them, by file.

    Files of whole graphs are passed over: they name the folders of their kernels, and differ in every run.
    """
    before, after = (_sources(record.kernels or ()) for record in (one, two))
    if not before or not after:
        return []
    found = []
    for name in dict.fromkeys((*before, *after)):
        files, others = before.get(name, set()), after.get(name, set())
        if files != others:
            texts = (", ".join(sorted(side)) or ABSENT for side in (files, others))
            how = "changed" if files and others else "vanished" if files else "appeared"
            found.append((f"generated kernel {how}: {shortened(name, _LONGEST_NAME)}", *texts))
    return found


def _sources(kernels: Sequence[Mapping[str, object]]) -> dict[str, set[str]]:
    sources: dict[str, set[str]] = {}
    for kernel in kernels:
        if at(kernel, "kind") != "graph":
            sources.setdefault(str(at(kernel, "name")), set()).add(PurePosixPath(str(at(kernel, "file"))).name)
    return sources


def _recorded(record: Record) -> dict[str, Kernel]:
    """Return the kernels of a call by name from the record itself; empty where it holds none."""
    found: dict[str, Kernel] = {}
    for item in items_at(record.inside, "kernels"):
        launches, ms = number_at(item, "count"), number_at(item, "ms")
        if launches and ms is not None:
            name = str(at(item, "name"))
            before = found.get(name, Kernel(0, 0))  # names that were cut may be the same
            found[name] = Kernel(before.launches + launches, before.microseconds + 1e3 * ms)
    return found


def _traced(side: Side, record: Record) -> tuple[dict[str, Kernel], str]:
    """Return the kernels of the cell's trace by name, and why they could not be read.

    No kernels and no reason: there is no trace, or no kernel in it.
    """
    file, iterations = at(record.trace, "trace"), number_at(record.trace, "iterations")
    if file is None or not iterations:
        return {}, ""
    try:
        path: Path = side.folder / str(file)
        return (_of_trace(path, iterations), "") if path.is_file() else ({}, "")
    except _UNREADABLE as error:
        said = one_line(error) or type(error).__name__
        return {}, f"{file} cannot be read: {said}. Run again with trace=true."


def _of_trace(path: Path, iterations: float) -> dict[str, Kernel]:
    with gzip.open(path, "rt", encoding="utf-8", errors="replace") as stream:
        events = [event for event in json.load(stream)["traceEvents"] if event.get("cat") == "kernel"]
    launches: Counter[str] = Counter()
    times: dict[str, float] = {}
    for event in events:
        name = str(event["name"])
        launches[name] += 1
        times[name] = times.get(name, 0.0) + event["dur"]
    return {name: Kernel(count / iterations, times[name] / iterations) for name, count in launches.items()}


def _shown(kernel: Kernel) -> str:
    if not kernel.launches:
        return ABSENT
    return f"{kernel.launches:g} {TIMES} {significant(kernel.microseconds / kernel.launches)} µs"
