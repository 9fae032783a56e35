"""The report of a sweep: the answer, all cells and jobs; as files, console text, JSON and CSV."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from profiling.errors import LONGEST_COMMAND, InputError, printable, shell_words
from profiling.report.answer import failure_lines
from profiling.report.export import cell_rows, csv_text
from profiling.report.format import Estimate, Link, Value, count_of, few, listed, named_once, number_of, percent
from profiling.report.page import PAGE_FILE, Section, render_page
from profiling.report.render import REPORT_FILE, Printed, built, console_text, markdown_text, write_files
from profiling.report.run_data import load_run
from profiling.report.sweep_cells import Repeated, SweepAnswer, SweepData, SweptCell, SweptJob, load_sweep
from profiling.report.table import Column, Table, columns
from profiling.results.judge import RESOLUTION
from profiling.results.overrides import setting, short
from profiling.results.sweep import SweepJob

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


def write_sweep_report(folder: Path) -> Printed:
    """Write the sweep's `report.md` and `report.html`, also while it runs, and return the console text.

    Raises:
        InputError: the folder holds no sweep that can be read.

    """
    data = load_sweep(folder)
    sections, heading = sections_of(data), heading_lines(data)
    title = _title(data, folder)
    files = {
        REPORT_FILE: lambda: markdown_text(title, heading, sections),
        PAGE_FILE: lambda: render_page(title, heading, sections),
    }
    return write_files(folder, files, console_text(heading, sections, [f"sweep: {printable(folder)}"]))


def sweep_as(form: str, folder: Path) -> str:
    """Return a sweep in one of the forms `table`, `markdown`, `json` and `csv`; no file is written.

    Raises:
        InputError: the folder holds no sweep that can be read, or a sweep has no such form.

    """
    forms: dict[str, Callable[[SweepData], str]] = {
        "table": lambda data: console_text(heading_lines(data), sections_of(data), [f"sweep: {printable(folder)}"]),
        "markdown": lambda data: markdown_text(_title(data, folder), heading_lines(data), sections_of(data)),
        "json": _as_json,
        "csv": _as_csv,
    }
    if form not in forms:
        raise InputError(f"--format {form} is of a run, and {folder} is a sweep. Use {listed(list(forms), last='or')}.")
    return forms[form](load_sweep(folder))


def heading_lines(data: SweepData) -> tuple[str, ...]:
    """Return a line on the jobs, and one on the devices."""
    sweep = data.sweep
    states = Counter(job.state for job in sweep.jobs)
    jobs = f"{count_of(len(sweep.jobs), 'job')}: {', '.join(f'{n} {state}' for state, n in states.items())}"
    began = sweep.began[:16].replace("T", " ")
    lines = [" · ".join(filter(None, (sweep.target, f"launcher {sweep.launcher}", jobs, f"began {began}")))]
    if data.devices:
        lines.append(" · ".join(data.devices))
    return tuple(map(printable, lines))


def sections_of(data: SweepData) -> tuple[Section, ...]:
    """Return the sections of a sweep in their order; those that hold nothing are false."""
    started_by = shell_words(["python", "-m", f"profiling.{data.sweep.target}", *data.sweep.argv])
    builders = (_answer_section, _failures_section, _jobs_section, _cells_section)
    command_section = Section("command", "Command", text=printable(started_by, LONGEST_COMMAND), depth="report")
    return (*(section for build in builders for section in built(build, data)), command_section)


def _title(data: SweepData, folder: Path) -> str:
    return f"Sweep of {printable(data.sweep.target)}: {printable(folder.resolve().name)}"


def _answer_section(data: SweepData) -> Section:
    """Return the fastest correct recipe of each component, work and kind of device, and what needs saying of it."""

    def of_fastest(read: Callable[[Repeated], Value | None]) -> Callable[[SweepAnswer], Value | None]:
        return lambda row: read(row.fastest) if row.fastest is not None else None

    shown = (
        Column[SweepAnswer]("component", lambda row: row.name, wrap=26),
        *([Column[SweepAnswer]("device", lambda row: row.device, wrap=20)] if data.on_several else []),
        Column[SweepAnswer]("fastest correct", lambda row: row.ranking.leader if row.ranking else "none", wrap=34),
        Column[SweepAnswer]("p50", of_fastest(lambda recipe: recipe.p50), "ms"),
        Column[SweepAnswer]("vs baseline", of_fastest(lambda recipe: recipe.against_baseline), "ratio"),
        Column[SweepAnswer]("holds", of_fastest(lambda recipe: recipe.holds)),
        Column[SweepAnswer]("jobs", of_fastest(_jobs_text)),
    )
    table = Table("Answer", shown, data.answers, keys=1 + data.on_several, few=_CONSOLE)
    none = "No cell has a time yet that can be compared. The report of each job shows what it measured."
    said = named_once((_place_of(answer, data), remark) for answer in data.answers for remark in answer.remarks())
    lines = [f"{few(names)}: {remark}." for remark, names in said.items()] if data.answers else [none]
    legend = (_LEGEND,) if data.answers else ()
    return Section("answer", "Answer", _shortened(lines, "remark"), legend, (table,), leads=True)


def _jobs_text(recipe: Repeated) -> Value:
    """Return the job, linked, or how many there are."""
    return recipe.cells[0].job.link if len(recipe.cells) == 1 else f"{len(recipe.cells)} jobs"


def _place_of(answer: SweepAnswer, data: SweepData) -> str:
    return answer.name + (f" on {answer.device}" if data.on_several and answer.device else "")


def _cells_section(data: SweepData) -> Section:
    shown = (
        Column[SweptCell]("job", lambda row: row.job.link),
        *_swept_columns(data, ("job", "device", "component", "variant")),
        *([Column[SweptCell]("device", lambda row: row.job.device, wrap=16)] if data.on_several else []),
        Column[SweptCell]("component", lambda row: row.component),
        Column[SweptCell]("variant", lambda row: row.variant),
        Column[SweptCell]("p50", lambda row: row.p50, "ms", measured=True),
        Column[SweptCell]("vs baseline", lambda row: Repeated((row,)).against_baseline, "ratio"),
        Column[SweptCell]("holds", lambda row: row.holds),
        Column[SweptCell]("status", lambda row: row.status),
        Column[SweptCell]("SM clock", lambda row: row.sm_clock, "count", unit="MHz", depth="report"),
        Column[SweptCell]("conditions", lambda row: "; ".join(row.conditions) or None, wrap=40, depth="report"),
    )
    cells = sorted(data.cells, key=lambda cell: cell.status == "skipped")
    keys = 3 + len(data.keys) + (data.on_several)
    table = Table("Cells", shown, cells, strike=lambda row: row.status != "ok", keys=keys, few=_CONSOLE)
    return Section("cells", "Cells", tables=(table,))


def _failures_section(data: SweepData) -> Section:
    """Return a line for each reason why cells have no right time, with the first of them."""
    found = []
    for cell in (cell for cell in data.cells if cell.status != "ok"):
        name, job = f"{cell.component}.{cell.variant}", cell.job.job
        found.append((f"job {job.number} {name}", cell.status, cell.reason, f"{job.folder}/cells/{name}.log"))
    lines = failure_lines(data.folder, found)
    return Section("failures", "Failed, invalid or skipped cells", _shortened(lines, "reason"))


def _jobs_section(data: SweepData) -> Section:
    """Return a line for each job that went wrong, and a row for each job."""
    shown = (
        Column[SweptJob]("job", lambda row: row.link),
        *_swept_columns(data, ("job", "state", "reason", "log", "host", "device")),
        *columns(SweepJob, "state", "reason", "host", of=lambda row: row.job, wrap=40),
        Column[SweptJob]("log", lambda row: row.log and Link("log", row.log)),
        Column[SweptJob]("device", lambda row: row.job.device or row.device),
    )
    table = Table("Jobs", shown, data.jobs, depth="page")
    lines = [line for job in data.jobs if (line := _job_line(job))]
    return Section("jobs", "Jobs", _shortened(lines, "job"), tables=(table,))


def _job_line(job: SweptJob) -> str:
    """Return what went wrong with a job; empty for one that is done, runs or waits."""
    state, values = job.job.state, " ".join(setting(key, value) for key, value in job.values.items())
    why = "; ".join(filter(None, (job.job.reason, *job.damage)))
    if not why and state in ("done", "running", "waiting"):
        return ""
    named = f"job {job.job.number}{f' ({values})' if values else ''}{'' if state == 'done' else f' {state}'}"
    return f"{named}: {why or 'no reason is known'}{f' (log: {job.log})' if job.log else ''}"


def _swept_columns(data: SweepData, taken: Iterable[str]) -> list[Column[Any]]:
    """Return a column for each override: under its last name, or all of it where another column is called so."""
    times = Counter([*map(short, data.keys), *taken])
    titles = {key: printable(short(key) if times[short(key)] == 1 else key) for key in data.keys}
    return [Column(title, lambda row, key=key: row.values.get(key), wrap=26) for key, title in titles.items()]


def _shortened(lines: Sequence[str], noun: str) -> tuple[str, ...]:
    """Return the first lines, and how many of them (called `noun`) are left out."""
    left = len(lines) - _MOST_LINES
    more = [f"and {count_of(left, noun)} more"] if left > 0 else []
    return tuple(map(printable, (*lines[:_MOST_LINES], *more)))


def _as_json(data: SweepData) -> str:
    """Return the answers; times are in milliseconds, and what may not be claimed is null. `sweep.json` has the jobs."""
    content = {"target": data.sweep.target, "answer": [_answer(answer) for answer in data.answers]}
    return json.dumps(content, indent=2, allow_nan=False)


def _answer(answer: SweepAnswer) -> dict[str, Any]:
    content = {"component": answer.component, "work": dict(answer.work), "device": answer.device}
    content["remarks"] = list(answer.remarks())
    if answer.ranking is None or answer.fastest is None:
        return content | {"fastest_correct": None}
    p50, pair = answer.fastest.p50, answer.fastest.speedup
    return content | {
        "fastest_correct": answer.ranking.leader,
        "same": answer.ranking.named("same"),
        "undecided": answer.ranking.named("undecided"),
        "jobs": [cell.job.job.number for cell in answer.fastest.cells],
        "p50_ms": number_of(p50),
        "p50_ms_interval": [p50.low, p50.high] if isinstance(p50, Estimate) else None,
        "speedup": pair.ratio if pair is not None else None,
        "speedup_ci95": pair.interval() if pair is not None else None,
        "holds": answer.fastest.holds,
    }


def _as_csv(data: SweepData) -> str:
    """Return a row for each cell of each job, as `--format csv` of a run does, after the job and its overrides."""
    overrides = dict.fromkeys(data.keys)
    measured = {cell.job.job.number for cell in data.cells}
    return csv_text(
        [
            {"job": job.job.number, "state": job.job.state, **overrides, **row, **job.values}
            for job in data.jobs
            if job.job.number in measured
            for row in cell_rows(load_run(data.folder / job.job.folder))
        ]
    )
