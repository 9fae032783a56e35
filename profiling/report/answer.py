"""The answer: a line for each component or pipeline, the table of cells, and a sentence where something needs saying.

A row names the fastest correct recipe, its time, its speedup over the baseline, the frame rate that it holds, and what
to try next. What may be said is decided in `profiling.results.judge`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiling.errors import printable
from profiling.report.cells import (
    CELLS_LEGEND,
    COLD,
    UNDECIDED,
    cells_table,
    conditions_of,
    drift_words,
    median_of,
    ratio_value,
)
from profiling.report.format import Value, count_of, few, listed, named_once, percent
from profiling.report.page import Section
from profiling.report.roofline import deciding, next_step
from profiling.report.run_data import RunData, wrong_because
from profiling.report.table import Column, Table
from profiling.results import judge, verdicts
from profiling.results.judge import NAMED_SHARE, RESOLUTION, Holds, Pair, Ranking
from profiling.results.measured import LATE
from profiling.results.record import BASELINE, FAILED, Record
from profiling.results.verdicts import by_component

#: A ratio is called wide where its interval spans more than this factor.
_WIDE = 1.3
#: Most characters of a next step in the table.
_SHORT = 26
_INTERVALS, _RATIO, _HOLDS, _OTHERS = (
    "±, (low-high): intervals of 95% or more.",
    " vs baseline: both timed alternately, so not p50 / p50.",
    "holds: at most {late} late. ",
    "rel. L2: to fp32 eager. next: what to improve: a call's time then, or its part. ~: estimated.",
)
_BOUNDS = "≥, ≤: other processes took part of the time: at least, at most."
_LEGEND = (
    "p50: median, with the 95% interval of this process. vs baseline: the time of the baseline over that of the "
    "recipe, with a 95% interval that includes by how much the same code differs between processes. "
    f"Same: within {RESOLUTION:.0%}. "
    "holds: the highest of the tested frame rates at which at most {late} of the calls are late, by the upper 95% "
    "bound."
)


@dataclass(frozen=True)
class Answer:
    """The judgement on a component: its fastest correct record (None if there is none), and what stands beside it."""

    component: str
    group: tuple[Record, ...]
    ranking: Ranking | None
    fastest: Record | None

    @property
    def leader(self) -> str:
        """The variant that leads, as it is shown."""
        return leader_name(self.ranking, is_checked=self.fastest is None or self.fastest.parity is not None)

    def named(self, answer: judge.Answer) -> list[str]:
        """Return the variants that are `same` as the fastest, or `undecided`: they may be as fast, or faster."""
        return self.ranking.named(answer) if self.ranking is not None else []

    @property
    def speedup(self) -> Pair | None:
        """The time of the baseline over that of the fastest; None where that is the baseline, or there is none."""
        return None if self.fastest is None or self.fastest.is_realtime else verdicts.speedup(self.fastest, self.group)

    @property
    def p50(self) -> Value | None:
        """The time of the fastest in ms, with its interval."""
        return None if self.fastest is None else median_of(self.fastest)

    @property
    def vs_baseline(self) -> Value | None:
        """The speedup as it is shown."""
        return ratio_value(self.speedup)

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

    def remarks(self) -> Iterator[str]:
        """Yield a sentence on each thing that needs saying, after the name of the component; the gravest first."""
        fastest, ranked = self.fastest, self.ranking
        if fastest is None or ranked is None:
            yield "no latency was measured" if any(each.is_correct for each in self.group) else "no correct result"
            return
        yield from ranking_remarks(ranked)
        baseline = verdicts.correct_baseline(self.group)
        if not fastest.is_realtime and fastest is not baseline:
            yield from self._about_baseline(fastest, baseline)
        for record in sorted(self.group, key=lambda each: each is not fastest):
            is_compared = record is fastest or record is baseline
            known = conditions_of(record) if is_compared else drift_words(record) if record.is_correct else []
            yield from (f"{record.variant}: {each}" for each in known)
        if fastest.training is None and not fastest.is_realtime:  # of a loop its verdict says so
            undecided = [each for each in verdicts.judged_rates(fastest).items() if each[1].answer == UNDECIDED]
            yield from (f"{fps:g} FPS: {holds_words(said)}" for fps, said in undecided[:1])
        yield from (note for note in fastest.notes if FAILED in note)  # what explains it is missing
        if fastest.parity is None:
            yield "not checked: its output was not compared with a reference"

    def _about_baseline(self, fastest: Record, baseline: Record | None) -> Iterator[str]:
        if baseline is None:
            state = next((wrong_because(record) for record in self.group if record.variant == BASELINE), "did not run")
            yield f"no speedup is claimed: {BASELINE} {state}"
            return
        pair = self.speedup
        interval = pair.interval() if pair is not None else None
        if pair is None or interval is None or pair.answer() in ("same", UNDECIDED):
            return  # what is said of it already, among the others
        is_bound = pair.taken > NAMED_SHARE  # beside other processes; then it is they who widen it
        if is_bound or interval[1] <= _WIDE * interval[0]:
            return
        if pair.placement > pair.noise:
            wide = max((baseline, fastest), key=lambda each: verdicts.spread_of(each).std)
            share = percent(verdicts.spread_of(wide).std)
            yield f"the interval of vs baseline is wide: {wide.variant} varies by {share} (std) between processes"
        elif baseline.turns is not None:
            least, most = (of(window.p50 for window in baseline.turns.windows) for of in (min, max))
            words = f"{BASELINE} took {least:.4g} to {most:.4g} ms, by window"
            yield f"the interval of vs baseline is wide: {words}"


def answers_of(data: RunData) -> list[Answer]:
    """Return the answer on each component of which a cell ran."""
    groups = by_component(data.cells).items()
    return [answer_of(name, group) for name, group in groups if any(record.status != "skipped" for record in group)]


def answer_of(component: str, group: Sequence[Record]) -> Answer:
    """Judge the records of one component."""
    ranked = verdicts.ranking(group)
    leader = None if ranked is None else next(each for each in group if each.variant == ranked.leader)
    return Answer(component, tuple(group), ranked, leader)


def answer_section(data: RunData) -> Section:
    """Return the answer table, the table of cells, and what needs saying."""
    answers = answers_of(data)
    said = named_once(
        (answer.component, remark) for answer in answers for remark in (*answer.remarks(), *_next_in_full(answer))
    )
    remarks = [f"{listed(names)}: {sentence}." for sentence, names in said.items()]
    remarks = remarks if data.records else ["No cell has ended yet."]
    cells = [record for answer in answers for record in answer.group]
    ratio = _RATIO if any(answer.vs_baseline is not None for answer in answers) else ""
    holds = _HOLDS.format(late=allowed_late(cells)) if any(answer.holds is not None for answer in answers) else ""
    is_timed = any(answer.p50 is not None for answer in answers)
    notes = [_INTERVALS + ratio, holds + _OTHERS] if is_timed else []
    if any(str(answer.vs_baseline).startswith(("≥", "≤")) for answer in answers):
        notes.append(_BOUNDS)
    tables = (Table("Answer", _columns(), answers, notes, keys=1), cells_table(cells, data.groups))
    is_cold = any(record.metrics.latency is not None and record.metrics.latency.cold for record in cells)
    legend = (_LEGEND.format(late=allowed_late(cells)), CELLS_LEGEND, *([COLD] if is_cold else [])) if answers else ()
    return Section("answer", "Answer", tuple(map(printable, remarks)), legend, tables, leads=True)


def _next_in_full(answer: Answer) -> list[str]:
    """Return the next step as a sentence where the table has no room for its words, or these name no time."""
    words, sentence = answer.next
    return [f"next: {sentence}"] if len(words) > _SHORT or (words and not words.endswith(" ms")) else []


def status_section(data: RunData) -> Section:
    """Return the failed and invalid cells, with their logs, and what could not be read."""
    wrong = [record for record in data.records if record.status != "skipped" and not record.is_correct]
    found = [(each.name, wrong_because(each), each.reason, f"cells/{each.name}.log") for each in wrong]
    lines = failure_lines(data.folder, found)
    return Section("status", "Failed or invalid", tuple(map(printable, (*lines, *data.damage))))


def failure_lines(folder: Path, found: Iterable[tuple[str, str, str | None, str]]) -> list[str]:
    """Return a line for all cells of one state and reason, most cells first: their names and the log of one.

    `found`: for each cell its name, state, reason, and the file in `folder` that is its log, if it is there.
    """
    alike: dict[tuple[str, str | None], dict[str, str]] = {}
    for name, state, reason, log in found:
        alike.setdefault((state, reason), {})[name] = log
    lines = []
    for (state, reason), cells in sorted(alike.items(), key=lambda item: -len(item[1])):
        log = next((f" (log: {log})" for log in cells.values() if (folder / log).is_file()), "")
        lines.append(f"{few([*cells])} {state}{f': {reason}' if reason else ''}{log}")
    return lines


def notes_section(data: RunData) -> Section:
    """Return the notes of cells and of their transforms, what they lack, and what is known of the machine."""
    noted = named_once((record.name, note) for record in data.records for note in _notes(record))
    lines = [f"{', '.join(names)}: {note}" for note, names in noted.items()]
    if warm := [r.name for r in data.records if r.prepare is not None and r.prepare.is_cold_unknown]:
        lines.append(f"{listed(warm)}: warm start (compiled from a cache); a cold start takes longer to prepare")
    hints = named_once((record.component, hint) for record in data.records for hint in _weights_hints(record))
    lines += [f"{', '.join(dict.fromkeys(names))}: random weights; {hint}" for hint, names in hints.items()]
    lines += list(_spreads(data.records))
    ceilings = data.environment.ceilings
    if ceilings is not None and ceilings.disturbed:
        lost = percent(ceilings.lost_share)
        lines.append(f"The ceilings are too low: other processes took {lost} of the CPU time while they were measured")
    if data.environment.ceilings_reason:
        lines.append(f"No ceilings: {data.environment.ceilings_reason}")
    return Section("notes", "Notes", tuple(map(printable, lines)), depth="report")


def _notes(record: Record) -> list[str]:
    # A network that was not transformed as asked, or runs without the kernels meant for it, explains a slow row.
    of_transforms = (note for step in record.recipe or () if step.kind == "transform" for note in step.notes)
    no_energy = [f"no energy: {record.energy.reason}"] if record.energy is not None and record.energy.reason else []
    return [note for note in (*record.notes, *of_transforms, *no_energy) if note not in (record.reason or "")]


def _weights_hints(record: Record) -> list[str]:
    of_roles = [f"{role}: {hint}" for role, hint in record.weights_hints.items()]
    return of_roles or ([record.weights_hint] if record.weights_hint else [])


def _spreads(records: Iterable[Record]) -> Iterator[str]:
    """Yield by how much equal code differs between processes, as the judge used it."""
    alike: dict[tuple[float, int], list[str]] = {}
    for record in records:
        if record.turns is not None:
            spread = verdicts.spread_of(record)
            alike.setdefault((spread.std, spread.learned), []).append(record.name)
    for (std, learned), names in alike.items():
        source = f"learned from {count_of(learned, 'pair')} of processes" if learned else "a default: nothing is known"
        words = f"Equal code differs between processes by {percent(std)} (standard deviation; {source})"
        yield f"{words}: {listed(names)}"


def allowed_late(records: Iterable[Record]) -> str:
    """Return the share of calls or frames that may be late where a rate is held; of several rules each."""
    return " or ".join(f"{100 * share:.3g}%" for share in sorted({record.late or LATE for record in records}))


def held_rate(record: Record) -> str | None:
    """Return the highest common frame rate (24 to 120 FPS) that the record holds; "undecided" where it may hold one."""
    if record.training is not None:  # a training step delivers no frames
        return None
    judged = verdicts.judged_rates(record)
    held = [fps for fps, said in judged.items() if said.answer == "yes"]
    if held:
        return f"{'≥ ' * (max(held) == max(judged))}{max(held):g} FPS"
    if any(said.answer == UNDECIDED for said in judged.values()):
        return UNDECIDED
    return f"below {min(judged):g} FPS" if judged else None


def holds_words(said: Holds, noun: str = "calls") -> str:
    """Return the judgement on a rate with its evidence: `undecided: 2 of 100 late, 400 calls more would tell`."""
    evidence = f"{said.late} of {said.n:,} late"
    if said.answer == UNDECIDED:
        # Other processes may have caused the late ones.
        more = f"{said.wanted:,} {noun} more" if said.wanted else "a quiet machine"
        return f"{UNDECIDED}: {evidence}; {more} would tell"
    return f"{said.answer}: {evidence} (at most {percent(said.most)})"


def leader_name(ranked: Ranking | None, *, is_checked: bool) -> str:
    """Return the recipe that leads as it is shown; with a mark where its output was not compared with a reference."""
    return "none" if ranked is None else ranked.leader + " (not checked)" * (not is_checked)


def judged_columns() -> tuple[Column[Any], ...]:
    """Return the columns of an answer, of a run or a sweep: what leads, its time and speedup, the rate it holds."""
    return (
        Column("fastest correct", lambda row: row.leader, wrap=34),
        Column("p50", lambda row: row.p50, "ms"),
        Column("vs baseline", lambda row: row.vs_baseline, "ratio"),
        Column("holds", lambda row: row.holds),
    )


def _columns() -> tuple[Column[Answer], ...]:
    return (
        Column("component", lambda row: row.component, wrap=26),
        *judged_columns(),
        Column("next", lambda row: (row.next[0] if len(row.next[0]) <= _SHORT else "see below") or None, wrap=_SHORT),
        Column("bound by", lambda row: row.bound, depth="report"),
    )


def ranking_remarks(ranked: Ranking) -> Iterator[str]:
    """Say which take the same time as the one that leads, and which may be as fast."""
    if same := ranked.named("same"):
        yield f"same within {RESOLUTION:.0%}: {few(same)}"
    if undecided := ranked.named("undecided"):
        verb = "is" if len(undecided) == 1 else "are"
        hardest = max((ranked.pairs[name] for name in undecided), key=Pair.times_wanted)
        yield f"{UNDECIDED}: whether {few(undecided)} {verb} as fast; {hardest.wants()} would tell"
