"""The results of a search: the winner, and what each of its steps contributes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from profiling.errors import printable
from profiling.report.answer import answer_of
from profiling.report.cells import median_of, ratio_value
from profiling.report.format import Marked, Value, count_of, listed
from profiling.report.page import Section
from profiling.report.run_data import RunData
from profiling.report.table import Column, Table
from profiling.results.judge import Pair, judged
from profiling.results.record import AND, BASELINE, Record
from profiling.results.verdicts import by_component, compare_records, fastest_correct

#: The target whose runs are searches, and what stands between the steps in the name of a recipe.
TUNE = "tune"
_NOTE = (
    "slower without it: time without the step over time of the winner. adds to preparing: from an empty cache; "
    "~: computed, where one of the two started from the cache of another recipe."
)


def steps_of(record: Record) -> frozenset[str]:
    """Return the steps in the recipe's name; none for the baseline."""
    return frozenset() if record.variant == BASELINE else frozenset(record.variant.split(AND))


@dataclass(frozen=True)
class Contribution:
    """What `steps` contribute to a recipe: `recipe` has them, `without` is the measured recipe with all others.

    `ratio` is the time without them over the time with them, judged with those of the other steps; None where one of
    the two is not correct.
    """

    steps: tuple[str, ...]
    recipe: Record
    without: Record
    ratio: Pair | None


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
    pairs = {removed: compare_records(without, recipe) for removed, without in found.items()}
    ratios = judged({removed: pair for removed, pair in pairs.items() if pair is not None})
    return [
        Contribution(tuple(step for step in named if step in removed), recipe, without, ratios.get(removed))
        for removed, without in found.items()
    ]


def tune_section(data: RunData) -> Section:
    """Return the winner of each component, and what the steps of the winner contribute."""
    records = [record for record in data.records if record.target == TUNE]
    lines, steps = [], list[Contribution]()
    for group in by_component(records).values():
        won = fastest_correct(group)
        if won is None:
            continue
        lines.append(_winner_line(won, group))
        steps += contributions(group, won)
    table = Table("What the steps of the winner contribute", _STEPS, steps, [_NOTE], keys=1)
    return Section("tune", "Search of recipes", tuple(map(printable, lines)), tables=(table,))


def _winner_line(won: Record, group: Sequence[Record]) -> str:
    tried = count_of(sum(each.status != "skipped" and each.variant != BASELINE for each in group), "recipe")
    if won.variant == BASELINE:
        unknown = answer_of(won.component, group).named("undecided")
        words = "it is undecided whether a recipe" if unknown else "no recipe"
        return f"{won.component}: {words} is faster than eager (tried: {tried})."
    use = f"To use it: --config-dir=RUN component=[{won.component}] variant=[baseline,tuned]"
    return f"{won.component}: the winner is {won.variant} (tried: {tried}){doubt(won, group)}. {use}"


def doubt(won: Record, group: Sequence[Record]) -> str:
    """Say where it is undecided whether the winner is faster than eager."""
    unknown = BASELINE in answer_of(won.component, group).named("undecided")
    return f"; whether it is faster than {BASELINE} is undecided" if unknown else ""


def _adds_to_preparing(row: Contribution) -> Value | None:
    """Return the seconds that the steps add, each recipe prepared from an empty cache."""
    with_them, without = row.recipe.prepare, row.without.prepare
    if with_them is None or without is None or with_them.is_cold_unknown or without.is_cold_unknown:
        return None
    seconds = with_them.from_cold - without.from_cold
    return seconds if with_them.cold_s is without.cold_s is None else Marked("~", seconds)


_STEPS = (
    Column[Contribution](
        "step", lambda r: "all" if AND.join(r.steps) == r.recipe.variant else listed(r.steps), wrap=26
    ),
    Column[Contribution](
        "slower without it",
        lambda row: ratio_value(row.ratio) if row.ratio is not None else f"not correct: {row.without.status}",
        "ratio",
    ),
    Column[Contribution]("p50 without", lambda row: median_of(row.without), "ms", wrap=14),
    Column[Contribution]("p50 with", lambda row: median_of(row.recipe), "ms", wrap=14),
    Column[Contribution]("adds to preparing", _adds_to_preparing, "s"),
)
