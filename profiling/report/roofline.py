"""The distance of calls from their roofline, what bounds them, the next step, and predicted against measured times."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from profiling.errors import printable
from profiling.report.format import Link, Value, count_of, significant, times
from profiling.report.heading import ceilings_line
from profiling.report.page import Section
from profiling.report.run_data import RunData, cell_table, link_to, name_of, row_name, wrong_because
from profiling.report.table import Column, Table
from profiling.results.explained import KernelFinding, NextStep, RooflinePart
from profiling.results.judgement import correct_baseline, disturbance_explains, fastest_correct, lost
from profiling.results.record import Record

#: Title of the table of what bounds each cell.
REASONS = "What bounds it, and why"
#: Title of the table of kernels that could take less time.
FINDINGS = "Findings: kernels that could take less"
_SAVES = (
    "Could save: kernel time beyond the ceilings, or all of it for kernels that better code would not launch. Bytes: "
    "those of the operators' tensors, read and written once. Kernels that run side by side count each, so that their "
    "times may add up to more than the call's."
)


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
    variant: str
    ms: float
    measured_ms: float | None


@dataclass(frozen=True)
class _Found:
    record: Record
    stage: str | None
    finding: KernelFinding


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
        over = part.over_roofline  # of one call, where a frame makes several
        if over is None and ms is not None and part.roofline_ms:
            over = ms / part.roofline_ms
        calls.append(Judged(record, stage, part, ms, over))
    return tuple(calls)


def stage_ms(record: Record, stage: str) -> float | None:
    """Return the median time of a stage in milliseconds: on the device, or on the host where there is none."""
    budget = record.realtime.budget if record.realtime is not None else None
    part = budget.parts.get(stage) if budget is not None else None
    return None if part is None else part.host_ms if part.device_ms is None else part.device_ms


def findings_of(call: Judged) -> tuple[KernelFinding, ...]:
    """Return the kernels of a call, or of a stage, that could take less; the largest saving first."""
    if call.stage is not None:
        return call.roofline.findings
    return call.record.trace_analysis.findings if call.record.trace_analysis is not None else ()


def link_to_findings(call: Judged, words: str) -> Link | str:
    """Return `words` with a link to the findings of a call, where it has any."""
    return link_to(words, FINDINGS, call.record, call.stage) if findings_of(call) else words


def deciding(record: Record) -> Judged | None:
    """Return the call, or the longest stage of a frame: the part to optimise first."""
    calls = [call for call in judged_calls(record) if call.stage is None or call.ms is not None]
    return max(calls, key=lambda call: call.ms or 0.0) if calls else None


def steps_of(roofline: RooflinePart) -> tuple[NextStep, ...]:
    """Return what to try, the best first. An older record has one step."""
    predicted = roofline.predicted
    if roofline.steps or (roofline.advice is None and predicted is None):
        return roofline.steps
    # Its advice reads "reason: what to do"; the evidence gives the reason already.
    advice = (roofline.advice or (predicted.variant if predicted else "")).rstrip(".")
    advice = advice.partition(": ")[2] or advice
    words = roofline.next_step or advice.partition(" (")[0]
    if predicted is None:
        return (NextStep(words=words, advice=advice),)
    return (NextStep(words=predicted.variant, advice=advice, variant=predicted.variant, wall_ms=predicted.wall_ms),)


def next_step(record: Record, group: Sequence[Record]) -> tuple[str, str]:
    """Return what to try next in a few words, and as a sentence.

    A variant that this run measured as slower, that failed or could not run, is never named; the next best step is. If
    nothing else remains to try, the sentence says why.
    """
    call = deciding(record)
    return _step_of(call, group) if call is not None else ("", "")


def _step_of(call: Judged, group: Sequence[Record]) -> tuple[str, str]:
    refuted = ""
    for step in steps_of(call.roofline):
        text = f"{step.variant or ''}, {step.words}, {step.advice}"
        reason = _refuted(call, group, text)
        if not reason:
            advice, words = printable(step.advice), printable(step.words)
            if step.wall_ms is None:
                return words, advice
            tried = step.variant is not None and any(_name(other) == step.variant for other in group)
            about = f"~{significant(step.wall_ms, 3)} ms"
            expected = advice if ", expect " in advice else f"{advice}, expected {about}"
            return words if tried else f"{words}: {about}", expected
        refuted = refuted or reason
    return "", f"no faster variant is known: {refuted}" if refuted else ""


def _refuted(call: Judged, group: Sequence[Record], text: str) -> str:
    """Return why a step of that text helps no further, if it names a variant of the run; empty where it may help.

    A variant that ran with several values of an option (`compile@dynamic=true`) helps no further if none of them does.
    """
    forms: dict[str, list[Record]] = {}
    for other in group:
        forms.setdefault(_name(other), []).append(other)
    for name, others in forms.items():
        if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text):
            reasons = [_no_help(call, other) for other in others]
            if all(reasons):
                return reasons[0]
    return ""


def _name(record: Record) -> str:
    """Return the variant without the value of an option that it ran with."""
    return record.variant.partition("@")[0]


def _no_help(call: Judged, other: Record) -> str:
    """Return why advice on a call must not name this variant (in use, wrong or slower); empty: it may."""
    if other.variant == call.record.variant:
        return printable(f"{other.variant} is how it runs")
    if not other.is_correct:
        return printable(f"{other.variant} is {wrong_because(other) or 'failed'}")
    if call.ms is None or (ms := _ms_of(other, call.stage)) is None or ms < call.ms:
        return ""
    if disturbance_explains(call.record, other) is not None:  # it might be faster where nothing else runs
        return ""
    return f"{other.variant} was measured at {significant(ms, 3)} ms"


def bound_line(record: Record, group: Sequence[Record]) -> str:
    """Return in short sentences what bounds a correct record, the doubt about it, and what is next; or ""."""
    call, roofline = deciding(record), record.roofline
    if call is None or roofline is None or not record.is_correct:
        return ""
    parts = []
    if roofline.over_roofline is not None and roofline.roofline_ms is not None:
        parts.append(f"{times(roofline.over_roofline)} above its roofline ({significant(roofline.roofline_ms, 3)} ms)")
    bound = f"bound by {call.roofline.bound}" if call.roofline.bound is not None else ""
    if call.stage is None:
        parts = [bound, *parts]
    else:
        above = f", {times(call.over_roofline)} above its own" if call.over_roofline is not None else ""
        longest = f"its longest stage, {call.stage}, takes {significant(call.ms, 3)} ms{above}"
        parts = ["; ".join((*parts, longest)), bound]
    sentence = ", ".join(filter(None, parts))
    if bound and (reasons := _reasons(call)):
        sentence += f": {reasons}"
    step = next_step(record, group)[1]
    taken = lost(record) if bound else None
    doubt = f"{taken.words}, which may be the reason" if taken is not None and taken.disturbs else ""
    next_words = f"Next: {step}{_outcome(call, group)}" if step else ""
    sentences = [each[:1].upper() + each[1:] for each in (sentence, doubt, next_words)]
    line = ". ".join(filter(None, sentences))
    return printable(f"{line}.") if line else ""


def _reasons(call: Judged) -> str:
    """Return the decisive observations on a call, and what all of its findings could save."""
    first, *rest = call.roofline.evidence or ("",)
    reasons = [first, *(rest[:1] if "; " not in first else [])]
    if found := findings_of(call):
        saving = significant(_overlap(call) * sum(finding.saves_ms for finding in found), 2)
        reasons.append(f"{count_of(len(found), 'finding')} could save {saving} ms")
    return "; ".join(filter(None, reasons))


def _overlap(call: Judged) -> float:
    """Return the busy time of the GPU over the sum of its kernels' times: below 1 where they run side by side."""
    trace, work = call.record.trace_analysis, call.roofline.device_work
    if call.stage is None:
        busy, total = (trace.busy_ms, trace.kernel_ms) if trace is not None else (None, None)
    else:
        busy, total = work and work.busy_ms, sum(kernel.ms for kernel in call.roofline.kernels)
    return min(1.0, busy / total) if busy and total else 1.0


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
    why = cell_table(REASONS, (*_REASON, _next_column(data)), reasons, _record_of, depth="report")
    why = replace(why, name=lambda call: row_name(call.record, call.stage))
    found = list(_found(data.records))
    findings = cell_table(FINDINGS, _FINDING, found, lambda row: row.record, depth="report")
    findings = replace(findings, name=lambda row: row_name(row.record, row.stage))
    predictions = Table(
        "Predicted and measured medians", _PREDICTION, _predictions(calls, data.records), depth="report"
    )
    legend = (
        ceilings_line(data.environment),
        "Roofline: the least time of a call on this device: its bytes at the bandwidth ceiling, or its FLOPs at the "
        "FLOP ceiling, whichever takes longer. Above roofline: measured time / roofline.",
        *([_SAVES] if found else []),
    )
    return Section(
        "roofline",
        "Roofline",
        lines,
        tuple(filter(None, legend)) if calls else (),
        (rooflines, why, findings, predictions),
    )


def _found(records: Sequence[Record]) -> Iterator[_Found]:
    """Yield the findings of each call, or of the stages of its frame, or where those have none of the whole frame."""
    for record in records:
        found = [_Found(record, call.stage, each) for call in judged_calls(record) for each in findings_of(call)]
        if not found and record.trace_analysis is not None:
            found = [_Found(record, None, each) for each in record.trace_analysis.findings]
        yield from found


def _record_of(call: Judged) -> Record:
    return call.record


def _predictions(calls: Sequence[Judged], records: Sequence[Record]) -> list[_Predicted]:
    return [
        _Predicted(call, step.variant, step.wall_ms, _measured(call, step.variant, records))
        for call in calls
        for step in steps_of(call.roofline)
        if step.variant is not None and step.wall_ms is not None
    ]


def _measured(call: Judged, variant: str, records: Sequence[Record]) -> float | None:
    """Return what the variant took, if it was measured and is correct."""
    cell = (call.record.component, variant)
    other = next((record for record in records if record.cell == cell and record.is_correct), None)
    return None if other is None else _ms_of(other, call.stage)


def _ms_of(record: Record, stage: str | None) -> float | None:
    return record.median_ms if stage is None else stage_ms(record, stage)


def _outcome(call: Judged, group: Sequence[Record]) -> str:
    """Return what the variant of the step took that is named next, if it was measured; else nothing."""
    advised = _step_of(call, group)[1]
    for step in steps_of(call.roofline):
        if step.variant is not None and advised.startswith(printable(step.advice)):
            measured = _measured(call, step.variant, group)
            return "" if measured is None else f"; measured {significant(measured, 3)} ms"
    return ""


def _next_column(data: RunData) -> Column[Judged]:
    """Return the column of what to try: what the run measured as slower is not in it."""

    def read(call: Judged) -> Value | None:
        words = _step_of(call, data.groups[call.record.component])[1]
        return link_to_findings(call, words) if words else None

    return Column("next", read)


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
)
_FINDING = (
    Column[_Found]("stage", lambda row: row.stage),
    Column[_Found]("kernels", lambda row: row.finding.what),
    Column[_Found]("count", lambda row: row.finding.count, "count"),
    Column[_Found]("time", lambda row: row.finding.ms, "ms", measured=True),
    Column[_Found]("share", lambda row: row.finding.share, "percent"),
    Column[_Found]("could save", lambda row: row.finding.saves_ms, "ms"),
    Column[_Found]("GB/s", lambda row: row.finding.gbps, "number"),
    Column[_Found]("TFLOP/s", lambda row: row.finding.tflops, "number"),
    Column[_Found]("of the ceiling", lambda row: row.finding.of_ceiling, "percent"),
    Column[_Found]("blocks", lambda row: row.finding.blocks, "count"),
    Column[_Found]("longest", lambda row: row.finding.kernels[0] if row.finding.kernels else None),
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
