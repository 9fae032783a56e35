"""The answer: one table, a row per component or pipeline, with a mark for every doubt; below it what needs saying.

A row names the fastest correct variant, its time, speedup and frame rate, what bounds it and the next step. A variant
is called fastest only where the measurement supports it; else the row says "cannot tell".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from profiling.errors import printable
from profiling.report.charts import FRAME_RATES
from profiling.report.doubts import Doubt, doubts_of
from profiling.report.energy import joules_per_frame
from profiling.report.format import Estimate, Link, Longest, Value, estimate, listed, percent, significant
from profiling.report.page import Section
from profiling.report.roofline import REASONS, deciding, link_to_findings, next_step
from profiling.report.run_data import RunData, link_to, name_of, wrong_because
from profiling.report.starts import prepare_seconds
from profiling.report.table import Column, Table
from profiling.report.trace import KERNELS
from profiling.results.judgement import (
    CLAIM_LEVEL,
    CPU_PROCESS_SHARE,
    PINNED_CPU_SHARE,
    TIE_SHARE,
    baseline_name,
    by_component,
    can_be_ranked,
    claimed_speedup,
    clocks_differ,
    correct_baseline,
    disturbance_explains,
    fastest_correct,
    holds_rate,
    intervals_overlap,
    is_undecided,
    lost,
    others_explain_miss,
    paired_speedup,
    same_code_explains,
    same_code_share,
    took_turns,
    typical_ms,
)
from profiling.results.measured import LEAST_FOR, Summary
from profiling.results.record import Record

CANNOT_TELL = "cannot tell"
#: Titles of the tables with a row for each cell: of calls, and of loops.
VARIANTS, FRAMES = "Variants", "Frames"
#: Kinds of the peak of memory in steady calls; a record has one of them.
PEAKS = ("peak held", "peak allocated", "peak host RSS")
#: Most characters of a next step in the table; a longer one is printed below it.
_SHORT = 32
_LEGEND = (
    "p50, p99: wall time of a call (of a loop: of a frame), in brackets the 95% interval of the p50. "
    f"holds: the highest of {listed([str(rate) for rate in FRAME_RATES])} FPS whose frame time the p99 meets. "
    "max: the longest call, where they are too few for a p99."
)


#: Marks of a fastest variant where another may be as fast: no difference was found, or too few windows tell.
TIED, UNDECIDED = "tied", "undecided"


@dataclass(frozen=True)
class Answer:
    """The judgement on a component: its fastest correct record (None if there is none) and the doubts about it."""

    component: str
    group: tuple[Record, ...]
    fastest: Record | None
    is_ranked: bool  # False where the times cannot tell which variant is fastest
    doubts: tuple[Doubt, ...]

    @property
    def speedup(self) -> Value | None:
        """The speedup of the fastest against the baseline, or "cannot tell"; another variant may be as fast."""
        if self.fastest is None or self.fastest.is_realtime:
            return None
        if self.fastest is correct_baseline(self.group) and not self.is_ranked:
            return CANNOT_TELL
        return speedup_of(self.fastest, self.group)

    @property
    def is_tied(self) -> bool:
        """Whether another variant may be as fast."""
        return any(doubt.mark in (TIED, UNDECIDED) for doubt in self.doubts)

    @property
    def holds(self) -> str | None:
        """The highest common frame rate that the fastest correct variant holds."""
        return held_rate(self.fastest) if self.fastest is not None else None

    @property
    def bound(self) -> str | None:
        """What bounds the fastest correct variant, after the stage that decides of a loop."""
        call = deciding(self.fastest) if self.fastest is not None else None
        if call is None or call.roofline.bound is None:
            return None
        return call.roofline.bound if call.stage is None else f"{call.stage}: {call.roofline.bound}"

    @property
    def next(self) -> str | None:
        """What to try next in a few words."""
        return next_step(self.fastest, self.group)[0] or None if self.fastest is not None else None


def answers_of(data: RunData) -> list[Answer]:
    """Return the answer on each component of which a cell ran."""
    timed = by_component(record for record in data.records if record.launches is None and record.check is None)
    ran = {name: group for name, group in timed.items() if any(record.status != "skipped" for record in group)}
    return [answer_of(name, group) for name, group in ran.items()]


def answer_section(data: RunData) -> Section:
    """Return the answer table; below it the doubts that need words, and one line on what was skipped."""
    answers = answers_of(data)
    names = {baseline_name(answer.group) for answer in answers}
    lines = [*_doubt_lines(answers), *_first_outputs(answers), *_skipped(data)]
    lines = lines if data.records else ["No cell has ended yet."]
    table = Table("Answer", _columns(data, names), answers, [_LEGEND], keys=1)
    return Section("answer", "Answer", tuple(map(printable, lines)), tables=(table,), leads=True)


def status_section(data: RunData) -> Section:
    """Return the failed and invalid cells, with their logs; those with the same reason share a line."""
    alike: dict[tuple[str, str], list[Record]] = {}
    for record in data.records:
        if record.status != "skipped" and not record.is_correct:
            state = "failed" if record.status == "ok" else record.status
            alike.setdefault((state, record.reason or "parity check failed"), []).append(record)
    lines = []
    for (state, reason), records in alike.items():
        names = [name_of(record) for record in records]
        logs = [log for name in names if (data.folder / (log := f"cells/{name}.log")).is_file()]
        where = f" (log: {logs[0]})" if logs else ""
        lines.append(f"{', '.join(names)} {state}: {reason}{where}")
    return Section("status", "Failed or invalid", tuple(map(printable, lines)))


def notes_section(data: RunData) -> Section:
    """Return the notes of cells and of their transforms, the doubts about each, and what could not be read."""
    noted: dict[str, list[str]] = {}
    for record in data.records:
        # A network that was not transformed as asked, or runs without the kernels meant for it, explains a slow row.
        of_transforms = (note for step in record.recipe or () if step.kind == "transform" for note in step.notes)
        for note in (*record.notes, *of_transforms):
            if note not in (record.reason or ""):
                noted.setdefault(note, []).append(name_of(record))
    lines = [f"{', '.join(names)}: {note}" for note, names in noted.items()]
    doubted: dict[Doubt, list[Record]] = {}
    for record in data.records:
        for doubt in doubts_of(record):
            doubted.setdefault(doubt, []).append(record)
    lines += [f"{_cells(records, data)}: {doubt.mark}: {doubt.words}" for doubt, records in doubted.items()]
    if warm := [r for r in data.records if r.prepare is not None and r.prepare.is_cold_unknown]:
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
        nothing = "no latency was measured" if any(record.is_correct for record in group) else "no correct result"
        return Answer(component, tuple(group), None, False, (Doubt(nothing), *_not_ok(group)))
    others = [each for each in group if each.is_correct and each.median_ms is not None and each is not fastest]
    others.sort(key=lambda record: typical_ms(record) or 0.0)
    unsure = [record for record in others if not can_be_ranked(fastest, record)]
    if any(disturbance_explains(fastest, each) for each in unsure):
        taken = [(record, each) for record in (fastest, *unsure) if (each := lost(record)) is not None]
        record, worst = max(taken, key=lambda each: each[1].share)
        words = f"cannot tell which variant is fastest: {worst.words} while {record.variant} was timed"
        claims = [Doubt("disturbed", f"{words}; repeat on a quiet machine")]
    elif by_clock := next((each for each in unsure if clocks_differ(fastest, each)), None):
        pair = f"{fastest.variant} and {by_clock.variant}"
        words = f"{clocks_differ(fastest, by_clock)} could explain the difference of {pair}, so they are not ranked"
        claims = [Doubt("clocks differ", words)]
    elif near := next((each for each in unsure if same_code_explains(fastest, each)), None):
        words = f"{fastest.variant} and {near.variant} are not ranked: {_alike(fastest, near)}"
        claims = [Doubt("within noise", words)]
    else:
        claims = [*_tie(fastest, others), *_by_mean(fastest, others)]
    claims += _unsupported(fastest, group)
    if fastest.parity is None:
        claims.append(Doubt("not checked", "its output was not compared with a reference"))
    if fastest.scale == "tiny":
        claims.append(Doubt("tiny", "a small network, whose times say nothing about the full one"))
    doubts = {doubt.mark: doubt for doubt in (*_own(fastest, group), *claims, *_not_ok(group))}
    return Answer(component, tuple(group), fastest, not unsure, tuple(doubts.values()))


def speedup_of(record: Record, group: Sequence[Record]) -> Value | None:
    """Return the speedup against the correct baseline of `group`, 1 for the baseline itself; None without one.

    "cannot tell" where others, SM clocks or the spread of equal code could make the difference of the two.
    """
    baseline = correct_baseline(group)
    if baseline is None or record is baseline:
        return None if baseline is None else 1.0
    if record.is_correct and record.median_ms is not None and not can_be_ranked(record, baseline):
        return CANNOT_TELL
    return estimate(claimed_speedup(record, group), record.speedup.ci95 if record.speedup is not None else None)


def held_rate(record: Record) -> str | None:
    """Return the highest common frame rate (24 to 120 FPS) that the record holds.

    A call that makes several frames and holds all these rates is "real time". A loop is judged by its own deadlines, a
    call by its p99, of few calls by the longest: a late frame is dropped. Rates that other processes may have prevented
    are not judged.
    """
    if record.is_realtime:
        rates = {deadline.fps: holds_rate(record, deadline) for deadline in record.deadlines}
        held = [fps for fps, is_held in rates.items() if is_held]
        if None in rates.values():
            return f"{max(held):g} FPS or more" if held else CANNOT_TELL
        return f"{max(held):g} FPS" if held else f"below {min(rates):g} FPS" if rates else None
    wall = record.metrics.wall_ms
    if wall is None or record.training is not None:  # a training step delivers no frames
        return None
    frames = record.frames_per_call or 1
    fits = {rate: fits_budget(record, frames * 1000 / rate) for rate in FRAME_RATES}
    held = [rate for rate, is_held in fits.items() if is_held]
    if None in fits.values():
        return f"{held[-1]} FPS or more" if held else CANNOT_TELL
    if not held:
        return f"below {FRAME_RATES[0]} FPS"
    return "real time" if frames > 1 and len(held) == len(FRAME_RATES) else f"{held[-1]} FPS"


def fits_budget(record: Record, budget_ms: float) -> bool | None:
    """Return whether the p99 of a call (of few calls: the longest) fits; None if others may be why it does not.

    Other processes only lengthen calls: a disturbed record that fits would fit alone, too.
    """
    wall = record.metrics.wall_ms
    if wall is None:
        return None
    if wall.tail[1] <= budget_ms:
        return True
    return None if others_explain_miss(record, budget_ms) else False


def summary_of(record: Record) -> Summary | None:
    """Return the summary that a record is judged by: wall time of a call, or frame time of a loop."""
    if record.is_realtime:
        return record.realtime.frame_ms if record.realtime is not None else None
    return record.metrics.wall_ms


def number_in(summary: Summary | None, key: str) -> Value | None:
    """Return p50, p99, max, … of a summary in ms; of few samples the longest in place of the p99, and no p90 or p95."""
    if summary is None or key not in LEAST_FOR:
        return getattr(summary, key, None)
    name, longest = summary.tail
    if key == "p99" and name == "max":
        return Longest(longest)
    return getattr(summary, key) if summary.n >= LEAST_FOR[key] else None


def peak_bytes(record: Record, kind: str) -> float | None:
    """Return the peak in steady calls, if the record's is of this kind (of `PEAKS`)."""
    return record.peak_memory[1] if record.peak_memory and record.peak_memory[0] == kind else None


def median_of(record: Record) -> Estimate | float | None:
    """Return the median wall time of a call, or frame time of a loop, in milliseconds with its interval."""
    summary = summary_of(record)
    return estimate(record.median_ms, summary.ci95 if summary is not None else None)


def _columns(data: RunData, baselines: set[str]) -> tuple[Column[Answer], ...]:
    against = f"speedup vs {baselines.pop()}" if len(baselines) == 1 else "speedup vs its baseline"
    return (
        Column("component", lambda row: row.component, wrap=26),
        Column("fastest correct", _fastest, wrap=26),
        Column("p50", lambda row: median_of(row.fastest) if row.fastest else None, "ms", wrap=14),
        Column("p99", lambda row: number_in(summary_of(row.fastest), "p99") if row.fastest else None, "ms"),
        Column(against, lambda row: row.speedup, "ratio", wrap=12),
        Column("holds", lambda row: row.holds, wrap=9),
        Column("bound by", _bound, wrap=12),
        Column("next", _next, wrap=16),
        Column("conditions", _marks, "marks", wrap=22),
        *(Column(kind, _peak(kind), "MiB", depth="page") for kind in PEAKS),
        Column("prepare", lambda row: prepare_seconds(row.fastest) if row.fastest else None, "s", depth="page"),
        Column("J/frame", lambda row: joules_per_frame(row.fastest) if row.fastest else None, "number", depth="report"),
        Column("trace", lambda row: _trace(row, data), depth="page"),
        Column("kernels", _kernels, depth="page"),
    )


def _fastest(row: Answer) -> Value:
    if row.fastest is None:
        return "none"
    words = row.fastest.variant if row.is_ranked else f"{CANNOT_TELL} ({row.fastest.variant})"
    return _linked(row, words, FRAMES if row.fastest.is_realtime else VARIANTS) or words


def _linked(row: Answer, words: str | None, table: str) -> Link | None:
    """Return `words` with a link to the fastest variant's rows in the table of that title."""
    return link_to(words, table, row.fastest) if words and row.fastest is not None else None


def _bound(row: Answer) -> Link | None:
    """Return what bounds the fastest variant, with a link to the reasons."""
    call = deciding(row.fastest) if row.fastest is not None else None
    return link_to(row.bound, REASONS, call.record, call.stage) if call is not None and row.bound else None


def _next(row: Answer) -> Value | None:
    """Return the next step, with a link to the findings that it follows from."""
    short, call = row.next, deciding(row.fastest) if row.fastest is not None else None
    if short is None or call is None:
        return short
    return link_to_findings(call, short if len(short) <= _SHORT else "see below")


def _peak(kind: str) -> Callable[[Answer], float | None]:
    return lambda row: peak_bytes(row.fastest, kind) if row.fastest is not None else None


def _marks(row: Answer) -> str | None:
    return f"! {', '.join(doubt.mark for doubt in row.doubts)}" if row.doubts else None


def _trace(row: Answer, data: RunData) -> Link | None:
    file = row.fastest.trace if row.fastest is not None else None
    link = data.link(file.trace) if file is not None else None
    return Link("trace", link.href) if link is not None and link.href is not None else None


def _kernels(row: Answer) -> Link | None:
    analysis = row.fastest.trace_analysis if row.fastest is not None else None
    return _linked(row, "kernels", KERNELS) if analysis is not None and analysis.kernels else None


def _doubt_lines(answers: Sequence[Answer]) -> list[str]:
    """Return the doubts that have words, each once with the components that it concerns, if those are not all."""
    concerned: dict[Doubt, list[str]] = {}
    for answer in answers:
        for doubt in answer.doubts:
            if doubt.words:
                concerned.setdefault(doubt, []).append(answer.component)
    return [
        f"! {doubt.mark}{f' ({listed(names)})' if len(names) < len(answers) else ''}: {doubt.words}."
        for doubt, names in concerned.items()
    ]


def _first_outputs(answers: Sequence[Answer]) -> Iterator[str]:
    """Yield a line for each component: seconds until a process that runs its fastest variant gives an output."""
    for answer in answers:
        starts = None if answer.fastest is None else answer.fastest.starts
        if answer.fastest is not None and starts is not None:
            warm = "" if starts.warm is None else f", {significant(starts.warm.seconds, 3)} s with a filled one"
            cold = f"{significant(starts.cold.seconds, 3)} s with an empty compiler cache"
            if packages := [each for step in answer.fastest.recipe or () for each in step.packages or ()]:
                load = significant(sum(each.load_s for each in packages), 2)
                warm = f", including packaging; an application loads the package in {load} s, after importing torch's"
                warm += " compiler"
            yield f"From the start of a process to its first output, {name_of(answer.fastest)}: {cold}{warm}."


def _skipped(data: RunData) -> list[str]:
    """Return one line on all cells that were skipped, by reason; none where there are none."""
    reasons: dict[str, list[Record]] = {}
    for record in data.records:
        if record.status == "skipped":
            reasons.setdefault(record.reason or "no reason", []).append(record)
    parts = [f"{_cells(records, data)} ({reason})" for reason, records in reasons.items()]
    return [f"Skipped: {'; '.join(parts)}."] if parts else []


def _own(fastest: Record, group: Sequence[Record]) -> Iterator[Doubt]:
    """Yield the doubts about the times of the fastest variant, and about those of its baseline."""
    baseline = correct_baseline(group)
    for record in (fastest, *([baseline] if baseline is not None and baseline is not fastest else [])):
        for doubt in doubts_of(record):
            if not doubt.of_p99 or record is fastest:  # the baseline's p99 is not in the row
                yield replace(doubt, words=f"{record.variant}: {doubt.words}")


def _not_ok(group: Sequence[Record]) -> Iterator[Doubt]:
    """Yield how many variants failed, are invalid or were skipped; the reasons stand below the table."""
    states: dict[str, list[str]] = {}
    for record in group:
        if state := wrong_because(record):
            states.setdefault(state, []).append(record.variant)
    for state, names in states.items():
        yield Doubt(f"{names[0]} {state}" if len(names) == 1 and state != "skipped" else f"{len(names)} {state}")


def _tie(fastest: Record, others: Sequence[Record]) -> Iterator[Doubt]:
    """Name the variants that may be as fast as the fastest one."""
    ties = [record for record in others if intervals_overlap(fastest, record) is True]
    if ties:
        names = listed([fastest.variant, *(each.variant for each in ties)])
        why, in_turns = f"their 95% intervals are no more than {percent(TIE_SHARE)} apart", False
        if all(took_turns(fastest, each) for each in ties):
            why, in_turns = listed([_times_as_long(each, fastest) for each in ties]), True
        if in_turns and any(is_undecided(fastest, each) for each in ties):
            yield Doubt(UNDECIDED, f"more turns are needed to tell which of {names} is the fastest: {why}")
        else:
            yield Doubt(TIED, f"{names} are tied: {why}")
    elif others and not fastest.is_realtime and intervals_overlap(fastest, others[0]) is None:
        names = listed([fastest.variant, others[0].variant])
        yield Doubt("few samples", f"whether {names} are tied is not known: one has no interval")


def _times_as_long(record: Record, fastest: Record) -> str:
    """Return the ratio of two cells that took turns in words, with the interval by which they were found to be tied."""
    ratio, interval = paired_speedup(fastest, record, level=CLAIM_LEVEL) or (1.0, None)
    low, high = interval or (ratio, ratio)
    return f"{record.variant} takes {ratio:.3f} times as long ({CLAIM_LEVEL:.0%} interval {low:.3f} to {high:.3f})"


def _by_mean(fastest: Record, others: Sequence[Record]) -> Iterator[Doubt]:
    """Yield a doubt if another variant has the lowest mean, from which FPS is computed: the tails differ."""
    means = [(r.metrics.wall_ms.mean, r.variant) for r in (fastest, *others) if r.metrics.wall_ms is not None]
    mean, variant = min(means, default=(0.0, fastest.variant))
    if variant != fastest.variant:
        yield Doubt("long tail", f"by the mean {variant} is faster ({significant(mean)} ms): compare the tails")


def _unsupported(fastest: Record, group: Sequence[Record]) -> Iterator[Doubt]:
    """Say why no speedup is claimed; loops are judged by their deadlines."""
    baseline = correct_baseline(group)
    if fastest.is_realtime or fastest is baseline:
        return
    if baseline is None:
        name = baseline_name(group)
        state = next((wrong_because(r) for r in group if r.variant == name), "did not run")
        yield Doubt("no baseline", f"no speedup is claimed: {name} {state}")
    elif clocks := clocks_differ(fastest, baseline):
        explained = claimed_speedup(fastest, group) is None
        state = ", which could explain the difference: no speedup is claimed" if explained else ""
        yield Doubt("clocks differ", f"{fastest.variant} and {baseline.variant} ran at {clocks}{state}")
    elif same_code_explains(fastest, baseline):
        yield Doubt("within noise", f"no speedup is claimed: {_alike(fastest, baseline)}")
    elif claimed_speedup(fastest, group) is None:
        yield Doubt("no speedup", "the speedup was not measured")


def _alike(one: Record, other: Record) -> str:
    """Say by how much times of equal code may differ here, and what lowers that."""
    share = same_code_share(one, other)
    if not (one.device or "").startswith("cpu"):
        why = "depending on memory addresses" if took_turns(one, other) else "where variants take no turns"
        return f"times of equal code differ by up to {percent(share)}, {why}"
    more = f", with threads=1 by up to {percent(PINNED_CPU_SHARE)}" if share == CPU_PROCESS_SHARE else ""
    return f"on a CPU the times of equal code differ by up to {percent(share)}{more}"


def _cells(records: Iterable[Record], data: RunData) -> str:
    """Return the names of cells; only the variants where each of them is named for every component of the run."""
    chosen = list(records)
    variants = dict.fromkeys(record.variant for record in chosen)
    if len(chosen) == len(variants) * len(data.groups):
        return ", ".join(variants)
    return listed([name_of(record) for record in chosen])
