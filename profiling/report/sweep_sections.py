"""The sections of a sweep: best recipe by component, jobs, overrides × components × variants, charts, devices.

It is thin: what one run says of itself stays in the report of that run, to which each row links.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from profiling.errors import LONGEST_COMMAND, printable, reason_of, shell_words
from profiling.report.answer import CANNOT_TELL, summary_of
from profiling.report.charts import Chart, Figure, View, axis, error_bars, figure, line, palette, scale
from profiling.report.format import Value, count_of, few, number_of, significant
from profiling.report.heading import rate_text
from profiling.report.page import Section
from profiling.report.run_data import name_of, wrong_because
from profiling.report.sweep_data import Measurement, SweepData, SweptRun
from profiling.report.sweep_ranking import (
    best_section,
    clock_of,
    column_titles,
    depth_of,
    limited,
    repeated_cells,
    repeated_section,
    shortened,
)
from profiling.report.table import Column, Table
from profiling.results.judgement import sm_clock
from profiling.results.overrides import is_recipe, is_work, number, setting, short
from profiling.results.record import Record

#: Variants that have a column each; of more the table shows the fastest, and the runs' reports the others.
_MOST_VARIANTS = 8
#: Views of a chart.
_MOST_VIEWS = 120
#: Swept values that are marked on an axis.
_MOST_TICKS = 12

_Item = tuple[tuple[str, str], list[SweptRun]]


@dataclass(frozen=True)
class _Row:
    """The cells of one component in one job, by variant."""

    run: SweptRun
    component: str
    cells: Mapping[str, Record]

    @property
    def fastest(self) -> Measurement | None:
        answer = self.run.answers.get(self.component)
        return Measurement(self.run, answer.fastest) if answer is not None and answer.fastest is not None else None

    def value(self, key: str) -> str | None:
        return self.run.values_of(next(iter(self.cells.values()))).get(key)


def sections_of(data: SweepData) -> tuple[Section, ...]:
    """Return the sections of a sweep in their order; those that hold nothing are false."""
    started_by = shell_words(["python", "-m", f"profiling.{data.sweep.target}", *data.sweep.argv])
    builders = (
        *(best_section, repeated_section, _jobs_section, _pivot_section),
        *(_charts_section, _devices_section, _failures_section),
    )
    command_section = Section("command", "Command", text=printable(started_by, LONGEST_COMMAND), depth="report")
    return (*(_built(build, data) for build in builders), command_section)


def _built(build: Callable[[SweepData], Section], data: SweepData) -> Section:
    try:
        return build(data)
    except Exception as error:  # what one section trips on must not hide the others
        name = build.__name__.strip("_").removesuffix("_section")
        return Section(name, name.capitalize(), (f"{name}: cannot be rendered: {reason_of(error)}",))


def _jobs_section(data: SweepData) -> Section:
    names = column_titles(data.keys, ("job", "state", "device", "host", "tries"))
    left = [run for run in data.runs if run.job.state == "waiting" and not run.job.reason and not run.trouble]
    unusual = [run for run in data.runs if (run.job.state != "done" and run not in left) or run.trouble]
    lines = [f"{count_of(len(left), 'job')} of {len(data.runs)} did not start yet."] if left else []
    lines += [f"job {run.job.number} cannot be read: {run.trouble}" for run in unusual if run.trouble]
    lines += [f"job {run.job.number}: {'; '.join(run.damage)}" for run in data.runs if run.damage]
    columns = (
        Column[SweptRun]("job", lambda row: row.link, "text"),
        *(Column[SweptRun](names[key], lambda row, key=key: row.values.get(key), wrap=26) for key in data.keys),
        Column[SweptRun]("state", lambda row: row.job.state),
        Column[SweptRun]("exit code", lambda row: row.job.exit_code, "count"),
        Column[SweptRun]("reason", lambda row: row.job.reason, wrap=40),
        Column[SweptRun]("log", lambda row: row.log, depth="page"),
        Column[SweptRun]("host", lambda row: row.job.host),
        Column[SweptRun]("device", lambda row: row.job.device or row.device),
        Column[SweptRun]("tries", lambda row: row.job.tries or None, "count"),
        Column[SweptRun]("took", lambda row: _seconds(row), "s"),
    )
    rest = tuple(run for run in data.runs if run not in unusual) if len(unusual) < len(data.runs) else ()
    tables = []
    for title, runs in (("Jobs that are not done", unusual), ("Other jobs" if unusual else "Jobs", rest)):
        shown, notes = limited(runs, data)
        depth = depth_of(unusual) if runs is unusual else "page"
        tables.append(Table(title, columns, shown, notes, keys=1, depth=depth))
    return Section("jobs", "Jobs", shortened(lines, "line"), tables=tables)


def _pivot_section(data: SweepData) -> Section:
    rows = [
        _Row(run, component, {record.variant: record for record in group})
        for run in data.runs
        for component, group in run.groups.items()
    ]
    variants = list(dict.fromkeys(variant for row in rows for variant in row.cells))
    names = column_titles(data.keys, ("job", "device", "component", *variants))
    is_wide = len(variants) <= _MOST_VARIANTS
    columns = (
        Column[_Row]("job", lambda row: row.run.link),
        *(Column[_Row](names[key], lambda row, key=key: row.value(key), wrap=26) for key in data.keys),
        *([Column[_Row]("device", lambda row: row.run.device, wrap=16)] if len(data.devices) > 1 else []),
        Column[_Row]("component", lambda row: row.component),
        *(Column[_Row](variant, _time_of(variant), "ms") for variant in variants if is_wide),
        Column[_Row]("fastest correct", _fastest_in_run, wrap=24),
        *([] if is_wide else [Column[_Row]("p50", lambda row: row.fastest and row.fastest.record.median_ms, "ms")]),
        Column[_Row]("speedup", _speedup_in_run, "ratio"),
        Column[_Row]("of roofline", lambda row: row.fastest.roofline_share if row.fastest else None, "percent"),
        Column[_Row]("SM clock", lambda row: clock_of(row.fastest), "count", unit="MHz", depth="report"),
        Column[_Row]("conditions", _marks_in_run, "marks", depth="report"),
    )
    depth, title = depth_of(rows), "p50 by override, component and variant"
    if depth == "console" and not any(is_work(key) or is_recipe(key) for key in data.keys) and repeated_cells(data):
        depth = "report"  # only repetitions: a table of their own has them in few rows
    legend = ["p50 of a call (of a loop: of a frame)."]
    if not is_wide:
        legend.append(f"There are {len(variants)} variants: the report of each job shows them.")
    shown, notes = limited(rows, data)
    keys = 2 + len(data.keys) + (len(data.devices) > 1)
    table = Table(title, columns, shown, notes, keys=keys, depth=depth)
    return Section("pivot", title, legend=legend, tables=(table,))


def _charts_section(data: SweepData) -> Section:
    swept = [key for key in data.keys if is_work(key) or is_recipe(key)]
    charts = [
        _chart(data, key) for key in swept if len({number(run.values.get(key)) for run in data.runs} - {None}) > 1
    ]
    return Section("charts", "Time over the swept numbers", charts=charts, depth="page")


def _chart(data: SweepData, key: str) -> Chart:
    """Return a view for each component and setting of the other overrides, a line for each variant."""
    views: dict[str, dict[str, list[tuple[float, Record]]]] = {}
    several = len({run.device for run in data.runs if run.groups}) > 1
    for run in data.runs:
        for component, group in run.groups.items():
            for record in group:
                values = run.values_of(record)
                place = number(values.pop(key, None))
                if place is None or not record.is_correct or record.median_ms is None:
                    continue
                others = [setting(name, value) for name, value in values.items() if is_work(name) or is_recipe(name)]
                device = [run.device or "unknown device"] if several else []
                view = views.setdefault(" · ".join((component, *others, *device)), {})
                view.setdefault(record.variant, []).append((place, record))
    drawn = {name: series for name, series in views.items() if len({x for s in series.values() for x, _ in s}) > 1}
    colours = palette(variant for series in drawn.values() for variant in series)
    chosen = [
        View(printable(name), _figure(series, short(key), colours))
        for name, series in list(drawn.items())[:_MOST_VIEWS]
    ]
    note = (
        "Medians of correct cells. Bars: the 95% interval; where several jobs measured one, the lowest and the highest."
    )
    if len(drawn) > _MOST_VIEWS:
        note += f" The first {_MOST_VIEWS} of {len(drawn)} views."
    return Chart(f"swept-{key}", printable(f"p50 over {key}"), chosen, note)


def _figure(series: Mapping[str, list[tuple[float, Record]]], name: str, colours: Mapping[str, str]) -> Figure:
    traces, places, times = [], set[float](), list[float]()
    for variant, found in series.items():
        at: dict[float, list[Record]] = {}
        for place, record in sorted(found, key=lambda each: each[0]):
            at.setdefault(place, []).append(record)
        medians = [median(record.median_ms or 0.0 for record in records) for records in at.values()]
        bars = error_bars(medians, [_reach(records) for records in at.values()], colours[variant])
        traces.append(line(variant, at, medians, colours[variant], mode="lines+markers", error_y=bars))
        places, times = places | set(at), times + medians
    ticks = {"tickmode": "array", "tickvals": sorted(places)} if len(places) <= _MOST_TICKS else {}
    return figure(traces, axis(printable(name), **scale(places), **ticks), axis("p50, ms", **scale(times)))


def _reach(records: Sequence[Record]) -> tuple[float, float] | None:
    """Return the 95% interval of a median; of several the lowest and the highest."""
    if len(records) > 1:
        times = [record.median_ms or 0.0 for record in records]
        return min(times), max(times)
    summary = summary_of(records[0])
    return None if summary is None else summary.ci95


def _devices_section(data: SweepData) -> Section:
    """Return the clocks and ceilings of each kind of device, side by side."""
    groups: dict[tuple[str, str], list[SweptRun]] = {}
    for run in data.runs:
        if run.device is not None:
            ceilings = run.environment.ceilings
            groups.setdefault((run.device, ceilings.dtype if ceilings is not None else ""), []).append(run)

    def ceiling(name: str, unit: str) -> Callable[[_Item], str | None]:
        return lambda row: _range(
            (getattr(run.environment.ceilings, name, None) for run in row[1]), lambda value: rate_text(value, unit)
        )

    def fact(name: str, unit: str) -> Callable[[_Item], str | None]:
        return lambda row: _range(
            (getattr(run.environment.device, name, None) for run in row[1]), lambda value: f"{value:.0f} {unit}"
        )

    columns = (
        Column[_Item]("device", lambda row: row[0][0], wrap=20),
        Column[_Item]("dtype", lambda row: row[0][1] or None),
        Column[_Item]("hosts", _hosts, wrap=20),
        Column[_Item]("in use", _in_use, "count"),
        Column[_Item]("jobs", lambda row: len(row[1]), "count"),
        Column[_Item](
            "SM clock while timed", lambda row: _range(_clocks(row[1]), lambda value: f"{value:.0f} MHz"), wrap=14
        ),
        Column[_Item]("highest SM clock", fact("clock_sm_max_mhz", "MHz")),
        Column[_Item]("power", fact("power_limit_w", "W")),
        Column[_Item]("copy", ceiling("copy_bytes_per_s", "B/s"), wrap=12),
        Column[_Item]("matrix products", ceiling("matmul_flops_per_s", "FLOP/s"), wrap=16),
        Column[_Item](
            "launch", lambda row: _range(_launches(row[1]), lambda value: f"{significant(value, 3)} µs"), wrap=12
        ),
    )
    known = any(run.environment.ceilings is not None for run in data.runs)
    notes = ["Ceilings: measured in each run, lowest to highest."] if known else []
    table = Table("Devices", columns, tuple(groups.items()), notes, keys=2)
    return Section("devices", "Devices", tables=(table,))


def _failures_section(data: SweepData) -> Section:
    """Return a line for each reason why cells have no right time, with how many it concerns and the first of them."""
    found: dict[tuple[str, str], list[Measurement]] = {}
    for run in data.runs:
        for group in run.groups.values():
            for record in group:
                if state := wrong_because(record):
                    found.setdefault((state, record.reason or "parity check failed"), []).append(
                        Measurement(run, record)
                    )
    most_first = sorted(found.items(), key=lambda item: -len(item[1]))
    lines = [
        f"{count_of(len(cells), 'cell')} {state}: {reason} ({name_of(cells[0].record)} in job {cells[0].run.job.number}"
        f"{', for example' * (len(cells) > 1)})"
        for (state, reason), cells in most_first
    ]
    return Section("failures", "Failed, invalid or skipped cells", shortened(lines, "reason"))


def _time_of(variant: str) -> Callable[[_Row], Value | None]:
    def read(row: _Row) -> Value | None:
        record = row.cells.get(variant)
        return None if record is None else wrong_because(record) or record.median_ms

    return read


def _fastest_in_run(row: _Row) -> str | None:
    answer = row.run.answers.get(row.component)
    if answer is None:
        return None
    if answer.fastest is None:
        return "none"
    return answer.fastest.variant if answer.is_ranked else f"{CANNOT_TELL} ({answer.fastest.variant})"


def _speedup_in_run(row: _Row) -> float | None:
    answer = row.run.answers.get(row.component)
    return number_of(answer.speedup) if answer is not None else None


def _marks_in_run(row: _Row) -> str | None:
    answer = row.run.answers.get(row.component)
    return f"! {', '.join(doubt.mark for doubt in answer.doubts)}" if answer is not None and answer.doubts else None


def _hosts(row: _Item) -> str | None:
    """Return the hosts of the jobs by name, of many the first two."""
    hosts = sorted({run.job.host for run in row[1] if run.job.host})
    return few(hosts) if hosts else None


def _in_use(row: _Item) -> int | None:
    """Return how many devices of this kind, or sets of CPU cores, the jobs held."""
    return len({(run.job.host, run.job.device) for run in row[1] if run.job.device}) or None


def _clocks(runs: Sequence[SweptRun]) -> Iterator[float | None]:
    return (sm_clock(record) for run in runs for group in run.groups.values() for record in group)


def _launches(runs: Sequence[SweptRun]) -> Iterator[float | None]:
    return (run.environment.ceilings.launch_us for run in runs if run.environment.ceilings is not None)


def _range(values: Iterable[float | None], text: Callable[[float], str]) -> str | None:
    """Return the lowest and the highest value as text, once where they read alike; None where none is known."""
    known = [value for value in values if value is not None]
    ends = dict.fromkeys(text(value) for value in (min(known), max(known))) if known else {}
    return " to ".join(ends) or None


def _seconds(run: SweptRun) -> float | None:
    try:
        took = datetime.fromisoformat(run.job.ended or "") - datetime.fromisoformat(run.job.began or "")
    except (ValueError, TypeError):
        return None
    return took.total_seconds()
