"""The answer: a line for each component or pipeline, a line for each cell, and a sentence where something needs saying.

A row names the fastest correct recipe, its time, its speedup over the baseline, the frame rate that it holds, and what
to try next. What may be said is decided in `profiling.results.judge`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from profiling.errors import printable
from profiling.report.conditions import conditions_of
from profiling.report.energy import joules_per_frame
from profiling.report.format import (
    Estimate,
    Link,
    Longest,
    Value,
    count_of,
    estimate,
    few,
    listed,
    percent,
    significant,
    times,
)
from profiling.report.page import Section
from profiling.report.roofline import REASONS, deciding, link_to_findings, next_step
from profiling.report.run_data import RunData, cell_table, link_to, name_of, wrong_because
from profiling.report.starts import prepare_seconds
from profiling.report.table import Column, Table
from profiling.results.environment import is_damaged
from profiling.results.judge import RESOLUTION, Holds, Pair, Ranking
from profiling.results.measured import LEAST_FOR, Deadline, Summary
from profiling.results.record import Record
from profiling.results.verdicts import (
    NAMED_SHARE,
    baseline_name,
    by_component,
    correct_baseline,
    deadlines_of,
    holds_rate,
    interval_of,
    ranking,
    speedup,
    spread_kind,
    spread_of,
    summary_of,
    taken,
)

UNDECIDED = "undecided"
#: Titles of the tables with a row for each cell: of calls, and of loops.
VARIANTS, FRAMES = "Variants", "Frames"
#: Kinds of the peak of memory in steady calls; a record has one of them.
PEAKS = ("peak held", "peak allocated", "peak host RSS")
#: A ratio is called wide where its interval spans more than this factor.
_WIDE = 1.3
#: Most characters of a next step in the table; a longer one is printed below it.
_SHORT = 26
_LEGEND = (
    "p50: median wall time of a call (of a loop: of a frame), with the 95% interval of this process. vs baseline: its "
    "time over that of the recipe, with the 95% interval over processes: equal code differs between them. "
    f"Same: within {RESOLUTION:.0%}. holds: the highest frame rate of which at most 1% of the calls are late (or "
    "what `late` sets), by the upper 95% bound."
)


@dataclass(frozen=True)
class Answer:
    """The judgement on a component: its fastest correct record (None if there is none), and what stands beside it."""

    component: str
    group: tuple[Record, ...]
    ranking: Ranking | None
    fastest: Record | None

    @property
    def same(self) -> list[str]:
        """Variants whose times are the same as those of the fastest."""
        return self.ranking.named("same") if self.ranking is not None else []

    @property
    def undecided(self) -> list[str]:
        """Variants that may be as fast, or faster."""
        return self.ranking.named("undecided") if self.ranking is not None else []

    @property
    def speedup(self) -> Pair | None:
        """The time of the baseline over that of the fastest; None where that is the baseline, or there is none."""
        return None if self.fastest is None or self.fastest.is_realtime else speedup(self.fastest, self.group)

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
    def next(self) -> tuple[str, str]:
        """What to try next: in a few words, and as a sentence; empty where nothing is known."""
        return next_step(self.fastest, self.group) if self.fastest is not None else ("", "")

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences on what needs saying, after the name of the component."""
        return tuple(_remarks(self))


def answers_of(data: RunData) -> list[Answer]:
    """Return the answer on each component of which a cell ran."""
    timed = by_component(record for record in data.records if record.launches is None and record.check is None)
    ran = {name: group for name, group in timed.items() if any(record.status != "skipped" for record in group)}
    return [answer_of(name, group) for name, group in ran.items()]


def answer_of(component: str, group: Sequence[Record]) -> Answer:
    """Judge the records of one component."""
    ranked = ranking(group)
    leader = None if ranked is None else next(each for each in group if each.variant == ranked.leader)
    return Answer(component, tuple(group), ranked, leader)


def answer_section(data: RunData) -> Section:
    """Return the answer table, the table of cells, and what needs saying."""
    answers = answers_of(data)
    names = {baseline_name(answer.group) for answer in answers}
    remarks = [*_by_remark(answers), *_first_outputs(answers)]
    remarks = remarks if data.records else ["No cell has ended yet."]
    cells = [record for answer in answers for record in answer.group if summary_of(record) is not None]
    tables = (
        Table("Answer", _columns(data, names), answers, keys=1),
        cell_table("Cells", _CELLS, [each for each in cells if each.is_correct]),
    )
    lines = tuple(map(printable, remarks))
    return Section("answer", "Answer", lines, (_LEGEND,) if answers else (), tables=tables, leads=True)


def status_section(data: RunData) -> Section:
    """Return the failed and invalid cells, with their logs, and what could not be read; alike ones share a line."""
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
    if is_damaged(data.folder, data.environment):
        lines.append("environment.json is damaged: device, versions and command of this run are not known")
    if data.skipped_lines:
        lines.append(f"results.jsonl: {data.skipped_lines} damaged or cut-off lines were skipped")
    return Section("status", "Failed or invalid", tuple(map(printable, lines)))


def notes_section(data: RunData) -> Section:
    """Return the notes of cells and of their transforms, and the conditions of each."""
    noted: dict[str, list[str]] = {}
    for record in data.records:
        # A network that was not transformed as asked, or runs without the kernels meant for it, explains a slow row.
        of_transforms = (note for step in record.recipe or () if step.kind == "transform" for note in step.notes)
        for note in (*record.notes, *of_transforms):
            if note not in (record.reason or ""):
                noted.setdefault(note, []).append(name_of(record))
    lines = [f"{', '.join(names)}: {note}" for note, names in noted.items()]
    found: dict[str, list[Record]] = {}
    for record in data.records:
        for condition in conditions_of(record):
            found.setdefault(condition, []).append(record)
    lines += [f"{_cells(records, data)}: {condition}" for condition, records in found.items()]
    if warm := [r for r in data.records if r.prepare is not None and r.prepare.is_cold_unknown]:
        lines.append(f"{_cells(warm, data)}: warm start (compiled from a cache); a cold start takes longer to prepare")
    lines += list(_spreads(data.records))
    ceilings = data.environment.ceilings
    if ceilings is not None and ceilings.disturbed:
        lost = percent(ceilings.lost_share)
        lines.append(f"The ceilings are too low: other processes took {lost} of the CPU time while they were measured")
    if data.environment.ceilings_reason:
        lines.append(f"No ceilings: {data.environment.ceilings_reason}")
    return Section("notes", "Notes", tuple(map(printable, lines)), depth="report")


def _spreads(records: Iterable[Record]) -> Iterator[str]:
    """Yield by how much equal code differs between processes, as the judge used it."""
    for kind, record in {spread_kind(record): record for record in records if record.turns is not None}.items():
        spread, stored = spread_of(record), record.turns.spread if record.turns is not None else None
        learned = stored.learned if stored is not None else 0
        source = f"learned from {count_of(learned, 'pair')} of processes" if learned else "a default: nothing is known"
        yield f"Equal code differs between processes by {percent(spread.std)} (standard deviation; {kind}; {source})"


def ratio_value(pair: Pair | None) -> Value | None:
    """Return a ratio with its interval, beside other processes what it is at least; None without one."""
    if pair is None:
        return None
    interval = pair.interval()
    if interval is not None and pair.taken > NAMED_SHARE:
        if interval[0] > 1:
            return f"≥ {times(interval[0])}"
        if interval[1] < 1:
            return f"≤ {times(interval[1])}"
    return estimate(pair.ratio, interval) if interval is not None else UNDECIDED


def speedup_of(record: Record, group: Sequence[Record]) -> Value | None:
    """Return the speedup over the baseline of `group`, 1 for the baseline; None if there is no correct baseline."""
    baseline = correct_baseline(group)
    if record is baseline:
        return 1.0
    return ratio_value(speedup(record, group))


def held_rate(record: Record) -> str | None:
    """Return the highest common frame rate (24 to 120 FPS) that the record holds; "undecided" where it may hold one."""
    if record.training is not None:  # a training step delivers no frames
        return None
    judged = _judged_rates(record)
    held = [deadline.fps for deadline, said in judged if said.answer == "yes"]
    if held:
        return f"{max(held):g} FPS"
    if any(said.answer == "undecided" for _, said in judged):
        return UNDECIDED
    return f"below {judged[0][0].fps:g} FPS" if judged else None


def _judged_rates(record: Record) -> list[tuple[Deadline, Holds]]:
    rates = ((deadline, holds_rate(record, deadline)) for deadline in deadlines_of(record))
    return [(deadline, said) for deadline, said in rates if said is not None]


def holds_words(said: Holds) -> str:
    """Return the judgement on a rate with its evidence: `undecided: 2 of 100 late, 400 calls more would tell`."""
    evidence = f"{said.late} of {said.n:,} late"
    if said.answer == UNDECIDED and not said.wanted:  # others may have made them late
        return f"{UNDECIDED}: {evidence}; a quiet machine would tell"
    if said.answer == UNDECIDED:
        more = f"{said.wanted:,} calls more" if said.wanted else "a quiet machine"
        return f"{UNDECIDED}: {evidence}; {more} would tell"
    return f"{said.answer}: {evidence} (at most {percent(said.most)})"


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
    return estimate(record.median_ms, interval_of(record))


def _columns(data: RunData, baselines: set[str]) -> tuple[Column[Answer], ...]:
    against = f"vs {baselines.pop()}" if len(baselines) == 1 else "vs its baseline"
    return (
        Column("component", lambda row: row.component, wrap=26),
        Column("fastest correct", _fastest, wrap=34),
        Column("p50", lambda row: median_of(row.fastest) if row.fastest else None, "ms"),
        Column(against, lambda row: ratio_value(row.speedup), "ratio"),
        Column("holds", lambda row: row.holds),
        Column("next", _next, wrap=_SHORT),
        Column("bound by", _bound, depth="report"),
        Column("J/frame", lambda row: joules_per_frame(row.fastest) if row.fastest else None, "number", depth="report"),
        Column("trace", lambda row: _trace(row, data), depth="page"),
    )


def _of_times(key: str) -> Callable[[Record], Value | None]:
    return lambda record: getattr(summary_of(record), key, None)


def _fps(record: Record) -> float | None:
    if record.realtime is not None:
        return record.realtime.wall_fps
    return record.metrics.fps.mean if record.metrics.fps is not None else None


#: The numbers of a cell: times, frame rate, memory, error, preparation.
_CELLS = (
    *(
        Column[Record](key, _of_times(key), "ms", unit="ms" if key == "mean" else "")
        for key in ("mean", "std", "min", "max")
    ),
    Column[Record]("FPS", _fps, "fps"),
    Column[Record]("peak", lambda record: record.peak_memory[1] if record.peak_memory else None, "MiB"),
    Column[Record]("rel. L2", lambda record: record.parity.rel_l2 if record.parity else None, "error"),
    Column[Record]("prepare", prepare_seconds, "s"),
)


def _fastest(row: Answer) -> Value:
    if row.fastest is None:
        return "none"
    title = FRAMES if row.fastest.is_realtime else VARIANTS
    return link_to(row.fastest.variant, title, row.fastest)


def _bound(row: Answer) -> Link | None:
    """Return what bounds the fastest variant, with a link to the reasons."""
    call = deciding(row.fastest) if row.fastest is not None else None
    return link_to(row.bound, REASONS, call.record, call.stage) if call is not None and row.bound else None


def _next(row: Answer) -> Value | None:
    """Return the next step, with a link to the findings that it follows from."""
    short, call = row.next[0], deciding(row.fastest) if row.fastest is not None else None
    if not short or call is None:
        return short or None
    return link_to_findings(call, short if len(short) <= _SHORT else "see below")


def _trace(row: Answer, data: RunData) -> Link | None:
    file = row.fastest.trace if row.fastest is not None else None
    link = data.link(file.trace) if file is not None else None
    return Link("trace", link.href) if link is not None and link.href is not None else None


def _remarks(answer: Answer) -> Iterator[str]:
    """Yield what needs saying of a component, the gravest first."""
    fastest, ranked = answer.fastest, answer.ranking
    if fastest is None or ranked is None:
        yield "no latency was measured" if any(each.is_correct for each in answer.group) else "no correct result"
        return
    yield from ranking_remarks(ranked)
    yield from _about_baseline(answer, fastest)
    baseline = correct_baseline(answer.group)
    for record in (fastest, *([baseline] if baseline is not None and baseline is not fastest else [])):
        yield from (f"{record.variant}: {each}" for each in conditions_of(record))
    yield from _about_rates(fastest)
    if fastest.parity is None:
        yield "not checked: its output was not compared with a reference"
    if _names_threads(fastest):
        yield "threads=1 pins the process to a core, where others disturb it least"


def ranking_remarks(ranked: Ranking) -> Iterator[str]:
    """Say which take the same time as the one that leads, and which may be as fast."""
    if same := ranked.named("same"):
        yield f"same within {RESOLUTION:.0%}: {few(same)}"
    if undecided := ranked.named("undecided"):
        wanted = dict.fromkeys(ranked.pairs[name].wants() for name in undecided)
        yield f"{UNDECIDED}: whether {few(undecided)} may be as fast; {listed(list(wanted), last='or')} would tell"


def _about_baseline(answer: Answer, fastest: Record) -> Iterator[str]:
    baseline = correct_baseline(answer.group)
    if fastest.is_realtime or fastest is baseline:
        return
    if baseline is None:
        name = baseline_name(answer.group)
        state = next((wrong_because(record) for record in answer.group if record.variant == name), "did not run")
        yield f"no speedup is claimed: {name} {state}"
        return
    if baseline.variant in (*answer.same, *answer.undecided):  # which is said of it already, among the others
        return
    pair = answer.speedup
    interval = pair.interval() if pair is not None else None
    if pair is not None and pair.answer() == UNDECIDED:
        yield f"{UNDECIDED}: whether {fastest.variant} is faster than {baseline.variant}; {pair.wants()} would tell"
    elif pair is not None and pair.answer() == "same":
        yield f"{fastest.variant} and {baseline.variant} take the same time"
    elif (
        pair is not None and interval is not None and pair.placement > pair.noise and interval[1] > _WIDE * interval[0]
    ):
        wide = max((baseline, fastest), key=lambda each: spread_of(each).std)
        share = percent(spread_of(wide).std)
        yield f"{wide.variant} differs by {share} between processes (standard deviation), which widens the ratio"


def _about_rates(record: Record) -> Iterator[str]:
    """Say which rate is undecided above those that are held."""
    if record.training is not None:
        return
    above = [(deadline, said) for deadline, said in _judged_rates(record) if said.answer == UNDECIDED]
    if above:
        deadline, said = above[0]
        yield f"{deadline.fps:g} FPS: {holds_words(said)}"


def _names_threads(record: Record) -> bool:
    """Return whether pinning would help: on a CPU, beside others, and not pinned."""
    others, latency = taken(record), record.metrics.latency
    is_cpu = not (record.device or "").startswith("cuda")
    return bool(is_cpu and others and others.is_named and latency is not None and not latency.pinned_cores)


def _by_remark(answers: Sequence[Answer]) -> list[str]:
    """Return the remarks, each once with the components that it concerns, if those are not all."""
    concerned: dict[str, list[str]] = {}
    for answer in answers:
        for remark in answer.remarks:
            concerned.setdefault(remark, []).append(answer.component)
        if len(answer.next[0]) > _SHORT:
            concerned.setdefault(f"next: {answer.next[1]}", []).append(answer.component)
    return [f"{listed(names)}: {remark}." for remark, names in concerned.items()]


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


def _cells(records: Iterable[Record], data: RunData) -> str:
    """Return the names of cells; only the variants where each of them is named for every component of the run."""
    chosen = list(records)
    variants = dict.fromkeys(record.variant for record in chosen)
    if len(chosen) == len(variants) * len(data.groups):
        return ", ".join(variants)
    return listed([name_of(record) for record in chosen])
