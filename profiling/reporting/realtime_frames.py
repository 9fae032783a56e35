"""What stood out in a loop of frames: slow frames with their causes, and memory that moves from frame to frame."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from profiling.reporting.facts import at, interval_at, is_right, items_at, mapping_at, number_at
from profiling.reporting.format import ABSENT, mebibytes, one_line, significant, struck, whole
from profiling.reporting.grid import grid
from profiling.results.records import Record

#: Slow frames of a variant that are shown; the record holds more.
SLOWEST = 5

#: The kinds of memory that are followed, and how each is called.
MEMORY_KINDS = {
    "allocated": "allocated",
    "reserved": "reserved",
    "device_used": "device used",
    "host_rss": "host RSS",
}

_SLOW = ("component", "variant", "cause", "frames", "slow frames in all", "slow above ms")
_SLOWEST = ("component", "variant", "causes", "frame", "ms")
_MEMORY = (
    *("component", "variant", "kind"),
    *("first MiB", "last MiB", "min MiB", "max MiB", "bytes a frame", "95% interval", "leak"),
)


def slow_causes(record: Record) -> dict[str, int]:
    """Return how many slow frames each cause had a part in, the commonest first; a frame may have several."""
    counts = {one_line(cause): value for cause, value in mapping_at(record.realtime, "slow", "causes").items()}
    known = {cause: int(number) for cause in counts if (number := number_at(counts, cause))}
    return dict(sorted(known.items(), key=lambda pair: -pair[1]))


def kind_of(cause: str) -> str:
    """Return the cause without the id that tells one recompile from another."""
    return "recompile" if cause.startswith("recompile") else cause


def slow_frames(record: Record) -> tuple[tuple[int, float, tuple[str, ...]], ...]:
    """Return (frame, milliseconds, causes) of the slow frames that the record lists, slowest first."""
    listed = (
        (number_at(item, "frame"), number_at(item, "ms"), tuple(map(one_line, items_at(item, "causes"))))
        for item in items_at(record.realtime, "slow", "frames")
    )
    return tuple((int(frame), ms, causes) for frame, ms, causes in listed if frame is not None and ms is not None)


def slow_table(rows: Sequence[Record], *, markdown: bool) -> str:
    """Return the slow frames by cause; a line without a cause where there were none."""
    return grid(_SLOW, [row for record in rows for row in _slow(record)], markdown=markdown, names=3)


def slowest_table(rows: Sequence[Record], *, markdown: bool) -> str:
    """Return the few slowest frames of each record with their causes."""
    lines = [
        (record.component, record.variant, ", ".join(causes) or ABSENT, str(frame), _time(record, ms))
        for record in rows
        for frame, ms, causes in slow_frames(record)[:SLOWEST]
    ]
    return grid(_SLOWEST, lines, markdown=markdown, names=3)


def memory_table(rows: Sequence[Record], *, markdown: bool) -> str:
    """Return what each kind of memory did over the frames, in MiB, and whether it leaks."""
    lines = [
        (record.component, record.variant, words, *_memory(memory))
        for record in rows
        for kind, words in MEMORY_KINDS.items()
        if (memory := mapping_at(record.realtime, "memory", kind))
    ]
    return grid(_MEMORY, lines, markdown=markdown, names=3)


def _slow(record: Record) -> Iterator[tuple[str, ...]]:
    slow = mapping_at(record.realtime, "slow")
    count = number_at(slow, "count")
    if count is not None:
        causes = slow_causes(record) or {ABSENT: None}
        totals = (whole(count), _time(record, number_at(slow, "threshold_ms")))
        for cause, frames in causes.items():
            yield (record.component, record.variant, cause, whole(frames), *totals)


def _memory(memory: Mapping[str, object]) -> tuple[str, ...]:
    sizes = (mebibytes(number_at(memory, key)) for key in ("first", "last", "min", "max"))
    interval, leak = interval_at(memory, "ci95"), at(memory, "leak")
    return (
        *sizes,
        significant(number_at(memory, "bytes_per_frame")),
        ABSENT if interval is None else f"[{significant(interval[0])}, {significant(interval[1])}]",
        ABSENT if not isinstance(leak, bool) else "yes" if leak else "no",
    )


def _time(record: Record, milliseconds: float | None) -> str:
    shown = significant(milliseconds)
    return shown if is_right(record) else struck(shown)
