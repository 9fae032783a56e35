"""Slow calls and slow frames: causes with the milliseconds of each, and marks in a chart."""

from __future__ import annotations

from collections.abc import Sequence

from profiling.errors import printable
from profiling.report.charts import MARKS, Series, palette
from profiling.report.format import count_of, listed, significant
from profiling.report.run_data import cell_table
from profiling.report.table import AnyTable, Column, columns
from profiling.results.loop import Realtime
from profiling.results.measured import SlowFrames
from profiling.results.record import Record

_SLOW = (
    "Slow: above the median, or the steady one of a loop, by 20% and by 5 median absolute deviations. A cause is named "
    "where it took half of the time beyond the median or more; one that is slow may have several."
)


def _kind(cause: str) -> str:
    """Return the cause without the id that tells one recompile from another."""
    return printable("recompile" if cause.startswith("recompile") else cause)


def summed_words(sections: Sequence[SlowFrames], noun: str) -> str:
    """Return the time of all slow calls or frames of a run, and its sum by cause; empty where there are none."""
    total_ms: dict[str, float] = {}
    for section in sections:
        for cause, ms in section.cause_ms.items():
            total_ms[_kind(cause)] = total_ms.get(_kind(cause), 0.0) + ms
    number, whole_ms = sum(section.count for section in sections), sum(total_ms.values())
    if not number or not whole_ms:
        return ""
    parts = [f"{cause} {significant(ms, 3)} ms" for cause, ms in sorted(total_ms.items(), key=lambda item: -item[1])]
    slow = count_of(number, f"slow {noun}")
    return f"{slow} took {significant(whole_ms, 3)} ms beyond the usual: {listed(parts)}."


def slow_table(sections: Sequence[tuple[Record, SlowFrames]], noun: str) -> AnyTable:
    """Return the table of causes, whose times add up to those of the slow calls or frames."""
    causes = [
        (record, slow, cause)
        for record, slow in sections
        for cause in sorted({**slow.causes, **slow.cause_ms}, key=lambda cause: -slow.causes.get(cause, 0))
    ]
    by_cause = (
        Column[_Cause]("cause", lambda row: row[2]),
        Column[_Cause](f"{noun}s", lambda row: row[1].causes.get(row[2], 0), "count"),
        Column[_Cause](f"of slow {noun}s", lambda row: row[1].count, "count"),
        Column[_Cause]("time", lambda row: row[1].cause_ms.get(row[2]), "ms", measured=True),
        *columns(SlowFrames, "threshold_ms"),
    )
    return cell_table(f"Slow {noun}s by cause", by_cause, causes, (_SLOW,), 3, "report")


_Cause = tuple[Record, SlowFrames, str]


def slow_marks(loop: Realtime) -> list[Series]:
    """Mark each slow frame once for each kind of cause; hollow, so that one does not hide another."""
    by_cause: dict[str, list[tuple[float, float]]] = {}
    for frame in loop.slow.frames if loop.slow is not None else ():
        for cause in dict.fromkeys(map(_kind, frame.causes)):
            by_cause.setdefault(cause, []).append((frame.frame, frame.ms))
    colours = palette(by_cause)
    return [
        Series(f"slow: {printable(cause, 60)}", points, colours[cause], MARKS) for cause, points in by_cause.items()
    ]
