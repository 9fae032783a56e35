"""The report of a sweep: the answer, all cells, jobs and devices; as files, console text, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from profiling.errors import LONGEST_COMMAND, InputError, command, printable, reason_of, shell_words
from profiling.report.charts import Chart, Figure, View, axis, error_bars, figure, line, palette, points, scale
from profiling.report.export import cell_rows
from profiling.report.format import Estimate, Link, Value, count_of, few, listed, number_of, percent, significant
from profiling.report.heading import rate_text
from profiling.report.page import PAGE_FILE, Section, render_page
from profiling.report.render import REPORT_FILE, console_text, markdown_text, write_files
from profiling.report.run_data import load_run
from profiling.report.sweep_cells import Repeated, SweepAnswer, SweepData, SweptCell, SweptJob, load_sweep
from profiling.report.table import Column, Depth, Table
from profiling.results.judge import RESOLUTION
from profiling.results.overrides import is_recipe, is_work, number, setting, short
from profiling.results.sweep import ENDED

#: Most rows of a table on the console, in `report.md`, and on the page.
_CONSOLE, _REPORT, _PAGE = 30, 1_000, 4_000
#: Lines of remarks or of failures; views of the chart.
_MOST_LINES, _MOST_VIEWS = 12, 120
_LEGEND = (
    "fastest correct: of all jobs with the same component and work, on one kind of device. Cells of a job are compared "
    "turn by turn, those of several by all their windows. p50: with its 95% interval; of several jobs the median, with "
    "the lowest and the highest. vs baseline: the time of the baseline in the same jobs over that of the recipe, with "
    f"the 95% interval over processes. Same: within {percent(RESOLUTION)}."
)

_Repeat = tuple[SweepAnswer, str, Repeated]


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
    builders = (_answer_section, _failures_section, _jobs_section, _cells_section, _chart_section, _devices_section)
    command_section = Section("command", "Command", text=printable(started_by, LONGEST_COMMAND), depth="report")
    return (*(_built(build, data) for build in builders), command_section)


def _built(build: Callable[[SweepData], Section], data: SweepData) -> Section:
    try:
        return build(data)
    except Exception as error:  # what one section trips on must not hide the others
        name = build.__name__.strip("_").removesuffix("_section")
        return Section(name, name.capitalize(), (f"{name}: cannot be rendered: {reason_of(error)}",))


def _title(data: SweepData, folder: Path) -> str:
    return f"Sweep of {printable(data.sweep.target)}: {printable(folder.resolve().name)}"


def _places(folder: Path, sections: Sequence[Section]) -> list[str]:
    """Return where the tables are that the console has no room for, and the sweep."""
    files = {"report": REPORT_FILE, "page": PAGE_FILE}
    long = [each for section in sections for each in section.tables if each and each.depth in files]
    lines = [f"{each.title}: {count_of(len(each.rows), 'row')} in {files[each.depth]}" for each in long]
    return [*lines, f"sweep: {printable(folder)}"]


def _answer_section(data: SweepData) -> Section:
    """Return the fastest correct recipe of each component, work and kind of device, and what needs saying of it."""

    def of_fastest(read: Callable[[Repeated], Value | None]) -> Callable[[SweepAnswer], Value | None]:
        return lambda row: read(row.fastest) if row.fastest is not None else None

    columns = (
        Column[SweepAnswer]("component", lambda row: row.name, wrap=26),
        *([Column[SweepAnswer]("device", lambda row: row.device, wrap=20)] if data.on_several else []),
        Column[SweepAnswer]("fastest correct", lambda row: row.ranking.leader if row.ranking else "none", wrap=34),
        Column[SweepAnswer]("p50", of_fastest(lambda recipe: recipe.p50), "ms"),
        Column[SweepAnswer]("vs baseline", of_fastest(lambda recipe: recipe.against_baseline), "ratio"),
        Column[SweepAnswer]("holds", of_fastest(lambda recipe: recipe.holds)),
        Column[SweepAnswer]("jobs", of_fastest(_jobs_text)),
    )
    table = _table(data, "Answer", columns, data.answers, keys=1 + data.on_several)
    lines = _remark_lines(data) if data.answers else [_nothing_yet(data)]
    legend = (_LEGEND,) if data.answers else ()
    return Section("answer", "Answer", _shortened(lines, "remark"), legend, (table, _repeated_table(data)), leads=True)


def _jobs_text(recipe: Repeated) -> Value:
    """Return the job, linked, or how many there are."""
    return recipe.cells[0].job.link if len(recipe.cells) == 1 else f"{len(recipe.cells)} jobs"


def _remark_lines(data: SweepData) -> list[str]:
    """Return the remarks, each once with the rows that it concerns."""
    concerned: dict[str, list[str]] = {}
    for answer in data.answers:
        device = f" on {answer.device}" if data.on_several and answer.device else ""
        for remark in answer.remarks():
            concerned.setdefault(remark, []).append(answer.name + device)
    return [f"{few(names)}: {remark}." for remark, names in concerned.items()]


def _nothing_yet(data: SweepData) -> str:
    if any(job.job.state not in ENDED for job in data.jobs):
        return "No cell has ended yet."
    if any(job.job.state == "done" for job in data.jobs):
        return "No job has measured a time that can be compared. The report of each job shows what it measured."
    return "No job has measured a cell."


def _repeated_table(data: SweepData) -> Table[Any]:
    """Return a row for each recipe that several jobs measured: how far its times are apart, and its rank."""
    rows = [(answer, *each) for answer in data.answers for each in answer.recipes.items() if len(each[1].cells) > 1]
    columns = (
        Column[_Repeat]("component", lambda row: row[0].name, wrap=26),
        *([Column[_Repeat]("device", lambda row: row[0].device, wrap=16)] if data.on_several else []),
        Column[_Repeat]("recipe", lambda row: row[1], wrap=26),
        Column[_Repeat]("jobs", lambda row: len(row[2].cells), "count"),
        Column[_Repeat]("p50", lambda row: row[2].p50, "ms"),
        Column[_Repeat]("vs baseline", lambda row: row[2].against_baseline, "ratio"),
        Column[_Repeat]("vs fastest", lambda row: row[0].against_fastest(row[1])),
    )
    return _table(data, "Recipes that several jobs measured", columns, rows, keys=2 + data.on_several)


def _cells_section(data: SweepData) -> Section:
    columns = (
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
    table = _table(data, "Cells", columns, cells, keys=keys, strike=lambda row: row.status != "ok")
    return Section("cells", "Cells", tables=(table,))


def _failures_section(data: SweepData) -> Section:
    """Return a line for each reason why cells have no right time, with how many it concerns and the first of them."""
    found: dict[tuple[str, str], list[SweptCell]] = {}
    for cell in data.cells:
        if cell.status != "ok":
            found.setdefault((cell.status, cell.reason or "parity check failed"), []).append(cell)
    lines = []
    for (state, reason), cells in sorted(found.items(), key=lambda item: -len(item[1])):
        first, example = cells[0], ", for example" * (len(cells) > 1)
        name = f"{first.component}.{first.variant}"
        log = f"{first.job.job.folder}/cells/{name}.log"
        where = f"; log: {log}" if (data.folder / log).is_file() else ""
        lines.append(
            f"{count_of(len(cells), 'cell')} {state}: {reason} ({name} in job {first.job.job.number}{example}{where})"
        )
    return Section("failures", "Failed, invalid or skipped cells", _shortened(lines, "reason"))


def _jobs_section(data: SweepData) -> Section:
    waiting = [job for job in data.jobs if job.job.state == "waiting" and not job.job.reason and not job.damage]
    unusual = [job for job in data.jobs if job not in waiting and (job.job.state != "done" or job.damage)]
    lines = [f"{count_of(len(waiting), 'job')} of {len(data.jobs)} did not start yet."] if waiting else []
    lines += [f"job {job.job.number}: {'; '.join(job.damage)}" for job in data.jobs if job.damage]
    columns = (
        Column[SweptJob]("job", lambda row: row.link, "text"),
        *_swept_columns(data, ("job", "state", "device", "host", "tries")),
        Column[SweptJob]("state", lambda row: row.job.state),
        Column[SweptJob]("exit code", lambda row: row.job.exit_code, "count"),
        Column[SweptJob]("reason", lambda row: row.job.reason, wrap=40),
        Column[SweptJob]("log", lambda row: row.log and Link("log", row.log), depth="page"),
        Column[SweptJob]("host", lambda row: row.job.host),
        Column[SweptJob]("device", lambda row: row.job.device or row.device),
        Column[SweptJob]("tries", lambda row: row.job.tries or None, "count"),
        Column[SweptJob]("took", _seconds, "s"),
    )
    rest = [job for job in data.jobs if job not in unusual]
    tables = (
        _table(data, "Jobs that are not done", columns, unusual, keys=1),
        _table(data, "Other jobs" if unusual else "Jobs", columns, rest, keys=1, depth="page"),
    )
    return Section("jobs", "Jobs", _shortened(lines, "line"), tables=tables)


def _seconds(row: SweptJob) -> float | None:
    try:
        took = datetime.fromisoformat(row.job.ended or "") - datetime.fromisoformat(row.job.began or "")
    except (ValueError, TypeError):
        return None
    return took.total_seconds()


def _chart_section(data: SweepData) -> Section:
    """Return a chart of the times over the swept number with the most values; of the recipes where there is none.

    It has a view for each component and setting of the other overrides.
    """
    timed = [cell for cell in data.cells if cell.judged is not None]
    swept = [key for key in data.keys if is_work(key) or is_recipe(key)]
    numbers = {key: {number(cell.values.get(key)) for cell in timed} - {None} for key in swept}
    over = max(swept, key=lambda key: len(numbers[key]), default="")
    over = over if len(numbers.get(over, ())) > 1 else ""
    found: dict[str, dict[str, dict[Any, list[SweptCell]]]] = {}
    for cell in timed:
        place = number(cell.values.get(over)) if over else cell.recipe
        if place is not None:
            others = [key for key in swept if key in cell.values and key != over and (over or is_work(key))]
            device = [cell.job.device or "unknown device"] if data.on_several else []
            label = " · ".join((cell.component, *(setting(key, cell.values[key]) for key in others), *device))
            series = found.setdefault(label, {}).setdefault(cell.variant if over else "p50", {})
            series.setdefault(place, []).append(cell)
    colours = palette(name for view in found.values() for name in view)
    views = [View(printable(label), _figure(view, short(over), colours)) for label, view in found.items()]
    note = "Medians of correct cells with their intervals."
    note += f" The first {_MOST_VIEWS} of {len(views)} views." if len(views) > _MOST_VIEWS else ""
    chart = Chart("swept", printable(f"p50 over {over or 'recipes'}"), views[:_MOST_VIEWS], note)
    return Section("charts", "Times", charts=[chart], depth="page")


def _figure(view: Mapping[str, Mapping[Any, list[SweptCell]]], over: str, colours: Mapping[str, str]) -> Figure:
    """Return a line for each variant over a number, or the recipes where `over` is empty."""
    traces, places, times = [], set[float](), list[float]()
    for name, cells in view.items():
        along = sorted(cells) if over else list(cells)
        known = [Repeated(tuple(cells[place])).p50 for place in along]
        medians = [number_of(time) or 0.0 for time in known]
        ends = [(time.low, time.high) if isinstance(time, Estimate) else None for time in known]
        error_y = error_bars(medians, ends, colours[name])
        if over:
            traces.append(line(name, along, medians, colours[name], mode="lines+markers", error_y=error_y))
            places.update(along)
        else:
            traces.append(points(name, along, medians, "circle", colours[name], error_y=error_y))
        times += medians
    x = axis(printable(over), **scale(places)) if over else axis("recipe", type="category")
    return figure(traces, x, axis("p50, ms", **scale(times)))


def _devices_section(data: SweepData) -> Section:
    """Return the clocks and ceilings of several kinds of device side by side, lowest to highest of their jobs."""

    def column(title: str, read: Callable[[SweptCell], float | None], text: Callable[[float], str]) -> Column[str]:
        def value(device: str) -> str | None:
            known = [number for cell in data.cells if cell.job.device == device and (number := read(cell)) is not None]
            return " to ".join(dict.fromkeys(text(end) for end in (min(known), max(known)))) if known else None

        return Column(title, value, wrap=16)

    def fact(title: str, of: str, name: str, text: Callable[[float], str]) -> Column[str]:
        return column(title, lambda cell: getattr(getattr(cell.job.environment, of), name, None), text)

    columns = (
        Column[str]("device", lambda device: device, wrap=20),
        Column[str]("jobs", lambda device: sum(job.device == device for job in data.jobs), "count"),
        column("SM clock while timed", lambda cell: cell.sm_clock, "{:.0f} MHz".format),
        fact("highest SM clock", "device", "clock_sm_max_mhz", "{:.0f} MHz".format),
        fact("power", "device", "power_limit_w", "{:.0f} W".format),
        fact("copy", "ceilings", "copy_bytes_per_s", lambda rate: rate_text(rate, "B/s")),
        fact("GEMM", "ceilings", "matmul_flops_per_s", lambda rate: rate_text(rate, "FLOP/s")),
        fact("launch", "ceilings", "launch_us", lambda time: f"{significant(time, 3)} µs"),
    )
    notes = ["Times on different kinds of device are not ranked. Ceilings were measured in each run."]
    table = Table("Devices", columns, data.devices if len(data.devices) > 1 else (), notes, keys=1)
    return Section("devices", "Devices", tables=(table,))


def _swept_columns(data: SweepData, taken: Iterable[str]) -> list[Column[Any]]:
    """Return a column for each override: under its last name, or all of it where another column is called so."""
    times = Counter([*map(short, data.keys), *taken])
    titles = {key: printable(short(key) if times[short(key)] == 1 else key) for key in data.keys}
    return [Column(title, lambda row, key=key: row.values.get(key), wrap=26) for key, title in titles.items()]


def _table(
    data: SweepData,
    title: str,
    columns: Sequence[Column[Any]],
    rows: Sequence[Any],
    keys: int,
    depth: Depth | None = None,
    strike: Callable[[Any], bool] | None = None,
) -> Table[Any]:
    """Return a table in the outermost place that has room for its rows; a note says where those are not all."""
    fits: Depth = "console" if len(rows) <= _CONSOLE else "report" if len(rows) <= _REPORT else "page"
    every = command("-m", "profiling.report", data.folder.name, "--format", "csv")
    notes = [f"The first {_PAGE:,} of {len(rows):,} rows. All cells: {every}"] if len(rows) > _PAGE else []
    return Table(title, columns, rows[:_PAGE], notes, strike, keys, depth or fits)


def _shortened(lines: Sequence[str], noun: str) -> tuple[str, ...]:
    """Return the first lines, and how many of them (called `noun`) are left out."""
    left = len(lines) - _MOST_LINES
    more = [f"and {count_of(left, noun)} more"] if left > 0 else []
    return tuple(map(printable, (*lines[:_MOST_LINES], *more)))


def _as_json(data: SweepData) -> str:
    """Return the answers and the jobs; times are in milliseconds, and what may not be claimed is null."""
    jobs = [
        {"number": each.job.number, "folder": each.job.folder, "overrides": dict(each.values), "state": each.job.state}
        | {"reason": each.job.reason or "; ".join(each.damage) or None, "host": each.job.host, "device": each.device}
        for each in data.jobs
    ]
    content = {"target": data.sweep.target, "answer": [_answer(answer) for answer in data.answers], "jobs": jobs}
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
    text, rows = io.StringIO(), list[Sequence[object]]()
    measured = {cell.job.job.number for cell in data.cells}
    for job in (job for job in data.jobs if job.job.number in measured):
        names, *cells = cell_rows(load_run(data.folder / job.job.folder))
        places = [place for place, name in enumerate(names) if name not in data.keys]  # dtype may be swept
        rows = rows or [["job", "state", *data.keys, *(names[place] for place in places)]]
        values = [job.job.number, job.job.state, *(job.values.get(key) for key in data.keys)]
        rows += [[*values, *(cell[place] for place in places)] for cell in cells]
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
