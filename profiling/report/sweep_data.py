"""A sweep as its report reads it: the jobs, what they measured, and which recipe is the fastest correct one.

Runs are read one after the other, and only what is compared between them is kept. A recipe is a variant with the
overrides that change how work is run (dtype, threads, options of the variant). Every other override changes the work:
a `Contest` holds the cells of which component, work and kind of device are the same.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from urllib.parse import quote

from msgspec.structs import replace as replaced

from profiling.errors import InputError, reason_of
from profiling.report.answer import Answer, answer_of, speedup_of, summary_of
from profiling.report.doubts import Doubt
from profiling.report.format import Estimate, Link, count_of, number_of, percent, significant
from profiling.report.page import PAGE_FILE
from profiling.report.run_data import RunData, load_run
from profiling.results.environment import Environment
from profiling.results.jsonl import RESULTS_FILE
from profiling.results.judgement import (
    HOST_FACTOR,
    by_component,
    can_be_ranked_across_runs,
    clocks_differ,
    clocks_explain,
    disturbance_explains,
    same_code_share,
    typical_ms,
    without_samples,
    work_of,
)
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

#: Shares of the roofline on two kinds of device are equal within this share: ceilings are measurements, too.
SAME_SHARE = 0.05


@dataclass(frozen=True)
class SweptRun:
    """A job and what its run has measured so far, without samples.

    `trouble`: why nothing of it can be read; `damage`: what of its files could not be read, each in one line.
    """

    job: SweepJob
    values: Mapping[str, str]  # of the overrides that differ between jobs, by key
    environment: Environment = field(default_factory=Environment)
    groups: Mapping[str, tuple[Record, ...]] = field(default_factory=dict)  # by component
    answers: Mapping[str, Answer] = field(default_factory=dict)  # by component, where a cell ran
    page: str | None = None  # the run's own, relative to the sweep
    log: Link | None = None  # what the job printed
    trouble: str = ""
    damage: tuple[str, ...] = ()

    @property
    def device(self) -> str | None:
        """The kind of device that it measured."""
        return self.environment.device_kind

    @property
    def link(self) -> Link:
        """The number of the job, linked to the run's page."""
        return Link(str(self.job.number), self.page)

    def values_of(self, record: Record) -> dict[str, str]:
        """Return the values of the overrides that concern a cell: not those of another component or variant."""
        return {key: value for key, value in self.values.items() if concerns(key, record)}


@dataclass(frozen=True)
class Measurement:
    """A cell of a job."""

    run: SweptRun
    record: Record

    @cached_property
    def recipe(self) -> tuple[str, ...]:
        """The variant and the values of the overrides that change how the work is run."""
        values = self.run.values_of(self.record)
        return self.record.variant, *(setting(key, values[key]) for key in values if is_recipe(key))

    @cached_property
    def ms(self) -> float:
        """The typical time of a call or a frame in milliseconds, infinite where it is not correct or not known."""
        known = typical_ms(self.record) if self.record.is_correct else None
        return math.inf if known is None else known

    @property
    def words(self) -> str:
        """The recipe and the job."""
        return f"{', '.join(self.recipe)} (job {self.run.job.number})"

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% interval of the median time in milliseconds; None where the samples are too few for one."""
        summary = summary_of(self.record)
        return None if summary is None else summary.ci95

    @property
    def speedup(self) -> Estimate | float | None:
        """The speedup over the baseline of its run; None where the times of that run do not support one."""
        if self.record.is_realtime:
            return None
        known = speedup_of(self.record, self.run.groups[self.record.component])
        return known if isinstance(known, Estimate | float) else None

    @property
    def roofline_share(self) -> float | None:
        """The roofline time over the median time (0 to 1)."""
        roofline = self.record.roofline
        least = roofline.roofline_ms if roofline is not None else None
        return None if least is None or not self.record.median_ms else least / self.record.median_ms


@dataclass(frozen=True)
class Repeated:
    """Repetitions of one cell: the correct ones of all jobs with the same recipe and work, the fastest first."""

    cells: tuple[Measurement, ...]

    @property
    def middle(self) -> Measurement:
        """The median one, of two in the middle the faster."""
        return self.cells[(len(self.cells) - 1) // 2]

    @property
    def p50(self) -> Estimate | float | None:
        """The median over the jobs in milliseconds, with the lowest and the highest; of one cell its own."""
        return _over_jobs(median(self._medians), self._medians) if self._medians else None

    @property
    def spread(self) -> float | None:
        """The highest median less the lowest, over the median one; None of one cell."""
        if len(self._medians) < 2:
            return None
        low, high = self.range_ms
        return (high - low) / median(self._medians)

    @property
    def speedup(self) -> Estimate | float | None:
        """The median of the speedups in the runs, with the lowest and the highest; None where a run claims none."""
        if len(self.cells) == 1:
            return self.middle.speedup
        known = [value for cell in self.cells if (value := number_of(cell.speedup)) is not None]
        return _over_jobs(median(known), known) if len(known) == len(self.cells) else None

    @property
    def doubt(self) -> Doubt | None:
        """The doubt that they differ by more than two runs of equal code do."""
        share = same_code_share(self.cells[0].record, self.cells[-1].record)
        low, high = self.range_ms
        if high <= low * (1 + share):
            return None
        words = f"p50 of {', '.join(self.middle.recipe)} is {significant(low)} to {significant(high)} ms"
        words += f" in {len(self.cells)} jobs; two runs of equal code differ by up to {percent(share)}"
        return Doubt("jobs differ", words)

    @property
    def range_ms(self) -> tuple[float, float]:
        """The lowest and the highest median in milliseconds."""
        return min(self._medians), max(self._medians)

    @property
    def _medians(self) -> list[float]:
        return [cell.record.median_ms for cell in self.cells if cell.record.median_ms is not None]


def _over_jobs(middle: float, values: Sequence[float]) -> Estimate | float:
    """Return the number with the ends of its range; the bare number where these are equal."""
    return middle if min(values) == max(values) else Estimate(middle, min(values), max(values))


@dataclass(frozen=True)
class Contest:
    """The cells of one component that did the same work on one kind of device, and the fastest correct of them.

    Of a recipe that several jobs measured, `fastest` is the median one. It is ranked where each run that has it says
    so, and where it was faster, also at its slowest, than each cell of other runs by more than two runs of equal code
    differ.
    """

    component: str
    work: Mapping[str, str]  # values of the overrides that change the work
    device: str | None
    cells: tuple[Measurement, ...]

    @cached_property
    def recipes(self) -> tuple[Repeated, ...]:
        """The correct cells by recipe, in the order of the jobs."""
        recipes: dict[tuple[str, ...], list[Measurement]] = {}
        for cell in self.cells:
            if cell.ms < math.inf:
                recipes.setdefault(cell.recipe, []).append(cell)
        return tuple(Repeated(tuple(sorted(cells, key=lambda cell: cell.ms))) for cells in recipes.values())

    @cached_property
    def best(self) -> Repeated | None:
        """The cells of the fastest correct recipe."""
        return min(self.recipes, key=lambda recipe: recipe.middle.ms, default=None)

    @property
    def fastest(self) -> Measurement | None:
        """The fastest correct cell; of a recipe that several jobs measured the median one."""
        return self.best.middle if self.best is not None else None

    @property
    def is_ranked(self) -> bool:
        """Whether the fastest recipe may be called that."""
        return self.fastest is not None and not self._objections

    @property
    def doubts(self) -> tuple[Doubt, ...]:
        """What stands against the claim, then the doubts of the run in which the fastest was measured."""
        if self.best is None:
            is_correct = any(cell.record.is_correct for cell in self.cells)
            return (Doubt("no latency was measured" if is_correct else "no correct result"),)
        answer = self.best.middle.run.answers.get(self.component)
        differ = [self.best.doubt] if self.best.doubt is not None else []
        return (*self._objections, *differ, *(answer.doubts if answer is not None else ()))

    @cached_property
    def _objections(self) -> tuple[Doubt, ...]:
        assert self.best is not None
        own = self.best.cells
        for cell in own:
            answer = cell.run.answers.get(self.component)
            if answer is None or answer.fastest is not cell.record:
                rival = "another" if answer is None or answer.fastest is None else answer.fastest.variant
                return (Doubt("not in every job", f"{rival} is faster than {cell.words} in the same run"),)
            if not answer.is_ranked:
                words = f"the run of {cell.words} cannot tell which variant is fastest"
                return (Doubt("not ranked", "" if cell is self.best.middle else words),)  # its own doubts follow
        slowest, runs = own[-1], {id(cell.run) for cell in own}
        rivals = sorted((cell for cell in self.cells if cell.ms < math.inf), key=lambda cell: cell.ms)
        for rival in rivals:
            if id(rival.run) not in runs and not can_be_ranked_across_runs(
                slowest.record, rival.record, _launch_factor(slowest, rival)
            ):
                return (_why_not(slowest, rival),)
        return ()


@dataclass(frozen=True)
class SweepData:
    """A sweep: its plan, its runs in the order of their numbers, and its folder."""

    sweep: Sweep
    keys: tuple[str, ...]  # of the overrides that differ between jobs, without the names of components and variants
    runs: tuple[SweptRun, ...]
    folder: Path

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """The kinds of device that runs measured."""
        return tuple(dict.fromkeys(run.device for run in self.runs if run.device is not None))

    @property
    def contests(self) -> tuple[Contest, ...]:
        """The contests in the order of the jobs; those of the same work on several kinds of device are neighbours."""
        return tuple(contest for same in self.by_work for contest in same)

    @cached_property
    def by_work(self) -> tuple[tuple[Contest, ...], ...]:
        """The contests of each component and work, one for each kind of device; sorted by the swept values."""
        cells: dict[tuple[str, ...], dict[tuple[str | None, int], list[Measurement]]] = {}
        works: dict[tuple[str, ...], dict[str, str]] = {}
        seen: dict[tuple[str, ...], list[set[str]]] = {}
        for run, component, work, facts in (*self._works(timed=True), *self._works(timed=False)):
            settings = (component, *sorted(f"{name}={value}" for name, value in work.items()))
            alike = seen.setdefault(settings, [])
            if (whole := next((each for each in alike if facts <= each), None)) is None:
                alike.append(whole := facts)
            same = (*settings, *sorted(whole))
            works[same] = work
            place = run.device, run.job.number if run.device is None else 0  # unknown devices may be of any kind
            on_device = cells.setdefault(same, {}).setdefault(place, [])
            on_device += [Measurement(run, record) for record in run.answers[component].group]
        components = list(dict.fromkeys(component for run in self.runs for component in run.answers))
        ordered = sorted(cells, key=lambda same: (components.index(same[0]), *map(_place, works[same].values())))
        return tuple(
            tuple(Contest(same[0], works[same], device, tuple(found)) for (device, _), found in cells[same].items())
            for same in ordered
        )

    def _works(self, *, timed: bool) -> Iterator[tuple[SweptRun, str, dict[str, str], set[str]]]:
        """Yield (run, component, overrides that change the work, facts of the work) where some cell was timed, or none.

        Cells that failed early lack facts: they belong to the work of timed ones with the same overrides.
        """
        for run in self.runs:
            for component, answer in run.answers.items():
                if any(record.median_ms is not None for record in answer.group) is timed:
                    values = run.values_of(answer.group[0])
                    work = {key: value for key, value in values.items() if is_work(key)}
                    pairs = [pair for record in answer.group for pair in work_of(record).items()]
                    yield run, component, work, {f"{name}={fact}" for name, fact in dict(pairs).items()}


def load_sweep(folder: Path) -> SweepData:
    """Read a sweep and what its runs have measured so far.

    Raises:
        InputError: the folder holds no sweep that can be read.

    """
    sweep = read_sweep(folder)
    keys = tuple(key for key in swept_keys(sweep) if not names_cells(key))
    with _without_collections():
        return SweepData(sweep, keys, tuple(_read(folder, job, keys) for job in sweep.jobs), folder)


@contextmanager
def _without_collections() -> Iterator[None]:
    """Stop Python's cyclic garbage collector in the block: records hold no cycles, and it would read all of them often.

    A third of the time of reading 1,000 runs.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _place(value: str) -> tuple[float, str]:
    """Return what values are sorted by: numbers by size, then text."""
    return (math.inf if (found := number(value)) is None else found, value)


def _read(folder: Path, job: SweepJob, keys: Sequence[str]) -> SweptRun:
    values = overrides_of(job)
    run = SweptRun(job, {key: values[key] for key in keys if key in values})
    path = folder / job.folder
    try:
        if not path.resolve().is_relative_to(folder.resolve()):
            return replace(run, trouble=f"{job.folder} lies outside of the sweep")
        log, page = (
            quote(f"{job.folder}/{name}") if (path / name).is_file() else None for name in (JOB_LOG, PAGE_FILE)
        )
        run = replace(run, page=page, log=None if log is None else Link("log", log))
        if not (path / RESULTS_FILE).is_file():
            return run
        data = load_run(path)
        records = [record for record in data.records if record.launches is None and record.check is None]
        if job.state == "running":
            records = [record for record in records if record.reason != NOT_ENDED]
        groups, answers = dict[str, tuple[Record, ...]](), dict[str, Answer]()
        for component, group in by_component(records).items():
            groups[component] = tuple(map(_thin, group))
            if any(record.status != "skipped" for record in group):
                answer, kept = answer_of(component, group), {each.cell: each for each in groups[component]}
                fastest = kept[answer.fastest.cell] if answer.fastest is not None else None
                doubts = tuple(doubt for doubt in answer.doubts if not doubt.of_p99)  # a sweep shows no p99
                answers[component] = replace(answer, group=groups[component], fastest=fastest, doubts=doubts)
        return replace(run, environment=data.environment, groups=groups, answers=answers, damage=_damage(data))
    except (InputError, OSError) as error:
        return replace(run, trouble=str(error))
    except Exception as error:  # a fault in one run must not hide the others
        return replace(run, trouble=reason_of(error))


def _damage(data: RunData) -> tuple[str, ...]:
    lines = f"results.jsonl: {count_of(data.skipped_lines, 'damaged or cut-off line')} skipped"
    fields = [f"environment.json: not read: {field}" for field in data.environment.unreadable]
    if not data.environment.is_known and not fields:
        fields = ["environment.json is missing or damaged, so that its device is not known"]
    return (*([lines] if data.skipped_lines else []), *fields)


def _thin(record: Record) -> Record:
    """Return what comparing the cell with others needs of a record."""
    kept = without_samples(record)
    roofline = record.roofline
    if roofline is not None:
        roofline = replaced(roofline, kernels=(), findings=(), steps=(), evidence=())
    identity = ("target", "component", "variant", "status", "reason", "device", "dtype", "scale", "parameters")
    facts = (
        "frames_per_call",
        "metrics",
        "parity",
        "prepare",
        "speedup",
        "training",
        "realtime",
        "turns",
        "unreadable",
    )
    return Record(**{name: getattr(kept, name) for name in (*identity, *facts)}, roofline=roofline)


def _launch_factor(one: Measurement, other: Measurement) -> float:
    """Return the time of a launch on the host of `other` over that on the host of `one`; 1 where it is not known."""
    before, after = one.run.environment.ceilings, other.run.environment.ceilings
    return after.launch_us / before.launch_us if before and after and before.launch_us and after.launch_us else 1.0


def _why_not(one: Measurement, other: Measurement) -> Doubt:
    """Say why two cells of different runs are not ranked."""
    pair = f"{one.words} and {other.words}"
    faster, slower = (one, other) if one.ms <= other.ms else (other, one)
    if clocks_explain(one.record, other.record, one.ms / other.ms):
        words = f"{clocks_differ(one.record, other.record)} could explain the difference of {pair}"
        return Doubt("clocks differ", words)
    if taken := disturbance_explains(faster.record, slower.record):
        return Doubt("disturbed", f"{taken.words} while one of {pair} was timed")
    if (factor := _launch_factor(one, other)) > HOST_FACTOR and other.ms / one.ms <= factor:
        return Doubt("hosts differ", f"a launch takes {factor:.2g}× as long on the host of {other.words}, of {pair}")
    if short := [cell.words for cell in (one, other) if cell.interval is None]:
        words = f"{' and '.join(short)}: too few samples for an interval, so that {pair} are not ranked"
        return Doubt("few samples", words)
    share = percent(same_code_share(one.record, other.record))
    words = f"{pair} are not ranked: two runs of equal code differ by up to {share}"
    return Doubt("within noise", words)
