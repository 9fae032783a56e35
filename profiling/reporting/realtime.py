"""The tables of a loop of frames: what its frames took, where a frame's budget went, which deadlines it met."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from profiling.reporting.facts import at, deadlines, is_realtime, is_right, mapping_at, number_at
from profiling.reporting.format import ABSENT, TIMES, percent, significant, whole
from profiling.reporting.grid import Titled, grid
from profiling.reporting.realtime_frames import memory_table, slow_table, slowest_table
from profiling.reporting.table import Column, cost_columns, layout, shown_times
from profiling.results.records import Record

#: Frames that the simulated player keeps in hand.
BUFFERS = ("0", "1", "2", "3")

_BUDGET = ("component", "variant", "stage", "device ms", "host ms", "share of the budget")
_BUDGET_TITLE = "Stage budget, medians; share: of device time, or of host time where no device ran"
_DEADLINES = ("FPS", "budget ms", "holds", "late", "longest run", "longest stall ms")


def realtime_tables(records: Sequence[Record], *, markdown: bool) -> tuple[Titled, ...]:
    """Return the tables of the records that are loops of frames; empty without any.

    Times of records that are not right are struck out, and no deadline is said to be held by them.
    """
    rows = [record for record in records if is_realtime(record)]
    if not rows:
        return ()
    deadline_headers = ("component", "variant", *_DEADLINES, *(f"underruns, buffer {size}" for size in BUFFERS))
    tables = (
        ("Frames", _frames(rows, markdown=markdown)),
        (_BUDGET_TITLE, grid(_BUDGET, [r for row in rows for r in _budget(row)], markdown=markdown, names=3)),
        ("Deadlines", grid(deadline_headers, [r for row in rows for r in _deadlines(row)], markdown=markdown)),
        ("Slow frames", slow_table(rows, markdown=markdown)),
        ("Slowest frames", slowest_table(rows, markdown=markdown)),
        ("Memory over the frames", memory_table(rows, markdown=markdown)),
    )
    return tuple((title, table) for title, table in tables if table)


def _frames(rows: Sequence[Record], *, markdown: bool) -> str:
    names = [
        Column("component", lambda record: record.component, "text"),
        Column("variant", lambda record: record.variant, "text"),
        Column("status", lambda record: record.status, "text"),
    ]
    columns = [
        *(_summary("frame", key) for key in ("p50", "p95", "p99", "max")),
        *(_summary("latency", key) for key in ("p50", "p99")),
        Column("late of\nframes", _late, "time"),
        *(_holds(rate) for rate in sorted({rate for record in rows for rate in deadlines(record)})),
        Column("sustained\nFPS", lambda record: significant(number_at(record.realtime, "sustained_fps")), "time"),
        Column("video\nFPS", lambda record: significant(number_at(record.realtime, "wall_fps")), "time"),
        Column("audio real-time\nfactor", _audio, "time"),
        *cost_columns(rows),
    ]
    kept = [column for column in columns if any(column.cell(record) != ABSENT for record in rows)]
    return layout([*names, *kept], rows, markdown=markdown)


def _summary(clock: str, key: str) -> Column:
    header = f"{clock}\n{key} ms"
    return Column(header, lambda record: significant(number_at(record.realtime, f"{clock}_ms", key)), "time")


def _late(record: Record) -> str:
    late, frames = number_at(record.realtime, "late"), number_at(record.realtime, "frames")
    return ABSENT if late is None else f"{late:.0f} of {whole(frames)}"


def _holds(rate: float) -> Column:
    return Column(f"holds\n{rate:g} FPS", lambda record: _verdict(record, deadlines(record).get(rate)), "text")


def _verdict(record: Record, deadline: object) -> str:
    """Return yes or no; a dash where it is not known, or where the times do not count."""
    holds = at(deadline, "holds")
    return ABSENT if not isinstance(holds, bool) or not is_right(record) else "yes" if holds else "no"


def _audio(record: Record) -> str:
    factor = number_at(record.realtime, "audio_rtf")
    return ABSENT if factor is None else f"{significant(factor, 3)}{TIMES}"


def _budget(record: Record) -> Iterator[tuple[str, ...]]:
    for stage, part in mapping_at(record.realtime, "budget", "parts").items():
        share = number_at(part, "share")
        yield (
            record.component,
            record.variant,
            stage,
            *shown_times(
                record,
                significant(number_at(part, "device_ms")),
                significant(number_at(part, "host_ms")),
                percent(share, 1),
            ),
        )


def _deadlines(record: Record) -> Iterator[tuple[str, ...]]:
    target = number_at(record.realtime, "target_fps")
    for rate, deadline in deadlines(record).items():
        underruns = mapping_at(record.realtime, "underruns") if rate == target else {}
        yield (
            record.component,
            record.variant,
            f"{rate:g}",
            significant(number_at(deadline, "budget_ms")),
            _verdict(record, deadline),
            *shown_times(
                record,
                whole(number_at(deadline, "misses")),
                whole(number_at(deadline, "longest_run")),
                significant(number_at(deadline, "longest_stall_ms")),
                *(whole(number_at(underruns, size)) for size in BUFFERS),
            ),
        )
