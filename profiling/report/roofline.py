"""The distance of calls from their roofline, what bounds them, the next step, and predicted against measured times."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from profiling.errors import printable
from profiling.report.format import significant, times
from profiling.report.heading import ceilings_line
from profiling.report.page import Section
from profiling.report.run_data import RunData, cell_table, name_of
from profiling.report.table import Column, Table
from profiling.report.trace import class_shares
from profiling.results.judgement import correct_baseline, fastest_correct
from profiling.results.record import Record, RooflinePart

#: Title of the table of what bounds each cell.
REASONS = "What bounds it, and why"
#: Most observations that a line gives as evidence; the table has all of them.
_MOST_REASONS = 2


@dataclass(frozen=True)
class Judged:
    """A call of a record, or one stage of a frame: its roofline and its median time in milliseconds."""

    record: Record
    stage: str | None
    roofline: RooflinePart
    ms: float | None
    over_roofline: float | None


@dataclass(frozen=True)
class _Predicted:
    judged: Judged
    ms: float
    measured_ms: float | None

    @property
    def variant(self) -> str:
        predicted = self.judged.roofline.predicted
        return predicted.variant if predicted else ""


def judged_calls(record: Record) -> tuple[Judged, ...]:
    """Return the record's call, or each stage of its frame; empty where it has no roofline."""
    roofline = record.roofline
    if roofline is None:
        return ()
    if not roofline.parts:
        return (Judged(record, None, roofline, record.median_ms, roofline.over_roofline),)
    calls = []
    for stage, part in roofline.parts.items():
        ms = stage_ms(record, stage)
        over = ms / part.roofline_ms if ms is not None and part.roofline_ms else None
        calls.append(Judged(record, stage, part, ms, over))
    return tuple(calls)


def stage_ms(record: Record, stage: str) -> float | None:
    """Return the median time of a stage in milliseconds: on the device, or on the host where there is none."""
    budget = record.realtime.budget if record.realtime is not None else None
    part = budget.parts.get(stage) if budget is not None else None
    return None if part is None else part.host_ms if part.device_ms is None else part.device_ms


def deciding(record: Record) -> Judged | None:
    """Return the call, or the longest stage of a frame: the part to optimise first."""
    calls = [call for call in judged_calls(record) if call.stage is None or call.ms is not None]
    return max(calls, key=lambda call: call.ms or 0.0) if calls else None


def next_step(record: Record, group: Sequence[Record]) -> tuple[str, str]:
    """Return what to try next in a few words, and as a sentence; never a variant that was measured to be slower."""
    call = deciding(record)
    if call is None or call.roofline.advice is None:
        return "", ""
    # An advice reads "reason: what to do"; the evidence gives the reason already.
    advice = printable(call.roofline.advice).rstrip(".")
    sentence = advice.partition(": ")[2] or advice
    short, predicted = call.roofline.next_step, call.roofline.predicted
    tried = {other.variant: other.median_ms for other in group if other.is_correct and other.median_ms is not None}
    for name, ms in tried.items():
        named = re.search(rf"(?<!\w){re.escape(name)}(?!\w)", f"{short}, {sentence}")
        if named and name != record.variant and ms >= (record.median_ms or 0.0):
            return "", f"no faster variant is known: {name} was measured at {significant(ms, 3)} ms"
    if predicted is not None and predicted.variant not in tried:
        return f"{predicted.variant}: ~{significant(predicted.wall_ms, 3)} ms", sentence
    return printable(short or sentence.partition(" (")[0]), sentence


def bound_line(record: Record, group: Sequence[Record]) -> str:
    """Return how far a correct record is above its roofline, what bounds it and what is next; empty if unknown."""
    call, roofline = deciding(record), record.roofline
    if call is None or roofline is None or not record.is_correct:
        return ""
    sentences = []
    if roofline.over_roofline is not None and roofline.roofline_ms is not None:
        least = significant(roofline.roofline_ms, 3)
        sentences.append(f"{times(roofline.over_roofline)} above its roofline ({least} ms)")
    bound = ""
    if call.roofline.bound is not None:
        reasons = "; ".join(call.roofline.evidence[:_MOST_REASONS])
        traced = record.trace_analysis if call.stage is None and call.roofline.bound == "slow kernels" else None
        kernels = ", ".join(class_shares(traced, 2)) if traced is not None else ""
        bound = f"bound by {call.roofline.bound}{f' ({kernels})' if kernels else ''}{f': {reasons}' if reasons else ''}"
    if call.stage is None:
        sentences.append(f"B{bound[1:]}" if bound else "")
    else:
        above = f"{times(call.over_roofline)} above its roofline" if call.over_roofline is not None else ""
        words = ", ".join(filter(None, (above, bound)))
        sentences.append(
            f"Its longest stage, {call.stage}, takes {significant(call.ms, 3)} ms, {words}" if words else ""
        )
    if step := next_step(record, group)[1]:
        sentences.append(f"Next: {step}")
    line = ". ".join(filter(None, sentences))
    return printable(f"{line}{_outcome(call, group)}.") if line else ""


def roofline_section(data: RunData) -> Section:
    """Return what bounds the fastest variants and the baselines, rooflines with their evidence, and predictions."""
    lines = []
    for group in data.groups.values():
        chosen = {record.variant: record for record in (fastest_correct(group), correct_baseline(group)) if record}
        lines += [f"{name_of(each)}: {line}" for each in chosen.values() if (line := bound_line(each, group))]
    calls = [call for record in data.records for call in judged_calls(record)]
    wholes = [
        Judged(r, "frame", r.roofline, r.median_ms, r.roofline.over_roofline)
        for r in data.records
        if r.roofline is not None and r.roofline.parts
    ]
    rows = sorted([*calls, *wholes], key=lambda call: data.records.index(call.record))
    rooflines = cell_table("Roofline", _ROOFLINE, rows, _record_of, depth="report")
    reasons = [call for call in calls if call.roofline.bound is not None and call.record.is_correct]
    why = cell_table(REASONS, _REASON, reasons, _record_of, depth="report")
    predictions = Table(
        "Predicted and measured medians", _PREDICTION, _predictions(calls, data.records), depth="report"
    )
    legend = (
        ceilings_line(data.environment),
        "Roofline: the least time of a call on this device: its bytes at the bandwidth ceiling, or its FLOPs at the "
        "FLOP ceiling, whichever takes longer. Above roofline: measured time / roofline.",
    )
    return Section(
        "roofline", "Roofline", lines, tuple(filter(None, legend)) if calls else (), (rooflines, why, predictions)
    )


def _record_of(call: Judged) -> Record:
    return call.record


def _predictions(calls: Sequence[Judged], records: Sequence[Record]) -> list[_Predicted]:
    return [
        _Predicted(call, call.roofline.predicted.wall_ms, _measured(call, records))
        for call in calls
        if call.roofline.predicted is not None
    ]


def _measured(call: Judged, records: Sequence[Record]) -> float | None:
    """Return what the predicted variant took, if it was measured and is correct."""
    predicted = call.roofline.predicted
    if predicted is None:
        return None
    cell = (call.record.component, predicted.variant)
    other = next((record for record in records if record.cell == cell and record.is_correct), None)
    return None if other is None else other.median_ms if call.stage is None else stage_ms(other, call.stage)


def _outcome(call: Judged, group: Sequence[Record]) -> str:
    measured = _measured(call, group)
    return "" if measured is None else f"; measured {significant(measured, 3)} ms"


def _ms(name: str) -> Callable[[Judged], float | None]:
    return lambda call: getattr(call.roofline, name)


def _work(name: str) -> Callable[[Judged], float | None]:
    return lambda call: getattr(call.roofline.device_work, name, None)


_STAGE = Column[Judged]("stage", lambda call: call.stage)
_ROOFLINE = (
    _STAGE,
    Column[Judged]("roofline", _ms("roofline_ms"), "ms"),
    Column[Judged]("memory", _ms("memory_ms"), "ms"),
    Column[Judged]("compute", _ms("compute_ms"), "ms"),
    Column[Judged]("measured", lambda call: call.ms, "ms", measured=True),
    Column[Judged]("above roofline", lambda call: call.over_roofline, "ratio", measured=True),
    Column[Judged]("GPU idle", lambda call: call.roofline.idle_share, "percent"),
    Column[Judged]("kernels", _work("kernels"), "count"),
    Column[Judged]("median kernel", _work("median_us"), "us"),
    Column[Judged]("bound by", lambda call: call.roofline.bound),
)
_REASON = (
    _STAGE,
    Column[Judged]("bound by", lambda call: call.roofline.bound),
    Column[Judged]("evidence, the decisive first", lambda call: "; ".join(call.roofline.evidence) or None),
    Column[Judged]("next", lambda call: call.roofline.advice),
)
_PREDICTION = (
    Column[_Predicted]("component", lambda row: row.judged.record.component),
    Column[_Predicted]("variant", lambda row: row.variant),
    Column[_Predicted]("stage", lambda row: row.judged.stage),
    Column[_Predicted]("predicted from", lambda row: row.judged.record.variant),
    Column[_Predicted]("predicted", lambda row: row.ms, "ms"),
    Column[_Predicted]("measured", lambda row: row.measured_ms, "ms"),
    Column[_Predicted](
        "measured / predicted",
        lambda row: row.measured_ms / row.ms if row.measured_ms and row.ms > 0 else None,
        "ratio",
    ),
)
