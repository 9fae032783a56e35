"""The ranking of a sweep: the best recipe of each component, on each kind of device, and how far repetitions differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from profiling.errors import command, printable
from profiling.report.answer import CANNOT_TELL, held_rate
from profiling.report.doubts import Doubt
from profiling.report.energy import joules_per_frame
from profiling.report.format import Value, count_of, few, listed, number_of, percent
from profiling.report.page import Section
from profiling.report.roofline import deciding
from profiling.report.sweep_data import (
    SAME_SHARE,
    Contest,
    Measurement,
    Repeated,
    SweepData,
)
from profiling.report.table import Column, Depth, Table
from profiling.results.judgement import sm_clock
from profiling.results.overrides import is_recipe, short
from profiling.results.sweep import ENDED

#: Rows of a table that the console has room for, that `report.md` has, and that the page has.
_CONSOLE, _REPORT, _PAGE = 60, 1_000, 4_000
#: Lines of doubts or of failures.
_MOST_LINES = 12
_LEGEND = (
    "fastest correct: of all jobs with the same component and work, on one kind of device. Cells of two jobs are "
    "ranked only where they differ by more than two runs of equal code do."
)
_REPEATED = (
    "Of several jobs that measured it: the median, in brackets the lowest and the highest; job: the one in the middle."
)
_ROOFLINE = "of roofline: the least time that the device's measured ceilings allow, over p50."
_ACROSS = (
    "Times on different kinds of device are not ranked. of roofline compares how far each recipe is from what its "
    f"device can do; shares within {percent(SAME_SHARE)} of each other are equal."
)


_Same = tuple[Contest, ...]
_Repeat = tuple[Contest, Repeated]


def best_section(data: SweepData) -> Section:
    """Return the fastest correct recipe of each component and work, and how it does on several kinds of device."""
    contests = data.contests
    keys = [key for key in data.keys if any(key in contest.work for contest in contests)]
    recipe_keys = [key for key in data.keys if is_recipe(key)]
    names = column_titles(data.keys, ("component", "device", "job"))
    columns = (
        Column[Contest]("component", lambda row: row.component, wrap=26),
        *(Column[Contest](names[key], _work_value(key), wrap=26) for key in keys),
        Column[Contest](
            "device",
            lambda row: row.device,
            wrap=20,
            depth="console" if len({row.device for row in contests}) > 1 else "page",
        ),
        Column[Contest]("fastest correct", _fastest, wrap=26),
        *(Column[Contest](names[key], _recipe_value(key), wrap=14) for key in recipe_keys),
        Column[Contest](
            "jobs", lambda row: len(row.best.cells) if row.best and row.best.spread is not None else None, "count"
        ),
        Column[Contest]("p50", lambda row: row.best.p50 if row.best else None, "ms", wrap=14),
        Column[Contest]("speedup in its run", _speedup_of_best, "ratio", wrap=12),
        Column[Contest]("of roofline", lambda row: row.fastest.roofline_share if row.fastest else None, "percent"),
        Column[Contest]("holds", lambda row: held_rate(row.fastest.record) if row.fastest else None, depth="report"),
        Column[Contest]("bound by", _bound, depth="report"),
        Column[Contest]("energy", _joules, "number", unit="J/frame", depth="report"),
        Column[Contest]("SM clock", lambda row: clock_of(row.fastest), "count", unit="MHz", depth="report"),
        Column[Contest]("cells", lambda row: len(row.cells), "count", depth="report"),
        Column[Contest]("conditions", _marks, "marks", depth="report"),
        Column[Contest]("job", lambda row: row.fastest.run.link if row.fastest else None),
    )
    shown, notes = limited(contests, data)
    legend = [_LEGEND]
    legend += [_REPEATED] if any(row.best is not None and row.best.spread is not None for row in contests) else []
    legend += [_ROOFLINE] if any(row.fastest is not None and row.fastest.roofline_share for row in contests) else []
    best = Table("Best recipe by component", columns, shown, [" ".join(legend), *notes], keys=1 + len(keys))
    lines = _doubt_lines(contests) if contests else [_nothing_yet(data)]
    tables = (best, _across_table(data, keys, names))
    return Section("best", "Best recipe by component", tuple(map(printable, lines)), tables=tables, leads=True)


def _across_table(data: SweepData, keys: Sequence[str], names: Mapping[str, str]) -> Table[tuple[Contest, ...]]:
    """Return a row for each work that several kinds of device did, with the time and the roofline share on each."""

    def on(device: str, read: Callable[[Measurement], Value | None]) -> Callable[[_Same], Value | None]:
        def value(row: _Same) -> Value | None:
            contest = next((each for each in row if each.device == device), None)
            return read(contest.fastest) if contest is not None and contest.fastest is not None else None

        return value

    columns = [
        Column[_Same]("component", lambda row: row[0].component, wrap=26),
        *(Column[_Same](names[key], lambda row, key=key: row[0].work.get(key), wrap=26) for key in keys),
    ]
    for device in data.devices:
        columns += [
            Column[_Same](f"{device}: fastest", on(device, lambda cell: ", ".join(cell.recipe)), wrap=20),
            Column[_Same](f"{device}: p50", on(device, lambda cell: cell.record.median_ms), "ms"),
            Column[_Same](f"{device}: of roofline", on(device, lambda cell: cell.roofline_share), "percent"),
            Column[_Same](f"{device}: SM clock", on(device, clock_of), "count", unit="MHz", depth="report"),
        ]
    columns.append(Column[_Same]("nearest its roofline", _nearest, wrap=20))
    rows = [same for same in data.by_work if len({contest.device for contest in same} - {None}) > 1]
    shown, notes = limited(rows, data)
    return Table("On several kinds of device", columns, shown, [_ACROSS, *notes], keys=1 + len(keys), depth="report")


def _nearest(same: Sequence[Contest]) -> str | None:
    shares = [
        (share, str(contest.device))
        for contest in same
        if contest.fastest is not None and (share := contest.fastest.roofline_share) is not None
    ]
    if len(shares) < 2:
        return None
    (best, device), (next_best, _), *_ = sorted(shares, reverse=True)
    return device if best > next_best * (1 + SAME_SHARE) else CANNOT_TELL


def repeated_section(data: SweepData) -> Section:
    """Return a row for each cell that several jobs measured: how far its times are apart."""
    rows = repeated_cells(data)
    works = [key for key in data.keys if any(key in contest.work for contest, _ in rows)]
    recipes = [key for key in data.keys if is_recipe(key)]
    names = column_titles(data.keys, ("component", "device", "variant", "jobs"))
    columns = (
        Column[_Repeat]("component", lambda row: row[0].component, wrap=26),
        *(Column[_Repeat](names[key], lambda row, key=key: row[0].work.get(key), wrap=26) for key in works),
        *([Column[_Repeat]("device", lambda row: row[0].device, wrap=16)] if len(data.devices) > 1 else []),
        Column[_Repeat]("variant", lambda row: row[1].middle.record.variant, wrap=26),
        *(Column[_Repeat](names[key], _value_of_repeated(key), wrap=14) for key in recipes),
        Column[_Repeat]("jobs", lambda row: len(row[1].cells), "count"),
        Column[_Repeat]("p50", lambda row: row[1].p50, "ms", wrap=24),
        Column[_Repeat]("range", lambda row: row[1].spread, "percent"),
        Column[_Repeat]("speedup in its run", lambda row: row[1].speedup, "ratio", wrap=20),
        Column[_Repeat]("conditions", lambda row: f"! {row[1].doubt.mark}" if row[1].doubt else None, "marks"),
    )
    shown, notes = limited(rows, data)
    legend = "The same component, work and recipe in several jobs: the median, in brackets the lowest and the highest. "
    legend += "range: the highest less the lowest, over the median."
    depth, title = depth_of(rows), "Cells that several jobs measured"
    table = Table(title, columns, shown, [legend, *notes], keys=2 + len(works) + len(recipes), depth=depth)
    return Section("repeated", title, tables=(table,))


def _doubt_lines(contests: Sequence[Contest]) -> tuple[str, ...]:
    """Return the doubts that have words, each once with the rows that it concerns."""
    concerned: dict[Doubt, list[Contest]] = {}
    for contest in contests:
        for doubt in contest.doubts:
            if doubt.words:
                concerned.setdefault(doubt, []).append(contest)
    rows = Counter(contest.component for contest in contests)
    lines = [f"! {doubt.mark} ({_names(found, rows)}): {doubt.words}." for doubt, found in concerned.items()]
    return shortened(lines, "doubt")


def _names(contests: Sequence[Contest], rows: Mapping[str, int]) -> str:
    """Return the components of rows, with the jobs in the last column where a component has several of the `rows`."""
    jobs: dict[str, list[str]] = {}
    for contest in contests:
        number = [str(contest.fastest.run.job.number)] if contest.fastest and rows[contest.component] > 1 else []
        jobs.setdefault(contest.component, []).extend(number)
    return listed(
        [
            f"{component} in job{'s' * (len(numbers) > 1)} {few(numbers)}" if numbers else component
            for component, numbers in jobs.items()
        ]
    )


def _work_value(key: str) -> Callable[[Contest], str | None]:
    return lambda row: row.work.get(key)


def _recipe_value(key: str) -> Callable[[Contest], str | None]:
    return lambda row: row.fastest.run.values_of(row.fastest.record).get(key) if row.fastest is not None else None


def repeated_cells(data: SweepData) -> list[_Repeat]:
    """Return the cells that several jobs measured."""
    return [(contest, each) for contest in data.contests for each in contest.recipes if each.spread is not None]


def _value_of_repeated(key: str) -> Callable[[_Repeat], str | None]:
    return lambda row: row[1].middle.run.values_of(row[1].middle.record).get(key)


def _speedup_of_best(row: Contest) -> Value | None:
    """Return the speedup of the fastest recipe; the report of its run has the interval."""
    if row.best is None or not row.is_ranked:
        return None
    return number_of(row.best.speedup) if row.best.spread is None else row.best.speedup


def _nothing_yet(data: SweepData) -> str:
    if any(run.job.state not in ENDED for run in data.runs):
        return "No cell has ended yet."
    if any(run.job.state == "done" for run in data.runs):
        return "No job has measured a time that can be compared. The report of each job shows what it measured."
    return "No job has measured a cell."


def _fastest(row: Contest) -> str:
    if row.fastest is None:
        return f"none: {row.doubts[0].mark}"
    variant = row.fastest.record.variant
    return variant if row.is_ranked else f"{CANNOT_TELL} ({variant})"


def _bound(row: Contest) -> str | None:
    call = deciding(row.fastest.record) if row.fastest is not None else None
    return call.roofline.bound if call is not None else None


def _marks(row: Contest) -> str | None:
    marks = dict.fromkeys(doubt.mark for doubt in row.doubts)
    return f"! {', '.join(marks)}" if marks else None


def _joules(row: Contest) -> Value | None:
    return joules_per_frame(row.fastest.record) if row.fastest is not None else None


def clock_of(cell: Measurement | None) -> float | None:
    """Return the SM clock in MHz while the cell was timed; None where it is not known."""
    return sm_clock(cell.record) if cell is not None else None


def column_titles(keys: Sequence[str], taken: Iterable[str]) -> dict[str, str]:
    """Return a column title for each override: its last name, or all of it where that would not be unique."""
    times = Counter([*map(short, keys), *taken])
    return {key: printable(short(key) if times[short(key)] == 1 else key) for key in keys}


def depth_of(rows: Sequence[object]) -> Depth:
    """Return the outermost place that has room for a table of these rows."""
    return "console" if len(rows) <= _CONSOLE else "report" if len(rows) <= _REPORT else "page"


def limited(rows: Sequence[Any], data: SweepData) -> tuple[Sequence[Any], list[str]]:
    """Return the rows that a page has room for, and a note where that is not all."""
    if len(rows) <= _PAGE:
        return rows, []
    every = command("-m", "profiling.report", data.folder.name, "--format", "csv")
    return rows[:_PAGE], [f"The first {_PAGE:,} of {len(rows):,} rows. All cells: {every}"]


def shortened(lines: Sequence[str], noun: str) -> tuple[str, ...]:
    """Return the first lines, and how many of them (called `noun`) are left out."""
    left = len(lines) - _MOST_LINES
    more = [f"and {count_of(left, noun)} more"] if left > 0 else []
    return tuple(map(printable, (*lines[:_MOST_LINES], *more)))
