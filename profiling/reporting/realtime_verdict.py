"""One line a loop of frames: whether it holds its frame rate, by how much, and what makes it miss."""

from __future__ import annotations

from collections.abc import Sequence

from profiling.reporting.facts import at, deadlines, is_realtime, is_right, number_at
from profiling.reporting.format import count_of, listed, one_line
from profiling.reporting.limits import frame_floor
from profiling.reporting.realtime_frames import kind_of, slow_causes
from profiling.reporting.realtime_words import growth, leaks, name_of, spikes
from profiling.results.records import Record


def realtime_verdicts(records: Sequence[Record]) -> tuple[str, ...]:
    """Return one line of plain text for each loop of frames; one that is not right never holds anything."""
    return tuple(one_line(f"{name_of(record)}: {_verdict(record)}.") for record in records if is_realtime(record))


def _verdict(record: Record) -> str:
    if record.status == "skipped":
        return f"skipped: {record.reason}"
    if not is_right(record):
        state, why = ("parity failed", "") if record.status == "ok" else (record.status, f": {record.reason}")
        return _joined(f"{state}, its times do not count{why}", leaks(record))
    holds, target = at(record.realtime, "holds"), number_at(record.realtime, "target_fps")
    if not isinstance(holds, bool) or not target:
        return _joined("no frame was held against a deadline", growth(record), leaks(record), spikes(record))
    lead = f"holds {target:g} FPS: {'yes' if holds else 'no'}"
    lead = ", ".join(filter(None, (lead, _p99(record, 1000 / target), _late(record, target))))
    missed = (_median(record, 1000 / target), _causes(record))
    rest = (growth(record), leaks(record), spikes(record), frame_floor(record))
    return _joined(lead, *missed, _others(record), *rest)


def _p99(record: Record, budget: float) -> str:
    p99 = number_at(record.realtime, "frame_ms", "p99")
    if p99 is None:
        return ""
    # As many decimals as tell the two apart: 16.7 of 16.7 ms would explain no miss.
    places = next((n for n in (1, 2, 3) if f"{p99:.{n}f}" != f"{budget:.{n}f}"), 1)
    return f"p99 {p99:.{places}f} of {budget:.{places}f} ms"


def _late(record: Record, target: float) -> str:
    late, frames = number_at(record.realtime, "late"), number_at(record.realtime, "frames")
    if late is None or frames is None:
        return ""
    stall = number_at(deadlines(record).get(target), "longest_stall_ms") if late else None
    return f"{late:.0f} of {frames:.0f} late{'' if stall is None else f' (longest stall {stall:.1f} ms)'}"


def _median(record: Record, budget: float) -> str:
    """Say when no single cause is to blame: a frame like any other takes too long."""
    p50 = number_at(record.realtime, "frame_ms", "p50")
    return "" if p50 is None or p50 <= budget else f"its median frame of {p50:.1f} ms is over the budget"


def _causes(record: Record) -> str:
    late, slow = number_at(record.realtime, "late"), number_at(record.realtime, "slow", "count")
    kinds: dict[str, int] = {}
    for cause, count in slow_causes(record).items():
        kinds[kind_of(cause)] = kinds.get(kind_of(cause), 0) + count
    if not late or not kinds:
        return ""
    # Slow and late frames are both those above some time, so as many of each are the same ones; else they are not.
    same = late == slow and at(record.realtime, "pace") != "realtime"
    of_which = "" if same or slow is None else f" of the {count_of(slow, 'slow frame')}"
    return f"causes{of_which}: {', '.join(f'{kind} {count}' for kind, count in kinds.items())}"


def _others(record: Record) -> str:
    """Say which of the frame rates beside the target hold."""
    target = number_at(record.realtime, "target_fps")
    known = {f"{rate:g}": at(item, "holds") for rate, item in deadlines(record).items() if rate != target}
    held = [rate for rate, holds in known.items() if holds is True]
    missed = [rate for rate, holds in known.items() if holds is False]
    if not held:
        return f"does not hold {listed(missed)} FPS" if missed else ""
    return f"holds {listed(held)} FPS{f', not {listed(missed)}' if missed else ''}"


def _joined(*parts: str) -> str:
    return "; ".join(filter(None, parts))
