"""The answer table of a run, a row per component: fastest correct variant, time, speedup, what bounds it, next step.

A variant is called fastest only where the measurement supports it; remarks name ties and disturbed timing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from profiling.errors import printable
from profiling.report.charts import FRAME_RATES
from profiling.report.format import Estimate, estimate, listed, percent, significant
from profiling.report.page import Section
from profiling.report.roofline import bound_line, deciding, next_step
from profiling.report.run_data import RunData, name_of, wrong_because
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

#: Most characters of a next step in the table; a longer one is printed below it.
_SHORT = 32
#: From this share of the timed window (0 to 1), run-queue wait is reported; below it, the number of interruptions.
_LEAST_WAIT = 0.01


@dataclass(frozen=True)
class Answer:
    """The judgement on a component: its fastest correct record (None if there is none) and remarks on that claim."""

    component: str
    group: tuple[Record, ...]
    fastest: Record | None
    is_ranked: bool  # False where disturbed times cannot tell which variant is fastest
    remarks: tuple[str, ...]

    @property
    def speedup(self) -> Estimate | float | None:
        """The speedup against the baseline; None where it may not be claimed."""
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


def status_section(data: RunData) -> Section:
    """Return a line for each failed or invalid cell (reason and log), and one for each reason to skip cells."""
    lines = []
    skipped: dict[str, list[Record]] = {}
    for record in data.records:
        if record.status == "skipped":
            skipped.setdefault(record.reason or "", []).append(record)
        elif not record.is_correct:
            log = f"cells/{name_of(record)}.log"
            where = f" (log: {log})" if (data.folder / log).is_file() else ""
            state = "failed" if record.status == "ok" else record.status
            lines.append(f"{name_of(record)} {state}: {record.reason or 'parity check failed'}{where}")
    lines += [f"{_cells(records, data)}: skipped, {reason}" for reason, records in skipped.items()]
    return Section("status", "Not measured, or wrong", tuple(map(printable, lines)))


def notes_section(data: RunData) -> Section:
    """Return the notes of cells, conditions that explain their times, and what could not be read of the results."""
    lines = [f"{name_of(record)}: {note}" for record in data.records for note in record.notes]
    lines += [f"{name_of(record)}: {words}" for record in data.records if (words := disturbance(record))]
    unsettled = [r for r in data.records if r.metrics.latency is not None and not r.metrics.latency.settled]
    if unsettled:
        lines.append(f"{_cells(unsettled, data)}: times had not settled when the warm-up ended")
    if warm := [r for r in data.records if r.prepare is not None and r.prepare.cache_hits]:
        lines.append(f"{_cells(warm, data)}: warm start (compiled from a cache); a cold start takes longer to prepare")
    lines += [f"{name_of(record)}: not read: {field}" for record in data.records for field in record.unreadable]
    lines += [f"environment.json: not read: {field}" for field in data.environment.unreadable]
    ceilings = data.environment.ceilings
    if ceilings is not None and ceilings.disturbed:
        lost = percent(ceilings.lost_share)
        lines.append(f"The ceilings are too low: other processes took {lost} of the CPU time while they were measured")
    if data.environment.ceilings_reason:
        lines.append(f"No ceilings: {data.environment.ceilings_reason}")
    if data.skipped_lines:
        lines.append(f"results.jsonl: {data.skipped_lines} damaged or cut-off lines were skipped")
    return Section("notes", "Notes", tuple(map(printable, lines)))


def answer_of(component: str, group: Sequence[Record]) -> Answer:
    """Judge the records of one component by their median wall or frame time."""
    fastest = fastest_correct(group)
    if fastest is None:
        return Answer(component, tuple(group), None, False, (_nothing(group),))
    others = [each for each in group if each.is_correct and each.median_ms is not None and each is not fastest]
    others.sort(key=lambda record: record.median_ms or 0.0)
    unsure = [record for record in others if not can_be_ranked(fastest, record)]
    disturbed = [record for record in (fastest, *unsure) if is_disturbed(record)] if unsure else []
    remarks = []
    if disturbed:
        names = listed([record.variant for record in disturbed])
        remarks.append(f"disturbed by other processes ({names}): no ranking is claimed; repeat on a quiet machine")
    else:
        remarks += [_tie(fastest, others), _by_mean(fastest, others)]
    remarks += [_unsupported(fastest, group, alone=not others)]
    if fastest.parity is None:
        remarks.append("its output was not compared with a reference")
    return Answer(component, tuple(group), fastest, not disturbed, tuple(filter(None, remarks)))


def can_be_ranked(one: Record, other: Record) -> bool:
    """Return whether two medians can be ranked, although other processes may have disturbed one of them.

    They can if the p99 of the faster record is below the minimum of the slower: disturbance does not explain that.
    """
    if not is_disturbed(one) and not is_disturbed(other):
        return True
    walls = [record.metrics.wall_ms for record in (one, other) if record.metrics.wall_ms is not None]
    faster, slower = min(walls, key=lambda wall: wall.p50), max(walls, key=lambda wall: wall.p50)
    return faster.p99 < slower.min


def held_rate(record: Record) -> str | None:
    """Return the highest common frame rate (24 to 120 FPS) that the record holds.

    A call that makes several frames and holds all these rates is "real time". A loop is judged by its own deadlines, a
    call by its p99: a late frame is dropped.
    """
    if record.is_realtime:
        held = [deadline.fps for deadline in record.deadlines if deadline.holds]
        missed = [deadline.fps for deadline in record.deadlines if not deadline.holds]
        return f"{max(held):g} FPS" if held else f"below {min(missed):g} FPS" if missed else None
    wall = record.metrics.wall_ms
    if wall is None or record.training is not None:  # a training step delivers no frames
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
    said = (bound, f"{remarks}." if remarks else "")
    return [printable(f"{row.component}: {sentence}") for sentence in said if sentence]


def _nothing(group: Sequence[Record]) -> str:
    if any(record.is_correct for record in group):
        return "no latency was measured"
    return f"no variant is correct: {listed([_with_status(r) for r in group if r.status != 'skipped'])}"


def _tie(fastest: Record, others: Sequence[Record]) -> str:
    """Name the variants whose 95% intervals overlap that of the fastest one."""
    ties = [record.variant for record in others if intervals_overlap(fastest, record) is True]
    if ties:
        return f"{listed([fastest.variant, *ties])} are tied: their 95% intervals overlap"
    if others and not fastest.is_realtime and intervals_overlap(fastest, others[0]) is None:
        return f"{listed([fastest.variant, others[0].variant])} cannot be ranked: too few samples"
    return ""


def _by_mean(fastest: Record, others: Sequence[Record]) -> str:
    """Return a remark if another variant has the lowest mean, from which FPS is computed: the tails differ."""
    means = [(r.metrics.wall_ms.mean, r.variant) for r in (fastest, *others) if r.metrics.wall_ms is not None]
    mean, variant = min(means, default=(0.0, fastest.variant))
    words = f"by the mean {variant} is faster ({significant(mean)} ms): compare the tails"
    return "" if variant == fastest.variant else words


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


def disturbance(record: Record) -> str:
    """Say how much other processes disturbed the timing; empty where they did not."""
    if not is_disturbed(record):
        return ""
    wall, latency = record.metrics.wall_ms, record.metrics.latency
    assert wall is not None
    assert latency is not None
    waited, window = latency.run_queue_wait_ms, wall.mean * wall.n
    if waited is not None and waited >= _LEAST_WAIT * window:
        times = (
            f"its threads waited {significant(waited / 1e3, 2)} s in total for a CPU "
            f"while {significant(window / 1e3, 2)} s of calls were timed"
        )
    else:
        times = f"interrupted {latency.descheduled} times in {wall.n} calls"
    return f"disturbed by other processes: {times}"


def _cells(records: Iterable[Record], data: RunData) -> str:
    """Return the names of cells; only the variants where each of them is named for every component of the run."""
    chosen = list(records)
    variants = dict.fromkeys(record.variant for record in chosen)
    if len(chosen) == len(variants) * len(data.groups):
        return ", ".join(variants)
    return listed([name_of(record) for record in chosen])
