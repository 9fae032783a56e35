"""The distance of calls from their roofline, what bounds them, the next step, and predicted against measured times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from profiling.errors import printable
from profiling.report.format import significant
from profiling.report.heading import ceilings_line
from profiling.report.page import Section
from profiling.report.run_data import RunData, cell_table
from profiling.report.table import Column, columns
from profiling.results.explanations import KernelFinding, NextStep, RooflinePart
from profiling.results.field import described
from profiling.results.record import AND, BASELINE, MIXED, Record
from profiling.results.verdicts import taken

#: Title of the table of what bounds each cell.
REASONS = "What bounds it, and why"
#: Title of the table of kernels that could take less time.
FINDINGS = "Findings: kernels that could take less"
#: The steps of which a recipe has one at most, and the one that comes last.
_COMPILE, _CAPTURE = "compile", "cuda_graph"
_SAVES = (
    f"Saves: {described(KernelFinding, 'saves_ms').meaning}. Kernels that run side by side count each, so that "
    "their times may add up to more than the call's."
)


class Judged(NamedTuple):
    """A call of a record, or one stage of a frame: its roofline and its median time in milliseconds."""

    record: Record
    roofline: RooflinePart
    stage: str | None
    ms: float | None


#: A step for a call, the stage of the call, and the median that its variant was measured with.
_Predicted = tuple[Record, NextStep, str | None, float | None]
#: A finding on a call, or on the stage of that name.
_Found = tuple[Record, KernelFinding, str | None]


def judged_calls(record: Record, *, whole: bool = False) -> tuple[Judged, ...]:
    """Return the record's call, or each stage of its frame, with `whole` the frame, too; empty without a roofline."""
    roofline = record.roofline
    if roofline is None:
        return ()
    if not roofline.parts:
        return (Judged(record, roofline, None, record.median_ms),)
    calls = tuple(Judged(record, part, stage, stage_ms(record, stage)) for stage, part in roofline.parts.items())
    return (*calls, Judged(record, roofline, "frame", record.median_ms)) if whole else calls


def stage_ms(record: Record, stage: str | None) -> float | None:
    """Return the median ms of a stage, or of the call (None): on the device, or on the host where there is none."""
    if stage is None:
        return record.median_ms
    budget = record.realtime.budget if record.realtime is not None else None
    part = budget.parts.get(stage) if budget is not None else None
    return None if part is None else part.host_ms if part.device_ms is None else part.device_ms


def deciding(record: Record) -> Judged | None:
    """Return the call, or the longest stage of a frame: the part to optimise first."""
    calls = [call for call in judged_calls(record) if call.stage is None or call.ms is not None]
    return max(calls, key=lambda call: call.ms or 0.0) if calls else None


def next_step(record: Record, group: Sequence[Record]) -> tuple[str, str]:
    """Return what to try next in a few words, `GEMM M=17: ~1.7 ms`, and as a sentence; empty where nothing is known.

    A time with `~` is predicted from the ceilings or the measured kernels; one without was measured in this run. A
    variant that this run measured as no faster, that failed or could not run, is never named: the next best step is.
    """
    call = deciding(record)
    return (_way_out(record) or ("", "")) if call is None else _step_of(call, group)


def _step_of(call: Judged, group: Sequence[Record]) -> tuple[str, str]:
    if (way_out := _way_out(call.record)) is not None:
        return way_out
    for step in call.roofline.steps:
        tried = _tried(call.record, step, group)
        if tried and not any(_helps(call, other) for other in tried):
            continue
        known = [ms for other in tried if _helps(call, other) and (ms := stage_ms(other, call.stage)) is not None]
        of_stage = f"{call.stage}: " if call.stage else ""
        words, advice = step.words, step.advice
        if step.variant is not None:
            whole = with_steps(call.record, step.variant)
            words = whole if words == step.variant else words
            advice = advice.replace(f"({step.variant})", f"({whole})")
        words, advice = printable(of_stage + words), printable(of_stage + advice)
        if known:
            return f"{words}: {significant(min(known), 2)} ms", f"{advice}, measured {significant(min(known), 3)} ms"
        if step.wall_ms is not None:
            expected = significant(step.wall_ms, 2)
            bound = "at best" if step.variant is None else "expected"
            stage = " for this stage" if call.stage else ""
            return f"{words}: ~{expected} ms", f"{advice}, {bound} {expected} ms{stage}"
        return words, advice
    return "", ""


def with_steps(record: Record, variant: str) -> str:
    """Return the recipe of a record with the steps of `variant` that it lacks; a record that has a compiler keeps it.

    A loop whose stages have recipes of their own has none to which steps could be added.
    """
    name = record.variant.partition("@")[0]
    own = [] if name in (BASELINE, MIXED) else name.split(AND)
    has_compiler = any(each.kind == "compiler" for each in record.recipe or ())
    added = [each for each in variant.split(AND) if each not in own and not (has_compiler and each == _COMPILE)]
    return AND.join(sorted((*own, *added), key=lambda each: each == _CAPTURE))


def _tried(record: Record, step: NextStep, group: Sequence[Record]) -> list[Record]:
    """Return the records of the group whose recipe is that of a record with a step."""
    wanted = {*with_steps(record, step.variant or "").split(AND)}
    return [each for each in group if step.variant and {*each.variant.partition("@")[0].split(AND)} == wanted]


def _way_out(record: Record) -> tuple[str, str] | None:
    """Return what to do where other processes lengthened the calls of a CPU, which are then no basis for advice."""
    others, conditions = taken(record.conditions), record.metrics.latency
    if others is None or not others.is_named or not (record.device or "").startswith("cpu"):
        return None
    if conditions is None or conditions.pinned_cores:
        return None
    return "threads=1", "measure again with threads=1, which pins the process to one core"


def _helps(call: Judged, other: Record) -> bool:
    """Return whether a variant of the run may be faster than a call: another one, correct, not known as slower."""
    ms = stage_ms(other, call.stage)
    is_faster = call.ms is None or ms is None or ms < call.ms
    return other.variant != call.record.variant and other.is_correct and is_faster


def roofline_section(data: RunData) -> Section:
    """Return rooflines and what bounds each call with its evidence, findings, and predictions."""
    calls = [call for record in data.records for call in judged_calls(record)]
    rows = [call for record in data.records for call in judged_calls(record, whole=True)]
    why = cell_table(REASONS, (*_ROOFLINE, _next_column(data)), rows, depth="report")
    found = [(call.record, each, call.stage) for call in calls for each in call.roofline.findings]
    findings = cell_table(FINDINGS, _FINDING, found, depth="report")
    predicted = _predictions(calls, data.records)
    predictions = cell_table("Predicted and measured medians", _PREDICTION, predicted, depth="report")
    legend = (
        ceilings_line(data.environment),
        "Roofline: the least time of a call on this device: its bytes at the bandwidth ceiling, or its FLOPs at the "
        "FLOP ceiling, whichever takes longer. × roofline: measured time / roofline.",
        *([_SAVES] if found else []),
    )
    shown = tuple(filter(None, legend)) if calls else ()
    return Section("roofline", "Roofline", legend=shown, tables=(why, findings, predictions), depth="report")


def _predictions(calls: Sequence[Judged], records: Sequence[Record]) -> list[_Predicted]:
    """Return each step whose time was predicted, with what its variant took if it was measured and is correct."""
    found = []
    for call in calls:
        group = [each for each in records if each.is_correct and each.component == call.record.component]
        for step in (step for step in call.roofline.steps if step.variant is not None and step.wall_ms is not None):
            other = next(iter(_tried(call.record, step, group)), None)
            found.append((call.record, step, call.stage, other and stage_ms(other, call.stage)))
    return found


def _next_column(data: RunData) -> Column[Judged]:
    """Return the column of what to try: what the run measured as slower is not in it."""

    def read(call: Judged) -> str | None:
        if not call.record.is_correct or call.roofline.bound is None:
            return None
        return _step_of(call, data.groups[call.record.component])[1] or None

    return Column("next", read, wrap=40)


_ROOFLINE = (
    Column[Judged]("stage", lambda call: call.stage),
    *columns(RooflinePart, "roofline_ms", "memory_ms", "compute_ms"),
    Column[Judged]("measured", lambda call: call.ms, "ms"),
    Column[Judged]("× roofline", lambda call: call.roofline.over_roofline, "ratio"),
    *columns(RooflinePart, "idle_share", "device_work.kernels", "device_work.median_us", "bound"),
    Column[Judged]("evidence, the decisive first", lambda call: "; ".join(call.roofline.evidence) or None, wrap=60),
)
_FINDING = (
    Column[_Found]("stage", lambda row: row[2]),
    *columns(KernelFinding, "what", "count", "ms", "share", "saves_ms", "gbps", "tflops", "of_ceiling", "blocks"),
    Column[_Found]("longest", lambda row: row[1].kernels[0] if row[1].kernels else None),
)
_PREDICTION = (
    Column[_Predicted]("stage", lambda row: row[2]),
    *columns(NextStep, "variant", "wall_ms"),
    Column[_Predicted]("measured", lambda row: row[3], "ms"),
    Column[_Predicted](
        "measured / predicted", lambda r: r[3] / r[1].wall_ms if r[3] and r[1].wall_ms else None, "ratio"
    ),
)
