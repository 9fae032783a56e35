"""Slow frames: their causes with the milliseconds of each, the slowest of them, and marks in a chart."""

from __future__ import annotations

from collections.abc import Mapping

from profiling.errors import printable
from profiling.report.charts import Trace, palette, points
from profiling.report.format import count_of, significant
from profiling.report.table import Column
from profiling.results.record import Realtime, Record, SlowFrame, SlowFrames

#: Most slow frames listed for a variant; the record holds more.
SLOWEST = 5
_SYMBOLS = ("circle-open", "triangle-up-open", "square-open", "diamond-open", "triangle-down-open", "star-open")


def slow_words(loop: Realtime) -> str:
    """Return the causes of slow frames by number of frames, and their time; empty where no frame is late."""
    if not loop.late or loop.slow is None or not loop.slow.causes:
        return ""
    kinds: dict[str, int] = {}
    took_ms: dict[str, float] = {}
    for cause, number in by_number(loop.slow.causes):
        kinds[_kind(cause)] = kinds.get(_kind(cause), 0) + number
        took_ms[_kind(cause)] = took_ms.get(_kind(cause), 0.0) + loop.slow.cause_ms.get(cause, 0.0)
    words = (
        f"{kind} ({number}{f', {significant(took_ms[kind], 2)} ms' if took_ms[kind] else ''})"
        for kind, number in kinds.items()
    )
    return f"{count_of(loop.slow.count, 'slow frame')}: {', '.join(words)}"


def by_number(causes: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the causes with their numbers of frames, the commonest first."""
    return sorted(causes.items(), key=lambda item: -item[1])


def _kind(cause: str) -> str:
    """Return the cause without the id that tells one recompile from another."""
    return printable("recompile" if cause.startswith("recompile") else cause)


_Cause = tuple[Record, SlowFrames, str, int]
CAUSES = (
    Column[_Cause]("cause", lambda row: row[2]),
    Column[_Cause]("frames", lambda row: row[3], "count"),
    Column[_Cause]("of slow frames", lambda row: row[1].count, "count"),
    Column[_Cause]("time", lambda row: row[1].cause_ms.get(row[2]), "ms", measured=True),
    Column[_Cause]("threshold", lambda row: row[1].threshold_ms, "ms", measured=True),
)


_Slow = tuple[Record, SlowFrame]
SLOW = (
    Column[_Slow]("frame", lambda row: row[1].frame, "count"),
    Column[_Slow]("time", lambda row: row[1].ms, "ms", measured=True),
    Column[_Slow]("causes", lambda row: ", ".join(row[1].causes) or None),
)


def slow_marks(loop: Realtime, top: float) -> list[Trace]:
    """Mark each slow frame once for each kind of cause; hollow, so that one does not hide another."""
    by_cause: dict[str, list[SlowFrame]] = {}
    for frame in loop.slow.frames if loop.slow is not None else ():
        for cause in dict.fromkeys(map(_kind, frame.causes)):
            by_cause.setdefault(cause, []).append(frame)
    colours = palette(by_cause)
    return [
        points(
            f"slow: {printable(cause, 60)}",
            [frame.frame for frame in frames],
            [frame.ms for frame in frames],
            _SYMBOLS[place % len(_SYMBOLS)],
            colours[cause],
            size=9,
            top=top,
        )
        for place, (cause, frames) in enumerate(by_cause.items())
    ]
