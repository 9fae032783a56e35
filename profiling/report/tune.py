"""The results of a search: the winner, what each of its steps contributes, and the front of all recipes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from profiling.errors import printable
from profiling.report.answer import CANNOT_TELL, median_of
from profiling.report.charts import Chart, Figure, View, axis, figure, plain, points, scale
from profiling.report.doubts import doubts_of
from profiling.report.format import Computed, Estimate, Value, count_of, estimate, few, listed, significant
from profiling.report.page import Section
from profiling.report.run_data import RunData, name_of
from profiling.report.starts import prepare_seconds
from profiling.report.table import Column, Table
from profiling.results.judgement import (
    by_component,
    can_be_ranked,
    correct_baseline,
    disturbance,
    disturbance_explains,
    intervals_overlap,
    is_undecided,
    paired_speedup,
    same_code_share,
    took_turns,
)
from profiling.results.record import BASELINE, Record

#: The target whose runs are searches, and what stands between the steps in the name of a recipe.
TUNE, AND = "tune", "+"
#: The front counts errors within this factor as equal: they differ only in the order in which sums are rounded.
SAME_ERROR = 1.1

_LEGEND = (
    "Front: no other correct recipe is as good or better in all three: time, error, and seconds to prepare. "
    f"Errors within {SAME_ERROR:g}× count as equal. Preparing is from an empty cache; ~: computed, for a recipe that "
    "started from the cache of another one with the same compiler."
)
_NOTE = (
    "slower without it: time without the step over time of the winner, timed in turns; "
    "~: computed from the speedups of both over eager, since they did not take turns. adds to preparing: from an empty "
    "cache; ~: computed, where one of the two started from the cache of another recipe."
)


def steps_of(record: Record) -> frozenset[str]:
    """Return the steps in the recipe's name; none for the baseline."""
    return frozenset() if record.variant == BASELINE else frozenset(record.variant.split(AND))


def gain(record: Record) -> float | None:
    """Return the measured speedup of a correct recipe over the baseline; else None."""
    if not record.is_correct or record.wall_p50 is None:
        return None
    return 1.0 if record.variant == BASELINE else record.speedup.wall if record.speedup is not None else None


def winner(records: Iterable[Record]) -> Record | None:
    """Return the fastest correct recipe, without the steps whose contribution noise could explain."""
    records, record = tuple(records), None
    for record in sorted(filter(gain, records), key=lambda each: -(gain(each) or 0.0)):
        while equal := [each.without for each in contributions(records, record) if each.is_nothing]:
            record = min(equal, key=lambda each: len(steps_of(each)))
        if record.variant != BASELINE:
            break
    return record


def _fastest(records: Iterable[Record]) -> Record | None:
    return max((each for each in records if gain(each)), key=lambda each: gain(each) or 0.0, default=None)


@dataclass(frozen=True)
class Contribution:
    """What `steps` contribute to a recipe: `recipe` has them, `without` is the measured recipe with all others."""

    steps: tuple[str, ...]
    recipe: Record
    without: Record

    @property
    def ratio(self) -> Estimate | Computed | float | None:
        """The time without the steps over the time with them; None where one of the two is not correct."""
        with_them, without = gain(self.recipe), gain(self.without)
        if with_them is None or without is None:
            return None
        paired = paired_speedup(self.recipe, self.without)
        if paired is None:
            return Computed(with_them / without)
        value = estimate(*paired)
        return value

    @property
    def is_nothing(self) -> bool:
        """Whether no difference to the recipe without the steps can be claimed."""
        ratio = self.ratio
        if ratio is None:
            return False
        value = ratio.value if isinstance(ratio, Estimate | Computed) else ratio
        if value <= 1 + same_code_share(self.recipe, self.without) or not can_be_ranked(self.recipe, self.without):
            return True
        return took_turns(self.recipe, self.without) and intervals_overlap(self.recipe, self.without) is True


def contributions(records: Iterable[Record], recipe: Record) -> list[Contribution]:
    """Return what each step of a recipe contributes, if the recipe without it was measured."""
    steps, found = steps_of(recipe), dict[frozenset[str], Record]()
    measured = [each for each in records if steps_of(each) < steps and each.wall_p50 is not None]
    for step in sorted(steps):
        without = [each for each in measured if step not in steps_of(each)]
        if without:
            nearest = max(without, key=lambda each: len(steps_of(each)))
            found.setdefault(steps - steps_of(nearest), nearest)
    named = recipe.variant.split(AND)
    return [
        Contribution(tuple(step for step in named if step in removed), recipe, without)
        for removed, without in found.items()
    ]


def front(records: Iterable[Record]) -> list[Record]:
    """Return the correct recipes that no other one beats in time, error and preparing; the fastest first."""
    timed = [each for each in records if gain(each) is not None]
    kept = [each for each in timed if not any(_beats(other, each) for other in timed)]
    return sorted(kept, key=lambda each: -(gain(each) or 0.0))


def _beats(one: Record, other: Record) -> bool:
    (time, error, seconds), (other_time, other_error, other_seconds) = _costs(one), _costs(other)
    if time > other_time or error > SAME_ERROR * other_error or seconds > other_seconds:
        return False
    return time < other_time or SAME_ERROR * error < other_error or seconds < other_seconds


def _costs(record: Record) -> tuple[float, float, float]:
    error = record.parity.rel_l2 if record.parity is not None else None
    return 1 / (gain(record) or 1.0), error or 0.0, record.prepare.from_cold if record.prepare is not None else 0.0


def tune_section(data: RunData) -> Section:
    """Return the winner of each component, what its steps contribute, and the front."""
    records = [record for record in data.records if record.target == TUNE]
    lines, steps, best = [], list[Contribution](), list[Record]()
    for group in by_component(records).values():
        won = winner(group)
        if won is None:
            continue
        lines.append(_winner_line(won, group))
        steps += contributions(group, won)
        best += front(group)
    warm = [each.variant for each in best if each.prepare is not None and each.prepare.is_cold_unknown]
    legend = [_LEGEND, *([f"From a cache that was filled before the run: {listed(warm)}."] if warm else [])]
    tables = (
        Table("What the steps of the winner contribute", _STEPS, steps, [_NOTE], keys=1),
        Table("Front of the recipes", _front_columns(by_component(records)), best, legend, keys=1, name=name_of),
    )
    views = [View(component, _figure(group)) for component, group in by_component(records).items() if front(group)]
    charts = (Chart("tune", "Recipes: time against error", views, "Point at a recipe for its name."),)
    return Section("tune", "Search of recipes", tuple(map(printable, lines)), tables=tables, charts=charts)


def _figure(group: Sequence[Record]) -> Figure:
    best = front(group)
    others = [each for each in group if gain(each) is not None and each not in best]
    traces, errors, times = [], list[float](), list[float]()
    for name, symbol, records in (("front", "circle", best), ("others", "circle-open", others)):
        x, y = [_costs(each)[1] for each in records], [each.wall_p50 or 0.0 for each in records]
        names = [plain(f"{each.variant}: {significant(each.wall_p50)} ms") for each in records]
        traces.append(points(name, x, y, symbol, text=names, hovertemplate="%{text}"))
        errors, times = errors + x, times + y
    return figure(traces, axis("relative L2 error", **scale(errors)), axis("p50, ms", **scale(times)))


def _winner_line(won: Record, group: Sequence[Record]) -> str:
    facts = [f"p50 {significant(won.median_ms)} ms"]  # as in the tables, with disturbed windows
    if won.variant != BASELINE:
        baseline = correct_baseline(group)
        ranked = baseline is not None and can_be_ranked(won, baseline)
        unsure = "" if ranked else ", which noise or other processes could explain"
        facts.append(f"{significant(gain(won), 3)}× as fast as eager{unsure}")
    if won.parity is not None and won.parity.rel_l2 is not None:
        facts.append(f"relative L2 error {won.parity.rel_l2:.2g}")
    if won.prepare is not None:
        cache = "a filled cache" if won.prepare.is_cold_unknown else "an empty cache"
        facts.append(f"prepared in {significant(won.prepare.from_cold, 3)} s from {cache}")
    tried = sum(each.status != "skipped" and each.variant != BASELINE for each in group)
    fastest = _fastest(group)
    if fastest is not None and fastest is not won:
        time = f"{significant(fastest.median_ms)} ms"  # without a speedup, which the measurement does not support
        unknown = took_turns(won, fastest) and is_undecided(won, fastest)
        why = "too few windows to tell which is faster" if unknown else "a difference that noise could explain"
        facts.append(f"{fastest.variant} measured {time}, {why}")
    equal = [
        each.variant for each in group if each not in (won, fastest) and _is_as_fast(won, each, correct_baseline(group))
    ]
    if equal:
        facts.append(f"cannot tell whether it is faster than {few(equal)}")
    use = f"To use it: --config-dir=RUN component=[{won.component}] variant=[baseline,tuned]"
    words = f"the winner is {won.variant}"
    if won.variant == BASELINE:
        timed = [each for each in group if each is not won and gain(each)]
        sure = fastest is won and all(disturbance_explains(won, each) is None for each in timed)
        use, words = "", f"{'no recipe was' if sure else 'cannot tell whether a recipe is'} faster than eager"
    return f"{won.component}: {words} ({', '.join(facts)}; tried: {count_of(tried, 'recipe')}). {use}".rstrip()


def _is_as_fast(won: Record, other: Record, baseline: Record | None) -> bool:
    """Return whether a recipe other than the winner and eager may be as fast as the winner."""
    if other is baseline or gain(other) is None or won.variant == BASELINE:
        return False
    undecided = took_turns(won, other) and is_undecided(won, other)
    return undecided or not can_be_ranked(won, other)


def _slower(row: Contribution) -> Value | None:
    if row.ratio is None:
        return f"not correct: {row.without.status}"
    return row.ratio if can_be_ranked(row.recipe, row.without) else CANNOT_TELL


def _marks(record: Record) -> str | None:
    doubts = doubts_of(record)
    return f"! {', '.join(doubt.mark for doubt in doubts)}" if doubts else None


def _adds_to_preparing(row: Contribution) -> Value | None:
    """Return the seconds that the steps add, each recipe prepared from an empty cache."""
    with_them, without = row.recipe.prepare, row.without.prepare
    if with_them is None or without is None or with_them.is_cold_unknown or without.is_cold_unknown:
        return None
    seconds = with_them.from_cold - without.from_cold
    return seconds if with_them.cold_s is without.cold_s is None else Computed(seconds)


_STEPS = (
    Column[Contribution]("step", lambda row: listed(list(row.steps)), wrap=26),
    Column[Contribution]("slower without it", _slower, "ratio"),
    Column[Contribution]("p50 without", lambda row: median_of(row.without), "ms", wrap=14),
    Column[Contribution]("p50 with", lambda row: median_of(row.recipe), "ms", wrap=14),
    Column[Contribution]("adds to preparing", _adds_to_preparing, "s"),
)


def _front_columns(groups: Mapping[str, Sequence[Record]]) -> tuple[Column[Record], ...]:
    def speedup(record: Record) -> Value | None:
        beside = [each for each in groups[record.component] if each.device == record.device]
        baseline = correct_baseline(beside)  # that of another device is not in this run
        if record is baseline or record.speedup is None:
            return 1.0
        ranked = disturbance(record) is None if baseline is None else can_be_ranked(record, baseline)
        return estimate(record.speedup.wall, record.speedup.ci95) if ranked else CANNOT_TELL

    return (
        Column[Record]("recipe", lambda row: row.variant, wrap=40),
        Column[Record]("p50", median_of, "ms", wrap=14),
        Column[Record]("speedup vs eager", speedup, "ratio", wrap=12),
        Column[Record]("relative L2", lambda row: row.parity.rel_l2 if row.parity is not None else None, "error"),
        Column[Record]("prepare", prepare_seconds, "s"),
        Column[Record]("conditions", _marks, "marks", wrap=22),
        Column[Record]("device", lambda row: row.device, depth="report"),
    )
