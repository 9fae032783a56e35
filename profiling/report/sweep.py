"""The report of a sweep, in its forms: `report.md`, `report.html`, the console's text, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from profiling.errors import InputError, printable
from profiling.report.export import cell_rows
from profiling.report.format import count_of, listed, number_of
from profiling.report.page import PAGE_FILE, Section, render_page
from profiling.report.render import REPORT_FILE, console_text, markdown_text, write_files
from profiling.report.run_data import load_run
from profiling.report.sweep_data import SweepData, load_sweep
from profiling.report.sweep_sections import sections_of


def write_sweep_report(folder: Path) -> str:
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
    return "\n".join((console_text(heading, sections, _places(folder, sections)), *write_files(folder, files)))


def _title(data: SweepData, folder: Path) -> str:
    return f"Sweep of {printable(data.sweep.target)}: {printable(folder.resolve().name)}"


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


def _places(folder: Path, sections: Sequence[Section]) -> list[str]:
    """Return where the tables are that the console has no room for, and the sweep."""
    files = {"report": REPORT_FILE, "page": PAGE_FILE}
    long = [each for section in sections for each in section.tables if each and each.depth in files]
    lines = [f"{each.title}: {count_of(len(each.rows), 'row')} in {files[each.depth]}" for each in long]
    return [*lines, f"sweep: {printable(folder)}"]


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


def _as_json(data: SweepData) -> str:
    """Return the best recipes, and the jobs; times are in milliseconds, and what may not be claimed is null."""
    best = [
        {
            "component": contest.component,
            "work": dict(contest.work),
            "device": contest.device,
            "fastest_correct": list(contest.fastest.recipe) if contest.fastest is not None else None,
            "is_ranked": contest.is_ranked,
            "job": contest.fastest.run.job.number if contest.fastest is not None else None,
            "p50_ms": number_of(contest.best.p50) if contest.best is not None else None,
            "jobs": [cell.run.job.number for cell in contest.best.cells] if contest.best is not None else [],
            "p50_range_ms": list(contest.best.range_ms) if contest.best is not None else None,
            "roofline_share": contest.fastest.roofline_share if contest.fastest is not None else None,
            "conditions": [{"mark": doubt.mark, "words": doubt.words} for doubt in contest.doubts],
        }
        for contest in data.contests
    ]
    jobs = [
        {"number": run.job.number, "folder": run.job.folder, "overrides": dict(run.values), "state": run.job.state}
        | {"reason": run.job.reason or run.trouble or None, "host": run.job.host, "device": run.device}
        for run in data.runs
    ]
    return json.dumps({"target": data.sweep.target, "best": best, "jobs": jobs}, indent=2, allow_nan=False)


def _as_csv(data: SweepData) -> str:
    """Return a row for each cell of each job, as `--format csv` of a run does, after the job and its overrides."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    header: Sequence[object] | None = None
    for run in data.runs:
        if not run.groups:
            continue
        names, *rows = cell_rows(load_run(data.folder / run.job.folder))
        if header is None:
            writer.writerow(header := ["job", "state", "device", *data.keys, *names])
        job = [run.job.number, run.job.state, run.device, *(run.values.get(key) for key in data.keys)]
        writer.writerows([*job, *row] for row in rows)
    return text.getvalue()
