"""How far calls are from what the device could do, what bounds them, and whether the advice came true."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from profiling.reporting.facts import (
    at,
    by_component,
    is_right,
    items_at,
    mapping_at,
    number_at,
    right_baseline,
    wall_p50,
)
from profiling.reporting.format import ABSENT, TIMES, one_line, percent, significant, whole
from profiling.reporting.grid import Titled, grid
from profiling.results.records import Record

_LIMITS = (
    "component",
    "variant",
    "floor ms",
    "memory ms",
    "compute ms",
    "achieved / floor",
    "GPU idle",
    "kernels",
    "kernel median µs",
    "bound",
)
_PARTS = ("component", "variant", "part", "floor ms", "memory ms", "compute ms", "achieved / floor")
_JUDGED = ("component", "variant", "bound", "evidence, what decided first", "advice")
#: So much of the evidence stands in a verdict; all of it in the table.
TOLD = 2
_PREDICTED = ("component", "variant", "predicted by", "predicted ms", "measured ms", "measured / predicted")


def limit_tables(records: Sequence[Record]) -> tuple[Titled, ...]:
    """Return the Markdown tables of floors, of what bounds and of predictions, those that have something in them."""
    judged = [record for group in by_component(r for r in records if r.limits).values() for record in group]
    calls, frames = ([r for r in judged if bool(mapping_at(r.limits, "parts")) is whole] for whole in (False, True))
    titled = (
        (
            "Floor of a call on this device, and what bounds it",
            grid(_LIMITS, [_row(record) for record in calls], markdown=True),
        ),
        ("Floor of a frame on this device, part by part", _table(_PARTS, 3, _parts, frames)),
        ("What bounds a call, and why", _table(_JUDGED, 5, _judged, calls)),
        ("What bounds each part of a frame, and why", _table(_JUDGED, 5, _judged, frames)),
        ("Predicted and measured, wall p50", _predicted(calls, records)),
        ("Parts of a frame, predicted and measured, median", _predicted(frames, records)),
    )
    return tuple((title, table) for title, table in titled if table)


def _table(
    head: Sequence[str], names: int, rows: Callable[[Record], list[tuple[str, ...]]], records: Iterable[Record]
) -> str:
    return grid(head, [row for record in records for row in rows(record)], markdown=True, names=names)


def _predicted(judged: Iterable[Record], records: Sequence[Record]) -> str:
    return _table(_PREDICTED, 3, lambda record: _predictions(record, records), judged)


def bound_lines(group: Sequence[Record]) -> tuple[str, ...]:
    """Say what bounds a component's baseline and what bounds its fastest variant, where they were judged."""
    judged = [record for record in group if is_right(record) and isinstance(at(record.limits, "bound"), str)]
    timed = sorted((time, place) for place, r in enumerate(judged) if (time := wall_p50(r)) is not None)
    if not timed:
        return ()
    told = {id(r): r for r in (right_baseline(group), judged[timed[0][1]]) if r in judged}
    return tuple(one_line(_bound(record, group)) for record in told.values() if record is not None)


def frame_floor(record: Record) -> str:
    """Say how far a frame is from its floor, which part of it takes longest, and why; nothing without a floor."""
    ratio, floor = (number_at(record.limits, key) for key in ("achieved_over_floor", "floor_ms"))
    timed = {name: ms for name in mapping_at(record.limits, "parts") if (ms := _part_ms(record, name)) is not None}
    if ratio is None or floor is None or not timed:
        return ""
    longest = max(timed, key=lambda name: timed[name])
    own = _over_floor(record, longest)
    beside = "" if own is None else f", {_times(own)} its own"
    part = f"longest {one_line(longest)} ({significant(timed[longest])} ms{beside})"
    limits = at(record.limits, "parts", longest)
    bound = f", {at(limits, 'bound')}: {at(limits, 'advice')}" if at(limits, "bound") else ""
    return f"{_times(ratio)} its floor of {significant(floor)} ms, {part}{bound}"


def ceilings_line(environment: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the parts of the line that says what the device does at best."""
    found = at(environment, "ceilings")
    kinds = (("copy", "copy_bytes_per_s"), ("read", "read_bytes_per_s"))
    parts = [f"{name} {_short(rate)}B/s" for name, key in kinds if (rate := number_at(found, key))]
    if rate := number_at(found, "matmul_flops_per_s"):
        parts.append(f"products in {one_line(at(found, 'dtype'))} {_short(rate)}FLOP/s")
    if rate := number_at(found, "conv_flops_per_s"):
        parts.append(f"convolutions {_short(rate)}FLOP/s")
    units = (("launch", "launch_us"), ("graph gap", "gap_us"), ("replay", "replay_us"))
    parts += [f"{name} {significant(time, 3)} µs" for name, key in units if (time := number_at(found, key)) is not None]
    if at(found, "disturbed"):
        lost = percent(number_at(found, "lost_share"))
        parts.append(f"measured while others had {lost} of the processor: not to be trusted, nor kept")
    reason = at(environment, "ceilings_reason")
    parts += [one_line(reason)] if isinstance(reason, str) else []
    return ("ceilings: " + parts[0], *parts[1:]) if parts else ()


def _row(record: Record) -> tuple[str, ...]:
    limits, idle = record.limits, number_at(record.limits, "idle_share")
    return (
        record.component,
        record.variant,
        *_terms(limits),
        _times(number_at(limits, "achieved_over_floor") if is_right(record) else None),
        percent(idle),
        whole(number_at(limits, "device_work", "kernels")),
        significant(number_at(limits, "device_work", "median_us"), 3),
        one_line(at(limits, "bound") or ABSENT),
    )


def _judged(record: Record) -> list[tuple[str, ...]]:
    """Return a row of what bounds the call, or one for each part of a frame."""
    rows = []
    for part, limits in _calls(record).items():
        if at(limits, "bound") and is_right(record):
            evidence = "; ".join(map(str, items_at(limits, "evidence")))
            words = map(one_line, (at(limits, "bound"), evidence, at(limits, "advice")))
            rows.append((_call_name(record, part), record.variant, *words))
    return rows


def _calls(record: Record) -> dict[str | None, Any]:
    """Return what is known of each part of a frame by its name, or of the one call, which is no part."""
    return {**mapping_at(record.limits, "parts")} or {None: record.limits}


def _call_name(record: Record, part: str | None) -> str:
    return one_line(record.component if part is None else f"{record.component}, {part}")


def _parts(record: Record) -> list[tuple[str, ...]]:
    """Return a row for each part of a frame, and the frame's own, which is held against its median."""
    parts = mapping_at(record.limits, "parts")
    right = is_right(record)
    rows = [
        (record.component, record.variant, name, *_terms(part), _times(_over_floor(record, name) if right else None))
        for name, part in parts.items()
    ]
    achieved = _times(number_at(record.limits, "achieved_over_floor") if is_right(record) else None)
    return [*rows, (record.component, record.variant, "frame", *_terms(record.limits), achieved)] if rows else []


def _over_floor(record: Record, part: str) -> float | None:
    """Return a part's median time over its floor; None where either is not known."""
    taken, floor = _part_ms(record, part), number_at(record.limits, "parts", part, "floor_ms")
    return None if taken is None or not floor else taken / floor


def _part_ms(record: Record, part: str) -> float | None:
    """Return what a part of a frame took: on the device, and on the host where there is none."""
    times = (number_at(record.realtime, "budget", "parts", part, f"{side}_ms") for side in ("device", "host"))
    return next((time for time in times if time is not None), None)


def _terms(limits: object) -> tuple[str, ...]:
    return tuple(significant(number_at(limits, key)) for key in ("floor_ms", "memory_ms", "compute_ms"))


def _predictions(record: Record, records: Sequence[Record]) -> list[tuple[str, ...]]:
    """Return a row of what was predicted of the call, or one for each part of a frame of which something was."""
    rows = []
    for part in _calls(record):
        variant, predicted, measured = _came_true(record, part, records)
        if predicted is not None:
            ratio = measured / predicted if measured is not None and predicted > 0 else None
            names = (_call_name(record, part), variant, record.variant)
            rows.append((*names, significant(predicted), significant(measured), _times(ratio)))
    return rows


def _came_true(record: Record, part: str | None, records: Sequence[Record]) -> tuple[str, float | None, float | None]:
    """Return (variant, predicted ms, measured ms) of what the judgement of the record's call, or `part`, predicts."""
    foretold = at(_calls(record).get(part), "predicted")
    variant, predicted = at(foretold, "variant"), number_at(foretold, "wall_ms")
    wanted = (r for r in records if r.cell == (record.component, variant) and is_right(r))
    found = next(wanted, None)
    measured = None if found is None else wall_p50(found) if part is None else _part_ms(found, part)
    return str(variant), predicted, measured


def _bound(record: Record, group: Sequence[Record]) -> str:
    limits, ratio = record.limits, number_at(record.limits, "achieved_over_floor")
    floor = "" if ratio is None else f", {_times(ratio)} its floor of {significant(number_at(limits, 'floor_ms'))} ms"
    evidence = ", ".join(map(str, items_at(limits, "evidence")[:TOLD]))
    variant, predicted, measured = _came_true(record, None, group)
    true = "" if predicted is None or measured is None else f" ({variant} measured {significant(measured)} ms)"
    return f"{record.variant} is {at(limits, 'bound')} ({evidence}){floor}: {at(limits, 'advice')}{true}"


def _times(ratio: float | None) -> str:
    return ABSENT if ratio is None else f"{significant(ratio, 3)}{TIMES}"


def _short(rate: float) -> str:
    unit, name = next(((unit, name) for unit, name in ((1e12, "T"), (1e9, "G")) if rate >= unit), (1e6, "M"))
    return f"{significant(rate / unit, 3)} {name}"
