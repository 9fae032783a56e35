"""The report of a sweep: the answer, all cells and all jobs; as files, console text, JSON and CSV.

A sweep is a flat list of cells. A recipe is a variant with the overrides that change how work is run (dtype, threads,
options of the variant); every other override changes the work. The judge compares the recipes with the same work on the
same kind of device. Jobs that repeat a recipe on the same work are further placements of one cell. Runs are read one
after the other, and their samples are dropped once they are judged.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from profiling.errors import LONGEST_COMMAND, InputError, printable, reason_of, shell_words
from profiling.report.answer import failure_lines, held_rate, judged_columns, leader_name, ranking_remarks
from profiling.report.cells import conditions_of, median_of, ratio_value, speedup_of
from profiling.report.export import cell_rows, csv_text, with_bounds, with_ends
from profiling.report.format import Estimate, Link, Value, count_of, estimate, few, named_once, number_of, percent
from profiling.report.page import PAGE_FILE, Section
from profiling.report.render import Report, built
from profiling.report.run_data import linked_file, load_run, wrong_because
from profiling.report.table import Column, Table, columns
from profiling.results import overrides
from profiling.results.jsonl import RESULTS_FILE
from profiling.results.judge import RESOLUTION, Cell, Pair, Ranking, rank
from profiling.results.record import NOT_ENDED, Record
from profiling.results.run_folder import JOB_LOG
from profiling.results.sweep import Sweep, SweepJob, read_sweep
from profiling.results.verdicts import as_shown, by_component, cell_of, correct_baseline, work_of

#: Most rows of a table on the console.
_CONSOLE = 30
#: Lines of remarks, of failures or of jobs.
_MOST_LINES = 12
_LEGEND = (
    "fastest correct: of all jobs with the same component and work, on one kind of device. Cells of a job are compared "
    "turn by turn, those of several by all their windows. p50: with its 95% interval; of several jobs the median, with "
    "the lowest and the highest. vs baseline: the time of the baseline in the same jobs over that of the recipe, with "
    f"the 95% interval over processes. Same: within {percent(RESOLUTION)}."
)


@dataclass(frozen=True)
class SweptJob:
    """A job, and what is known of its run; `damage` says what of its files cannot be read, each in one line."""

    job: SweepJob
    values: Mapping[str, str]  # of the overrides that differ between jobs, by key
    page: Link  # the number of the job, linked to the page of its run
    log: Link | None = None  # what it printed
    device: str | None = None  # the kind that it measured
    damage: tuple[str, ...] = ()


@dataclass(frozen=True)
class SweptCell:
    """A cell of a job.

    `judged`: what the judge compares; None where it is not correct or was not timed. `baseline`: the same of the
    baseline of its run; None where that is not correct, and for loops, which have no speedup.
    """

    job: SweptJob
    component: str
    variant: str
    status: str  # ok, or why its time does not count
    reason: str | None
    p50: Estimate | float | None  # ms
    vs_baseline: Value | None  # of its own run
    holds: str | None
    values: Mapping[str, str]  # of the overrides that concern it: not those of another component or variant
    facts: frozenset[str] | None  # of the work of its component in this job; None where nothing of it was timed
    judged: Cell | None
    baseline: Cell | None
    sm_clock: float | None  # MHz, while it was timed
    is_checked: bool  # against a reference
    conditions: list[str]

    @cached_property
    def work(self) -> dict[str, str]:
        """The values of the overrides that change the work."""
        return {key: value for key, value in self.values.items() if overrides.is_work(key)}


@dataclass(frozen=True)
class SweepAnswer:
    """The judgement on the cells of one component that did the same work on one kind of device."""

    component: str
    work: Mapping[str, str]  # values of the overrides that change the work
    device: str | None
    cells: tuple[SweptCell, ...]

    @cached_property
    def recipes(self) -> Mapping[str, list[SweptCell]]:
        """The correct, timed cells of each recipe, in the order of the jobs."""
        found: dict[str, list[SweptCell]] = {}
        for cell in self.cells:
            if cell.judged is not None:
                found.setdefault(overrides.recipe_of(cell.variant, cell.values), []).append(cell)
        return found

    @cached_property
    def ranking(self) -> Ranking | None:
        """The recipe that leads, and the answer on each of the others; None where none was timed."""
        placed = {name: _placed(cell.judged for cell in cells) for name, cells in self.recipes.items()}
        judged = {name: cell for name, cell in placed.items() if cell is not None}
        of_one_run = len({cell.job.job.number for cells in self.recipes.values() for cell in cells}) == 1
        return rank(judged, in_one_run=of_one_run) if judged else None

    @property
    def leader(self) -> str:
        """The recipe that leads, as it is shown."""
        return leader_name(self.ranking, is_checked=all(cell.is_checked for cell in self.fastest))

    @property
    def fastest(self) -> Sequence[SweptCell]:
        """The cells of the recipe that leads; none where none was timed."""
        return self.recipes[self.ranking.leader] if self.ranking is not None else ()

    @property
    def p50(self) -> Value | None:
        """The time of the fastest in ms with its interval; of several jobs the median, with that over processes."""
        times = [value for cell in self.fastest if (value := number_of(cell.p50)) is not None]
        if len(times) > 1 and (placed := _placed(cell.judged for cell in self.fastest)) is not None:
            return estimate(median(times), placed.interval)
        return self.fastest[0].p50 if self.fastest else None

    @property
    def speedup(self) -> Pair | None:
        """The time of the baseline of its jobs over that of the fastest, as they are ranked; None for the baseline."""
        baselines = {id(cell.baseline) for cell in self.fastest}
        names = (name for name, cells in self.recipes.items() if baselines & {id(cell.judged) for cell in cells})
        pair = self.ranking.pairs.get(next(names, "")) if self.ranking is not None else None
        return None if pair is None else as_shown(pair)

    @property
    def holds(self) -> str | None:
        """The highest frame rate that the fastest holds; if jobs differ, the rate of each."""
        return " or ".join(dict.fromkeys(cell.holds for cell in self.fastest if cell.holds)) or None

    @property
    def vs_baseline(self) -> Value | None:
        """The speedup as it is shown; 1 for the baseline."""
        is_baseline = bool(self.fastest) and all(cell.baseline is cell.judged for cell in self.fastest)
        return 1.0 if is_baseline else ratio_value(self.speedup)

    @property
    def jobs(self) -> Value | None:
        """The job of the fastest, linked, or how many there are."""
        return self.fastest[0].job.page if len(self.fastest) == 1 else f"{len(self.fastest)} jobs"

    @property
    def name(self) -> str:
        """The component and what was swept of its work."""
        values = ", ".join(overrides.setting(key, value) for key, value in self.work.items())
        return f"{self.component} ({values})" if values else self.component

    def remarks(self) -> Iterator[str]:
        """Yield a sentence on each thing that needs saying, after the name."""
        if self.ranking is None:
            known = any(cell.status == "ok" for cell in self.cells)
            yield "no latency was measured" if known else "no correct result"
            return
        yield from ranking_remarks(self.ranking)
        noted = [cell for cell in self.fastest if cell.conditions]
        if noted:
            more = f" (and {len(noted) - 1} more of its {len(self.fastest)} jobs)" if len(noted) > 1 else ""
            yield f"{self.ranking.leader}, job {noted[0].job.job.number}: {'; '.join(noted[0].conditions)}{more}"
        clocks = [cell.sm_clock for cells in self.recipes.values() for cell in cells if cell.sm_clock is not None]
        if clocks and max(clocks) > min(clocks) * (1 + RESOLUTION):
            yield f"SM clocks of its jobs: {min(clocks):.0f} to {max(clocks):.0f} MHz while timed"


def _placed(cells: Iterable[Cell | None]) -> Cell | None:
    """Return one cell of all placements, with the widest spread; None without any."""
    known = [cell for cell in cells if cell is not None]
    if not known:
        return None
    placements = tuple(placement for cell in known for placement in cell.placements)
    spread = max((cell.spread for cell in known), key=lambda spread: spread.std)
    return Cell(placements, spread, any(cell.is_compiled for cell in known))


@dataclass(frozen=True)
class SweepData:
    """A sweep: its plan, its folder, and its jobs by number, each with its cells."""

    sweep: Sweep
    keys: tuple[str, ...]  # of the overrides that differ between jobs, without the names of components and variants
    jobs: tuple[SweptJob, ...]
    cells: tuple[SweptCell, ...]
    folder: Path

    @cached_property
    def on_several(self) -> bool:
        """Whether cells were measured on several kinds of device; one that is not known may be of any kind."""
        return len({cell.job.device for cell in self.cells}) > 1

    @cached_property
    def answers(self) -> list[SweepAnswer]:
        """The answers, by component; each component's in the order of the jobs."""
        alike: dict[tuple[object, ...], list[SweptCell]] = {}
        for cell in self.cells:
            place = cell.job.device or cell.job.job.number  # a device that is not known may be of any kind
            alike.setdefault((cell.component, *sorted(cell.work.items()), place), []).append(cell)
        answers = []
        for cells in alike.values():
            if all(cell.status == "skipped" for cell in cells):
                continue
            # Cells that failed early lack facts of their work. They belong to timed ones with the same overrides.
            for facts in dict.fromkeys(cell.facts for cell in cells if cell.facts is not None) or [None]:
                same, first = tuple(cell for cell in cells if cell.facts in (None, facts)), cells[0]
                answers.append(SweepAnswer(first.component, first.work, first.job.device, same))
        components = list(dict.fromkeys(cell.component for cell in self.cells))
        return sorted(answers, key=lambda answer: components.index(answer.component))


def load_sweep(folder: Path) -> SweepData:
    """Read a sweep and the records that its runs have written so far. Raises InputError if it cannot be read."""
    sweep = read_sweep(folder)
    keys = overrides.swept_keys(sweep)
    read = [_read(folder, job, keys) for job in sweep.jobs]
    return SweepData(sweep, keys, tuple(job for job, _ in read), tuple(c for _, cells in read for c in cells), folder)


def _read(folder: Path, planned: SweepJob, keys: Sequence[str]) -> tuple[SweptJob, list[SweptCell]]:
    """Return a job and its cells; what is wrong with its run is said in the job, and hides no other."""
    path, page = folder / planned.folder, linked_file(folder, f"{planned.folder}/{PAGE_FILE}")
    job = SweptJob(planned, overrides.values_of(planned, keys), Link(str(planned.number), page.href))
    try:
        if not path.resolve().is_relative_to(folder.resolve()):
            raise InputError(f"{planned.folder} lies outside of the sweep")
        log = linked_file(folder, f"{planned.folder}/{JOB_LOG}")
        job = replace(job, log=Link("log", log.href) if log.href else None)
        if not (path / RESULTS_FILE).is_file():
            return job, []
        data = load_run(path)
        job = replace(job, device=data.environment.device_kind, damage=data.damage)
        ended = (record for record in data.cells if planned.state != "running" or record.reason != NOT_ENDED)
        return job, [cell for group in by_component(ended).values() for cell in _cells(job, group)]
    except Exception as error:  # what is wrong with one run must not hide the others
        reason = str(error) if isinstance(error, InputError | OSError) else reason_of(error)
        return replace(job, damage=(f"cannot be read: {reason}",)), []


def _cells(job: SweptJob, group: Sequence[Record]) -> Iterator[SweptCell]:
    judged = {record.cell: cell_of(record) for record in group}
    work = dict(pair for record in group for pair in work_of(record).items())
    facts = frozenset(f"{name}={fact}" for name, fact in work.items()) if any(judged.values()) else None
    baseline = correct_baseline(group)
    for record in group:
        yield SweptCell(
            job=job,
            component=record.component,
            variant=record.variant,
            status=wrong_because(record) or "ok",
            reason=record.reason,
            p50=median_of(record),
            vs_baseline=speedup_of(record, group) if record.is_correct else None,
            holds=held_rate(record) if record.is_correct else None,
            values={key: value for key, value in job.values.items() if overrides.concerns(key, record)},
            facts=facts,
            judged=judged[record.cell],
            baseline=None if baseline is None or record.is_realtime else judged[baseline.cell],
            sm_clock=record.conditions and record.conditions.sm_clock_median_mhz,
            is_checked=record.parity is not None,
            conditions=conditions_of(record),
        )


def sweep_report(data: SweepData) -> Report:
    """Return the report of a sweep: a line on the jobs, one on the devices, and its sections."""
    sweep, devices = data.sweep, dict.fromkeys(job.device for job in data.jobs if job.device is not None)
    states = Counter(job.state for job in sweep.jobs)
    jobs = f"{count_of(len(sweep.jobs), 'job')}: {', '.join(f'{n} {state}' for state, n in states.items())}"
    began = sweep.began[:16].replace("T", " ")
    lines = [" · ".join((sweep.target, f"launcher {sweep.launcher}", jobs, f"began {began}")), " · ".join(devices)]
    started_by = shell_words(["python", "-m", f"profiling.{sweep.target}", *sweep.argv])
    builders = (_answer_section, _failures_section, _jobs_section, _cells_section)
    sections = [section for build in builders for section in built(build, data)]
    sections.append(Section("command", "Command", text=printable(started_by, LONGEST_COMMAND), depth="report"))
    title = f"Sweep of {printable(sweep.target)}: {printable(data.folder.resolve().name)}"
    heading = [printable(line) for line in lines if line]
    return Report(title, heading, sections, places=f"sweep: {printable(data.folder)}")


def _answer_section(data: SweepData) -> Section:
    """Return the fastest correct recipe of each component, work and kind of device, and what needs saying of it."""
    shown = (
        Column[SweepAnswer]("component", lambda row: row.name, wrap=26),
        *([Column[SweepAnswer]("device", lambda row: row.device, wrap=20)] if data.on_several else []),
        *judged_columns(),
        Column[SweepAnswer]("jobs", lambda row: row.jobs if row.fastest else None),
    )
    table = Table("Answer", shown, data.answers, keys=1 + data.on_several, few=_CONSOLE)
    none = "No cell has a time yet that can be compared. The report of each job shows what it measured."
    named = ((f" on {answer.device}" if data.on_several and answer.device else "", answer) for answer in data.answers)
    said = named_once((f"{answer.name}{place}", remark) for place, answer in named for remark in answer.remarks())
    lines = [f"{few(names)}: {remark}." for remark, names in said.items()] if data.answers else [none]
    legend = (_LEGEND,) if data.answers else ()
    return Section("answer", "Answer", _shortened(lines, "remark"), legend, (table,), leads=True)


def _cells_section(data: SweepData) -> Section:
    shown = (
        Column[SweptCell]("job", lambda row: row.job.page),
        *_swept_columns(data, ("job", "device", "component", "variant")),
        *([Column[SweptCell]("device", lambda row: row.job.device, wrap=16)] if data.on_several else []),
        Column[SweptCell]("component", lambda row: row.component),
        Column[SweptCell]("variant", lambda row: row.variant),
        Column[SweptCell]("status", lambda row: row.status),
        Column[SweptCell]("conditions", lambda row: "; ".join(row.conditions) or None, wrap=40, depth="report"),
        Column[SweptCell]("vs baseline", lambda row: row.vs_baseline, "ratio"),
        Column[SweptCell]("p50", lambda row: row.p50, "ms"),
        Column[SweptCell]("holds", lambda row: row.holds),
        Column[SweptCell]("SM clock", lambda row: row.sm_clock, "count", unit="MHz", depth="report"),
    )
    cells = sorted(data.cells, key=lambda cell: cell.status == "skipped")
    keys = 3 + len(data.keys) + data.on_several
    table = Table("Cells", shown, cells, strike=lambda row: row.status != "ok", keys=keys, few=_CONSOLE)
    return Section("cells", "Cells", tables=(table,))


def _failures_section(data: SweepData) -> Section:
    found = []
    for cell in (cell for cell in data.cells if cell.status != "ok"):
        name, job = f"{cell.component}.{cell.variant}", cell.job.job
        found.append((f"job {job.number} {name}", cell.status, cell.reason, f"{job.folder}/cells/{name}.log"))
    lines = failure_lines(data.folder, found)
    return Section("failures", "Failed, invalid or skipped cells", _shortened(lines, "reason"))


def _jobs_section(data: SweepData) -> Section:
    shown = (
        Column[SweptJob]("job", lambda row: row.page),
        *_swept_columns(data, ("job", "state", "reason", "log", "host", "device")),
        *columns(SweepJob, "state", "reason", "host", of=lambda row: row.job, wrap=40),
        Column[SweptJob]("log", lambda row: row.log),
        Column[SweptJob]("device", lambda row: row.job.device or row.device),
    )
    table = Table("Jobs", shown, data.jobs, depth="page")
    lines = [line for job in data.jobs if (line := _job_line(job))]
    return Section("jobs", "Jobs", _shortened(lines, "job"), tables=(table,))


def _job_line(job: SweptJob) -> str:
    """Return what went wrong with a job; empty for one that is done, runs or waits."""
    state, values = job.job.state, " ".join(overrides.setting(key, value) for key, value in job.values.items())
    why = "; ".join(filter(None, (job.job.reason, *job.damage)))
    if not why and state in ("done", "running", "waiting"):
        return ""
    named = f"job {job.job.number}{f' ({values})' if values else ''}{'' if state == 'done' else f' {state}'}"
    log = f" (log: {job.job.folder}/{JOB_LOG})" if job.log is not None else ""
    return f"{named}: {why or 'no reason is known'}{log}"


def _swept_columns(data: SweepData, taken: Iterable[str]) -> list[Column[Any]]:
    """Return a column for each override: under its last name, or all of it where another column is called so."""
    short = {key: key.rpartition(".")[2] for key in data.keys}
    times = Counter([*short.values(), *taken])
    titles = {key: printable(name if times[name] == 1 else key) for key, name in short.items()}
    return [Column(title, lambda row, key=key: row.values.get(key), wrap=26) for key, title in titles.items()]


def _shortened(lines: Sequence[str], noun: str) -> tuple[str, ...]:
    """Return the first lines, and how many of them (called `noun`) are left out."""
    left = len(lines) - _MOST_LINES
    more = [f"and {count_of(left, noun)} more"] if left > 0 else []
    return tuple(map(printable, (*lines[:_MOST_LINES], *more)))


def sweep_json(data: SweepData) -> str:
    """Return the answers; times are in milliseconds, and what may not be claimed is null. `sweep.json` has the jobs."""
    content = {"target": data.sweep.target, "answer": [_answer(answer) for answer in data.answers]}
    return json.dumps(content, indent=2, allow_nan=False)


def _answer(answer: SweepAnswer) -> dict[str, Any]:
    content = {"component": answer.component, "work": dict(answer.work), "device": answer.device}
    content["remarks"] = list(answer.remarks())
    if answer.ranking is None:
        return content | {"fastest_correct": None}
    return content | {
        "fastest_correct": answer.ranking.leader,
        "same": answer.ranking.named("same"),
        "undecided": answer.ranking.named("undecided"),
        "jobs": [cell.job.job.number for cell in answer.fastest],
        **with_ends("p50", answer.p50, "_ms"),
        **with_bounds("speedup", answer.speedup),
        "holds": answer.holds,
    }


def sweep_csv(data: SweepData) -> str:
    """Return a row for each cell of each job, as `--format csv` of a run does, after the job and its overrides."""
    rows = list[dict[str, Any]]()
    for job in {cell.job.job.number: cell.job for cell in data.cells}.values():
        of_job = {"job": job.job.number, "state": job.job.state, **dict.fromkeys(data.keys)}
        run = load_run(data.folder / job.job.folder)
        rows += [{**of_job, **row, **job.values} for row in cell_rows(run)]
    return csv_text(rows)
