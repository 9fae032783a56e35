"""The answer of a run, a row a component: the fastest correct variant, its time and speedup, what bounds it, what next.

A variant is called fastest only where measurement supports it: a tie, or a machine that was disturbed, is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from profiling.report.charts import FRAME_RATES
from profiling.report.format import Estimate, estimate, listed, one_line, significant
from profiling.report.page import Section
from profiling.report.roofline import bound_line, deciding, next_step
from profiling.report.run_data import RunData, wrong_because
from profiling.report.status import disturbance
from profiling.report.table import Column, Table
from profiling.results.judgement import (
    baseline_name,
    claimed_speedup,
    correct_baseline,
    fastest_correct,
    intervals_overlap,
    is_disturbed,
)
from profiling.results.record import Record, Summary

#: Characters of a next step that stands in the table; a longer one stands below it.
_SHORT = 24


@dataclass(frozen=True)
class Answer:
    """What a component's records say: the fastest correct one, None without any, and remarks on that claim."""

    component: str
    group: tuple[Record, ...]
    fastest: Record | None
    is_ranked: bool  # False where disturbed times cannot tell which variant is fastest
    remarks: tuple[str, ...]

    @property
    def speedup(self) -> Estimate | float | None:
        """The speedup against the baseline, where it may be claimed."""
        if self.fastest is None or self.fastest.speedup is None or not self.is_ranked:
            return None
        return estimate(claimed_speedup(self.fastest, self.group), self.fastest.speedup.ci95)


def answer_section(data: RunData) -> Section:
    """Return the answer table with the remarks below it."""
    ran = {name: group for name, group in data.groups.items() if any(record.status != "skipped" for record in group)}
    answers = [answer_of(name, group) for name, group in ran.items()]
    names = {baseline_name(answer.group) for answer in answers}
    table = Table("Answer", _columns(names), answers, [note for answer in answers for note in _notes(answer)], keys=1)
    return Section("answer", "Answer", () if data.records else ("No cell has ended yet.",), tables=(table,))


def answer_of(component: str, group: Sequence[Record]) -> Answer:
    """Judge the records of one component by their median wall or frame time."""
    fastest = fastest_correct(group)
    if fastest is None:
        return Answer(component, tuple(group), None, False, (_nothing(group),))
    others = [
        record for record in group if record.is_correct and record.median_ms is not None and record is not fastest
    ]
    others.sort(key=lambda record: record.median_ms or 0.0)
    unsure = [record for record in others if not _is_apart(fastest, record)]
    disturbed = [record for record in (fastest, *unsure) if is_disturbed(record)] if unsure else []
    remarks = []
    if disturbed:
        remarks += [f"{record.variant} was {disturbance(record)}" for record in disturbed]
        remarks.append("No ranking is claimed; repeat on a quiet machine")
    else:
        remarks += [_tie(fastest, others), _by_mean(fastest, others)]
    remarks += [_unsupported(fastest, group, alone=not others)]
    if fastest.parity is None:
        remarks.append("its output was not compared with a reference")
    return Answer(component, tuple(group), fastest, not disturbed, tuple(filter(None, remarks)))


def held_rate(record: Record) -> str | None:
    """Return the highest usual frame rate that the record holds, "real time" where a call makes many frames.

    A loop is judged by its own deadlines; a call by its p99, since a late frame is a lost one.
    """
    if record.is_realtime:
        held = [deadline.fps for deadline in record.deadlines if deadline.holds]
        missed = [deadline.fps for deadline in record.deadlines if not deadline.holds]
        return f"{max(held):g} FPS" if held else f"below {min(missed):g} FPS" if missed else None
    wall = record.metrics.wall_ms
    if wall is None or record.training is not None:  # a training step shows nobody a frame
        return None
    frames = record.frames_per_call or 1
    held = [rate for rate in FRAME_RATES if wall.p99 <= frames * 1000 / rate]
    if not held:
        return f"below {FRAME_RATES[0]} FPS"
    return "real time" if frames > 1 and len(held) == len(FRAME_RATES) else f"{held[-1]} FPS"


def median_of(record: Record) -> Estimate | float | None:
    """Return the median wall time of a call, or frame time of a loop, in milliseconds with its interval."""
    summary: Summary | None = record.metrics.wall_ms
    if record.is_realtime:
        summary = record.realtime.frame_ms if record.realtime is not None else None
    return estimate(record.median_ms, summary.ci95 if summary is not None else None)


def _columns(baselines: set[str]) -> tuple[Column[Answer], ...]:
    against = f"speedup vs {baselines.pop()}" if len(baselines) == 1 else "speedup vs its baseline"
    return (
        Column("component", lambda row: row.component),
        Column("fastest correct", _fastest),
        Column("p50", lambda row: median_of(row.fastest) if row.fastest else None, "ms", wrap=14),
        Column(against, lambda row: row.speedup, "ratio", wrap=12),
        Column("holds", lambda row: held_rate(row.fastest) if row.fastest else None, wrap=9),
        Column("bound by", _bound, wrap=9),
        Column("next", _next, wrap=12),
    )


def _fastest(row: Answer) -> str:
    if row.fastest is None:
        return "none"
    return row.fastest.variant if row.is_ranked else f"{row.fastest.variant} (not ranked)"


def _bound(row: Answer) -> str | None:
    call = deciding(row.fastest) if row.fastest is not None else None
    if call is None or call.roofline.bound is None:
        return None
    return call.roofline.bound if call.stage is None else f"{call.stage}: {call.roofline.bound}"


def _next(row: Answer) -> str | None:
    short = next_step(row.fastest, row.group)[0] if row.fastest is not None else ""
    return (short if len(short) <= _SHORT else "see below") or None


def _notes(row: Answer) -> list[str]:
    bound = bound_line(row.fastest, row.group) if row.fastest is not None else ""
    remarks = "; ".join(row.remarks)
    said = (bound, f"{remarks[0].upper()}{remarks[1:]}." if remarks else "")
    return [one_line(f"{row.component}: {sentence}") for sentence in said if sentence]


def _is_apart(fastest: Record, other: Record) -> bool:
    """Say whether nearly all calls of the one were faster than every call of the other, which no disturbance blurs."""
    one, two = fastest.metrics.wall_ms, other.metrics.wall_ms
    return one is not None and two is not None and one.p99 < two.min


def _nothing(group: Sequence[Record]) -> str:
    if any(record.is_correct for record in group):
        return "no latency was measured"
    return f"no variant is correct: {listed([_with_status(r) for r in group if r.status != 'skipped'])}"


def _tie(fastest: Record, others: Sequence[Record]) -> str:
    """Name the variants whose medians may as well be the fastest one's."""
    ties = [record.variant for record in others if intervals_overlap(fastest, record) is True]
    if ties:
        return f"{listed([fastest.variant, *ties])} are tied: their 95% intervals overlap"
    if others and not fastest.is_realtime and intervals_overlap(fastest, others[0]) is None:
        return f"{listed([fastest.variant, others[0].variant])} cannot be ranked: too few samples"
    return ""


def _by_mean(fastest: Record, others: Sequence[Record]) -> str:
    """Say when the mean, which FPS comes from, ranks otherwise: a long tail is worth knowing."""
    means = [(r.metrics.wall_ms.mean, r.variant) for r in (fastest, *others) if r.metrics.wall_ms is not None]
    mean, variant = min(means, default=(0.0, fastest.variant))
    return (
        ""
        if variant == fastest.variant
        else f"by the mean {variant} is faster ({significant(mean)} ms): mind the tails"
    )


def _unsupported(fastest: Record, group: Sequence[Record], *, alone: bool) -> str:
    """Say why no speedup is claimed."""
    baseline = correct_baseline(group)
    if fastest.is_realtime:
        return ""  # loops are judged by their deadlines
    if fastest is baseline:
        return "only the baseline was timed" if alone else "no variant is faster than the baseline"
    if baseline is None:
        name = baseline_name(group)
        state = next((wrong_because(r) for r in group if r.variant == name), "did not run")
        return f"no speedup is claimed: {name} {state}"
    return "" if claimed_speedup(fastest, group) is not None else "its speedup was not measured"


def _with_status(record: Record) -> str:
    return f"{record.variant} ({wrong_because(record)})"
