"""A sweep as a flat list of cells, and the judge's answer on those with the same work on the same kind of device.

A recipe is a variant with the overrides that change how work is run (dtype, threads, options of the variant). Every
other override changes the work. Jobs that repeat a recipe on the same work are further placements of one cell. Runs are
read one after the other, and their samples are dropped once they are judged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from urllib.parse import quote

from profiling.errors import InputError, reason_of
from profiling.report.answer import held_rate, ranking_remarks
from profiling.report.cells import conditions_of, median_of, ratio_value
from profiling.report.format import Estimate, Link, Value, number_of
from profiling.report.page import PAGE_FILE
from profiling.report.run_data import load_run, wrong_because
from profiling.results.jsonl import RESULTS_FILE
from profiling.results.judge import RESOLUTION, Cell, Pair, Ranking, compare, rank
from profiling.results.overrides import (
    concerns,
    is_recipe,
    is_work,
    names_cells,
    number,
    overrides_of,
    setting,
    swept_keys,
)
from profiling.results.record import NOT_ENDED, Record
from profiling.results.run_folder import JOB_LOG
from profiling.results.sweep import Sweep, SweepJob, read_sweep
from profiling.results.verdicts import by_component, cell_of, correct_baseline, sm_clock, work_of


@dataclass(frozen=True)
class SweptJob:
    """A job, and what is known of its run; `damage` says what of its files cannot be read, each in one line."""

    job: SweepJob
    values: Mapping[str, str]  # of the overrides that differ between jobs, by key
    device: str | None = None  # the kind that it measured
    page: str | None = None  # of the run, and what the job printed: paths relative to the sweep
    log: str | None = None
    damage: tuple[str, ...] = ()

    @property
    def link(self) -> Link:
        """The number of the job, linked to the run's page."""
        return Link(str(self.job.number), self.page)


@dataclass(frozen=True)
class SweptCell:
    """A cell of a job.

    `judged`: what the judge compares; None where it is not correct or was not timed. `baseline`: the same of the
    baseline of its run; None where that is not correct, and for loops, which have no speedup.
    """

    job: SweptJob
    component: str
    variant: str
    values: Mapping[str, str]  # of the overrides that concern it: not those of another component or variant
    facts: frozenset[str] | None  # of the work of its component in this job; None where nothing of it was timed
    status: str  # ok, or why its time does not count
    reason: str | None
    judged: Cell | None
    baseline: Cell | None
    p50: Estimate | float | None  # ms
    holds: str | None
    sm_clock: float | None  # MHz, while it was timed
    conditions: list[str]

    @cached_property
    def recipe(self) -> str:
        """The variant and the values of the overrides that change how the work is run."""
        settings = (setting(key, value) for key, value in self.values.items() if is_recipe(key))
        return ", ".join((self.variant, *settings))

    @cached_property
    def work(self) -> dict[str, str]:
        """The values of the overrides that change the work."""
        return {key: value for key, value in self.values.items() if is_work(key)}


@dataclass(frozen=True)
class Repeated:
    """The cells of one recipe that did the same work, each in another job."""

    cells: tuple[SweptCell, ...]

    @cached_property
    def judged(self) -> Cell | None:
        """One cell of the placements of all jobs; None where none is correct and timed."""
        return _placed([cell.judged for cell in self.cells])

    @property
    def p50(self) -> Estimate | float | None:
        """The time in ms with its interval; of several jobs the median, with the lowest and the highest."""
        times = [value for cell in self.cells if (value := number_of(cell.p50)) is not None]
        return Estimate(median(times), min(times), max(times)) if len(times) > 1 else self.cells[0].p50

    @cached_property
    def speedup(self) -> Pair | None:
        """The time of the baseline of the same jobs over that of the recipe; None for the baseline itself."""
        both = [cell for cell in self.cells if cell.baseline is not None and cell.baseline is not cell.judged]
        baseline, own = (_placed([getattr(cell, name) for cell in both]) for name in ("baseline", "judged"))
        return None if baseline is None or own is None else compare(baseline, own)

    @property
    def against_baseline(self) -> Value | None:
        """The speedup over the baseline as text or number; 1 for the baseline."""
        if self.judged is not None and all(cell.baseline is cell.judged for cell in self.cells):
            return 1.0
        return ratio_value(self.speedup)

    @property
    def holds(self) -> str | None:
        """The highest frame rate that it holds; if jobs differ, the rate of each."""
        return " or ".join(dict.fromkeys(cell.holds for cell in self.cells if cell.holds is not None)) or None


def _placed(cells: Sequence[Cell | None]) -> Cell | None:
    """Return one cell of all placements, with the widest spread; None without any."""
    known = [cell for cell in cells if cell is not None]
    if not known:
        return None
    placements = tuple(placement for cell in known for placement in cell.placements)
    return Cell(placements, max((cell.spread for cell in known), key=lambda spread: spread.std))


@dataclass(frozen=True)
class SweepAnswer:
    """The judgement on the cells of one component that did the same work on one kind of device."""

    component: str
    work: Mapping[str, str]  # values of the overrides that change the work
    device: str | None
    cells: tuple[SweptCell, ...]

    @cached_property
    def recipes(self) -> Mapping[str, Repeated]:
        """The recipes with correct, timed cells, in the order of the jobs."""
        found: dict[str, list[SweptCell]] = {}
        for cell in self.cells:
            if cell.judged is not None:
                found.setdefault(cell.recipe, []).append(cell)
        return {name: Repeated(tuple(cells)) for name, cells in found.items()}

    @cached_property
    def ranking(self) -> Ranking | None:
        """The recipe that leads, and the answer on each of the others; None where none was timed."""
        cells = {name: recipe.judged for name, recipe in self.recipes.items() if recipe.judged is not None}
        return rank(cells) if cells else None

    @property
    def fastest(self) -> Repeated | None:
        """The cells of the recipe that leads."""
        return None if self.ranking is None else self.recipes[self.ranking.leader]

    @property
    def name(self) -> str:
        """The component and what was swept of its work."""
        values = ", ".join(setting(key, value) for key, value in self.work.items())
        return f"{self.component} ({values})" if values else self.component

    def remarks(self) -> Iterator[str]:
        """Yield a sentence on each thing that needs saying, after the name."""
        if self.ranking is None or self.fastest is None:
            yield "no latency was measured" if any(cell.status == "ok" for cell in self.cells) else "no correct result"
            return
        yield from ranking_remarks(self.ranking)
        noted = [cell for cell in self.fastest.cells if cell.conditions]
        if noted:
            more = f" (and {len(noted) - 1} more of its {len(self.fastest.cells)} jobs)" if len(noted) > 1 else ""
            yield f"{self.ranking.leader}, job {noted[0].job.job.number}: {'; '.join(noted[0].conditions)}{more}"
        timed = [cell for recipe in self.recipes.values() for cell in recipe.cells]
        clocks = [cell.sm_clock for cell in timed if cell.sm_clock is not None]
        if clocks and max(clocks) > min(clocks) * (1 + RESOLUTION):
            yield f"SM clocks of its jobs: {min(clocks):.0f} to {max(clocks):.0f} MHz while timed"


@dataclass(frozen=True)
class SweepData:
    """A sweep: its plan, its jobs and their cells in the order of their numbers, and its folder."""

    sweep: Sweep
    keys: tuple[str, ...]  # of the overrides that differ between jobs, without the names of components and variants
    jobs: tuple[SweptJob, ...]
    cells: tuple[SweptCell, ...]
    folder: Path

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """The kinds of device that jobs measured."""
        return tuple(dict.fromkeys(job.device for job in self.jobs if job.device is not None))

    @cached_property
    def on_several(self) -> bool:
        """Whether cells were measured on several kinds of device; one that is not known may be of any kind."""
        return len({cell.job.device for cell in self.cells}) > 1

    @cached_property
    def answers(self) -> tuple[SweepAnswer, ...]:
        """The answers, by component in the order of the jobs, then sorted by the swept values of the work."""
        found: dict[tuple[object, ...], list[SweptCell]] = {}
        known: dict[tuple[object, ...], tuple[object, ...]] = {}
        # Cells that failed early lack facts of their work. They belong to timed ones with the same overrides.
        for cell in sorted(self.cells, key=lambda cell: cell.facts is None):
            place = cell.job.device or cell.job.job.number  # a device that is not known may be of any kind
            same = (cell.component, *sorted(cell.work.items()), place)
            if cell.facts is not None:
                known.setdefault(same, (*same, cell.facts))
                found.setdefault((*same, cell.facts), []).append(cell)
            elif cell.status != "skipped":
                found.setdefault(known.get(same, same), []).append(cell)
        components = list(dict.fromkeys(cell.component for cell in self.cells))
        answers = [
            SweepAnswer(cells[0].component, cells[0].work, cells[0].job.device, tuple(cells))
            for cells in found.values()
        ]
        return tuple(sorted(answers, key=lambda a: (components.index(a.component), *map(_place, a.work.values()))))


def _place(value: str) -> tuple[float, str]:
    """Return what values are sorted by: numbers by size, then text."""
    return (math.inf if (found := number(value)) is None else found, value)


def load_sweep(folder: Path) -> SweepData:
    """Read a sweep and what its runs have measured so far.

    Raises:
        InputError: the folder holds no sweep that can be read.

    """
    sweep = read_sweep(folder)
    keys = tuple(key for key in swept_keys(sweep) if not names_cells(key))
    read = [_read(folder, job, keys) for job in sweep.jobs]
    return SweepData(sweep, keys, tuple(job for job, _ in read), tuple(c for _, cells in read for c in cells), folder)


def _read(folder: Path, planned: SweepJob, keys: Sequence[str]) -> tuple[SweptJob, list[SweptCell]]:
    """Return a job and its cells; what is wrong with its run is said in the job, and hides no other."""
    values, path = overrides_of(planned), folder / planned.folder
    job = SweptJob(planned, {key: values[key] for key in keys if key in values})
    try:
        if not path.resolve().is_relative_to(folder.resolve()):
            raise InputError(f"{planned.folder} lies outside of the sweep")
        files = [f"{planned.folder}/{name}" for name in (PAGE_FILE, JOB_LOG)]
        page, log = (quote(file) if (folder / file).is_file() else None for file in files)
        job = replace(job, page=page, log=log)
        if not (path / RESULTS_FILE).is_file():
            return job, []
        data = load_run(path)
        job = replace(job, device=data.environment.device_kind, damage=data.damage)
        records = [record for record in data.records if record.launches is None and record.check is None]
        if planned.state == "running":
            records = [record for record in records if record.reason != NOT_ENDED]
        return job, [cell for group in by_component(records).values() for cell in _cells(job, group)]
    except Exception as error:  # what is wrong with one run must not hide the others
        reason = str(error) if isinstance(error, InputError | OSError) else reason_of(error)
        return replace(job, damage=(f"cannot be read: {reason}",)), []


def _cells(job: SweptJob, group: Sequence[Record]) -> Iterator[SweptCell]:
    """Yield the cells of one component of a job."""
    judged = {record.cell: cell_of(record) for record in group}
    work = dict(pair for record in group for pair in work_of(record).items())
    facts = frozenset(f"{name}={fact}" for name, fact in work.items()) if any(judged.values()) else None
    baseline = correct_baseline(group)
    for record in group:
        yield SweptCell(
            job=job,
            component=record.component,
            variant=record.variant,
            values={key: value for key, value in job.values.items() if concerns(key, record)},
            facts=facts,
            status=wrong_because(record) or "ok",
            reason=record.reason,
            judged=judged[record.cell],
            baseline=None if baseline is None or record.is_realtime else judged[baseline.cell],
            p50=median_of(record),
            holds=held_rate(record) if record.is_correct else None,
            sm_clock=sm_clock(record),
            conditions=conditions_of(record),
        )
