"""The tables of a shape sweep: total time over numbers of calls, what preparing adds, and what it holds."""

from __future__ import annotations

from collections.abc import Sequence

from profiling.reporting.facts import (
    at,
    by_component,
    call_points,
    claimed_speedup,
    is_right,
    number_at,
    right_baseline,
)
from profiling.reporting.format import ABSENT, TIMES, mebibytes, significant, struck
from profiling.reporting.grid import Titled, grid
from profiling.results.records import Record

#: Stands before a time that was computed from the time of a call and not measured.
COMPUTED = "~"

_MEMORY = (
    (("phases", "steady", "allocated"), "allocated MiB"),
    (("phases", "steady", "reserved"), "reserved MiB"),
    (("peak_held",), "peak held MiB"),
    (("phases", "steady", "device_used"), "device used MiB"),
    (("peak_host_rss",), "host RSS peak MiB"),
    (("phases", "steady", "host_rss"), "host RSS settled MiB"),
)


def sweep_tables(records: Sequence[Record], *, markdown: bool) -> tuple[Titled, ...]:
    """Return (title, table) of the totals with and without preparation and of memory; empty without rows of calls."""
    rows = [record for record in records if call_points(record)]
    if not rows:
        return ()
    numbers = sorted({number for record in rows for number in call_points(record)})
    names = ("component", "variant")
    headers = [f"{number} call{'s' if number > 1 else ''} s" for number in numbers]
    with_build = [[*_name(r), *_totals(r, numbers, built=True), *_pays(r, rows)] for r in rows]
    without = [[*_name(r), *_totals(r, numbers, built=False)] for r in rows]
    memory = [[*_name(r), *(mebibytes(number_at(r.memory, *keys)) for keys, _ in _MEMORY), _graphs(r)] for r in rows]
    return (
        (
            "Total time with preparation",
            grid([*names, *headers, "ms a call", "speedup", "pays after calls"], with_build, markdown=markdown),
        ),
        ("Total time without preparation", grid([*names, *headers], without, markdown=markdown)),
        ("Memory held", grid([*names, *(header for _, header in _MEMORY), "graphs held"], memory, markdown=markdown)),
    )


def sweep_legend(records: Sequence[Record]) -> tuple[str, ...]:
    """Say how the totals are meant."""
    points = [point for record in records for point in call_points(record).values()]
    if not points:
        return ()
    lines = ["Total times are of calls in a row, waited for once; preparation is compiling, warming up and capturing."]
    if any(not at(point, "measured") for point in points):
        lines.append(f"{COMPUTED}: computed from the time of a call in the longest row that was measured.")
    if any(at(record.point, "value") == "all" for record in records):
        lines.append("A range of values: all shapes prepared in one process, the largest one timed.")
    return tuple(lines)


def _totals(record: Record, numbers: Sequence[int], *, built: bool) -> list[str]:
    prepare = number_at(record.prepare, "seconds")
    points = call_points(record)
    cells = []
    for number in numbers:
        point = points.get(number)
        seconds = number_at(point, "seconds")
        if seconds is None or (built and prepare is None):
            cells.append(ABSENT)
            continue
        mark = "" if at(point, "measured") else COMPUTED
        total = seconds + (prepare or 0.0) if built else seconds
        shown = significant(total, 3)
        # Apart, where it is struck out: three tildes in a row strike nothing out in Markdown.
        cells.append(f"{mark}{shown}" if is_right(record) else f"{mark} {struck(shown)}".strip())
    return cells


def _pays(record: Record, rows: Sequence[Record]) -> tuple[str, str, str]:
    per_call = number_at(record.metrics, "calls", "seconds_per_call")
    group = by_component(rows)[record.component]
    baseline = right_baseline(group)
    shown = significant(None if per_call is None else 1e3 * per_call)
    if baseline is None or baseline.cell == record.cell or not is_right(record):
        return shown if is_right(record) else struck(shown), ABSENT, ABSENT
    eager = number_at(baseline.metrics, "calls", "seconds_per_call")
    speedup = f"{significant(eager / per_call, 3)}{TIMES}" if eager and per_call else ABSENT
    calls = number_at(record.speedup, "break_even_calls")
    known = all(number_at(side.prepare, "seconds") is not None for side in (record, baseline))
    never = known and calls is None and claimed_speedup(record, group) is not None
    return shown, speedup, "never" if never else ABSENT if calls is None else f"{calls:.0f}"


def _graphs(record: Record) -> str:
    """Return how many CUDA graphs the variant holds: captured by hand, or by the compiler."""
    held = number_at(record.graphs, "held")
    if held is None and record.passes:
        return ABSENT  # captured by hand, and not counted
    captured = number_at(record.prepare, "cudagraph_captures")
    count = captured if held is None else held
    return ABSENT if count is None else f"{count:.0f}"


def _name(record: Record) -> tuple[str, str]:
    return record.component, record.variant
