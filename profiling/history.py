"""Show the fastest correct variant of each component over folders of runs: `python -m profiling.history FOLDER ...`.

The runs of a sweep are points as others are; where it sweeps what changes the work, each value has a series of its own.
Needs no torch. Exit code 0: done; 2: a folder holds no runs, or the page could not be written.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from profiling.compare.command import check_page_path, describe_error, parse_options, section_text, write_page
from profiling.compare.loaded_run import LoadedRun, median_ms, read_run
from profiling.errors import InputError, prepare_output, print_text, printable
from profiling.report.answer import CANNOT_TELL, answer_of
from profiling.report.charts import GREY, Chart, Figure, View, axis, error_bars, figure, line, palette, plain, points
from profiling.report.format import ABSENT, count_of, estimate, show
from profiling.report.page import Section, render_page
from profiling.report.table import Column, Table
from profiling.results.environment import Environment
from profiling.results.jsonl import RESULTS_FILE
from profiling.results.judgement import loop_work, lost
from profiling.results.overrides import (
    concerns,
    is_recipe,
    is_work,
    names_cells,
    overrides_of,
    setting,
    swept_keys,
)
from profiling.results.record import Record
from profiling.results.sweep import is_sweep, read_sweep

_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "star", "cross", "hexagon")
_TOOL = "tool "


@dataclass(frozen=True)
class HistoryPoint:
    """The fastest correct variant of a component in one run, and how it compares with the runs before it."""

    run: str  # its folder, relative to the folder of all runs
    date: str | None  # when the run began, ISO 8601 in UTC
    revision: str | None  # of the user's code, with + for uncommitted changes; `tool …` where only the tool's is known
    variant: str
    p50_ms: float  # of a call, or of a frame of a loop
    ci95: tuple[float, float] | None
    disturbed: str = ""  # what others took while it was timed, where that is too much
    is_ranked: bool = True  # False where its run cannot tell that this variant is the fastest
    is_tied: bool = False  # whether another variant of its run may be as fast
    vs_first: float | None = None  # p50 of the first run over this one: above 1 is faster
    vs_previous: float | None = None

    @property
    def fastest(self) -> str:
        """What its run says which variant is the fastest."""
        return self.variant if self.is_ranked else f"{CANNOT_TELL} ({self.variant})"

    @property
    def marks(self) -> str | None:
        """The doubts about it."""
        doubts = {"disturbed": bool(self.disturbed), "tied": self.is_tied}
        return f"! {', '.join(mark for mark, is_so in doubts.items() if is_so)}" if any(doubts.values()) else None


#: The points of each title, oldest first. Their times are comparable: same device, same work.
History = Mapping[str, tuple[HistoryPoint, ...]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the history; return the exit code."""
    prepare_output()
    parser = argparse.ArgumentParser(
        prog="python -m profiling.history",
        description="The fastest correct variant of each component, run by run.",
        epilog="exit code: 0 done, 2 a folder holds no runs, or the page could not be written",
    )
    parser.add_argument(
        "folders",
        metavar="FOLDER",
        type=Path,
        nargs="+",
        help="a run, a sweep, or a folder with some anywhere below it",
    )
    options = parse_options(parser, arguments)
    try:
        if options.html:
            check_page_path(options.html)
        history = read_history(*options.folders)
        print_text(history_text(history, as_markdown=options.markdown))
    except (InputError, OSError) as error:
        print(f"error: {printable(error)}", file=sys.stderr)
        return InputError.exit_code
    if options.html and not write_page(options.html, lambda: history_page(history, *options.folders)):
        return InputError.exit_code
    return 0


def read_history(*folders: Path) -> History:
    """Read every run below `folders`; runs without a date come first, by name.

    A run that cannot be read is skipped with a line on stderr.

    Raises:
        InputError: a folder holds no run, or none has a correct cell with times.

    """
    runs: dict[Path, None] = {}
    for folder in folders:
        below = sorted(path.parent for path in folder.rglob(RESULTS_FILE) if path.stat().st_size)
        if not below:
            raise InputError(f"{folder} holds no runs: there is no {RESULTS_FILE} below it. Name a folder of runs.")
        runs |= dict.fromkeys(below)
    top, swept = _common(folders), _swept({run.parent for run in runs})
    history: dict[str, list[HistoryPoint]] = {}
    for run in runs:
        try:
            loaded = read_run(run)
            points_of_run = _points(loaded, os.path.relpath(run, top), swept.get(run, {}))
        except (InputError, OSError) as error:
            print(printable(f"skipped {run}: {error}"), file=sys.stderr)
            continue
        except Exception as error:  # a fault in one run must not hide the others
            print(printable(f"skipped {run}: {describe_error(error)}"), file=sys.stderr)
            continue
        if loaded.damage:
            print(f"{run}: {loaded.damage}", file=sys.stderr)
        for title, point in points_of_run.items():
            history.setdefault(title, []).append(point)
    if not history:
        names = ", ".join(map(str, folders))
        raise InputError(f"{names}: none of its {len(runs)} runs has a correct cell with times.")
    longest_first = sorted(history.items(), key=lambda item: -len(item[1]))
    return {title: _ordered(series) for title, series in longest_first}


def _common(folders: Sequence[Path]) -> Path:
    """Return the folder that run names are relative to: the one that was named, or that which holds all of them."""
    return folders[0] if len(folders) == 1 else Path(os.path.commonpath([folder.absolute() for folder in folders]))


def _swept(folders: Iterable[Path]) -> dict[Path, dict[str, str]]:
    """Return the values of the overrides that differ between the runs of a sweep, by run, for those in sweeps."""
    values: dict[Path, dict[str, str]] = {}
    for folder in folders:
        if not is_sweep(folder):
            continue
        try:
            sweep = read_sweep(folder)
        except InputError as error:  # its runs are still points
            print(printable(error), file=sys.stderr)
            continue
        keys = [key for key in swept_keys(sweep) if not names_cells(key)]
        for job in sweep.jobs:
            given = overrides_of(job)
            values[folder / job.folder] = {key: given[key] for key in keys if key in given}
    return values


def _ordered(series: Sequence[HistoryPoint]) -> tuple[HistoryPoint, ...]:
    """Return the points by date, with their speedups over the first and the previous one; disturbed ones have none."""
    first, *others = sorted(series, key=lambda point: (point.date or "", point.run))
    compared = [
        replace(point, vs_first=_speedup(first, point), vs_previous=_speedup(previous, point))
        for previous, point in pairwise((first, *others))
    ]
    return (first, *compared)


def _speedup(before: HistoryPoint, after: HistoryPoint) -> float | None:
    return None if before.disturbed or after.disturbed else before.p50_ms / after.p50_ms


def _points(run: LoadedRun, name: str, swept: Mapping[str, str]) -> dict[str, HistoryPoint]:
    groups: dict[str, list[Record]] = {}
    for record in run.records.values():
        if record.is_correct and median_ms(record) is not None:
            groups.setdefault(_title(run, record, swept), []).append(record)
    answers = {title: answer_of(title, records) for title, records in groups.items()}
    return {
        title: replace(
            _point(run, answer.fastest, name, swept),
            is_ranked=answer.is_ranked,
            is_tied=answer.is_tied,
        )
        for title, answer in answers.items()
        if answer.fastest is not None
    }


def _title(run: LoadedRun, record: Record, swept: Mapping[str, str]) -> str:
    """Return everything that makes times comparable: component, target, device and the work of a call or frame."""
    device, conditions = run.environment.device, record.metrics.latency
    parts = [record.component, record.target, device and device.name, record.dtype, record.scale]
    if record.parameters is not None:
        parts.append(f"{record.parameters:,} parameters")
    if not record.is_realtime and record.frames_per_call not in (None, 1):
        parts.append(f"{record.frames_per_call} frames per call")
    parts += [f"{name} {value}" for name, value in loop_work(record).items()]
    parts += [setting(key, value) for key, value in swept.items() if is_work(key) and concerns(key, record)]
    training = run.config.get("training")
    if isinstance(training, Mapping) and training.get("autocast"):
        parts.append(f"autocast {training['autocast']}")  # dtype is that of the weights
    if conditions is not None and conditions.cold:
        parts.append("cold cache")
    return " · ".join(filter(None, parts))


def _point(run: LoadedRun, record: Record, name: str, swept: Mapping[str, str]) -> HistoryPoint:
    loop = record.realtime
    summary = record.metrics.wall_ms if loop is None else loop.frame_ms
    schedule = loop and loop.schedule
    known = ("dtype", "loop.schedule")  # which stand in the title, and behind the variant
    recipe = [
        setting(key, swept[key]) for key in swept if is_recipe(key) and concerns(key, record) and key not in known
    ]
    return HistoryPoint(
        run=name,
        date=run.environment.captured_at,
        revision=_revision(run.environment),
        variant=", ".join((f"{record.variant} ({schedule})" if schedule else record.variant, *recipe)),
        p50_ms=median_ms(record) or 0.0,
        ci95=summary and summary.ci95,
        disturbed=taken.words if (taken := lost(record)) is not None and taken.disturbs else "",
    )


def _revision(environment: Environment) -> str | None:
    for prefix, git in (("", environment.user_git), (_TOOL, environment.tool_git)):
        if git is not None and git.revision:
            return f"{prefix}{git.revision[:7]}{'+' if git.dirty else ''}"
    return None


def history_text(history: History, *, as_markdown: bool) -> str:
    """Return a table for each title, and how to read them."""
    return section_text(_section(history), as_markdown=as_markdown)


def history_page(history: History, *folders: Path) -> str:
    """Return the page: the text with a chart."""
    runs = {point.run for series in history.values() for point in series}
    dates = sorted(point.date for series in history.values() for point in series if point.date)
    heading = (
        f"{', '.join(map(str, folders))}: {count_of(len(runs), 'run')}{f', {dates[0]} to {dates[-1]}' if dates else ''}"
    )
    return render_page(
        f"history: {printable(_common(folders).resolve().name)}", [printable(heading)], [_section(history)]
    )


def _section(history: History) -> Section:
    title = "The fastest correct variant of each run"
    return Section("history", title, tables=_tables(history), charts=(_chart(history),), legend=_legend(history))


def _tables(history: History) -> list[Table[HistoryPoint]]:
    columns = (
        Column[HistoryPoint]("run", lambda point: point.run),
        Column[HistoryPoint]("began (UTC)", _date),
        Column[HistoryPoint]("git", lambda point: point.revision),
        Column[HistoryPoint]("fastest variant", lambda point: point.fastest, wrap=20),
        Column[HistoryPoint]("p50", lambda point: point.p50_ms, "ms"),
        Column[HistoryPoint]("vs first", lambda point: point.vs_first, "ratio"),
        Column[HistoryPoint]("vs previous", lambda point: point.vs_previous, "ratio"),
        Column[HistoryPoint]("conditions", lambda point: point.marks, "marks"),
    )
    return [Table(title, columns, series, keys=1) for title, series in history.items()]


def _legend(history: History) -> list[str]:
    every = [point for series in history.values() for point in series]
    lines = ["A component has a table for each device, precision and amount of work."]
    if any(point.vs_first is not None for point in every):
        lines.append("vs first, vs previous: the other run's p50 over this one's; above 1, this run is faster.")
    if any(not point.is_ranked for point in every):
        lines.append(f"{CANNOT_TELL}: the run could not tell which variant is fastest; in brackets, the lowest p50.")
    if any(point.is_tied for point in every):
        lines.append("tied: another variant of the run may be as fast.")
    if any(point.disturbed for point in every):
        lines.append(
            "disturbed: other processes took more than 5% of the CPU or the GPU, and may have lengthened the time."
        )
    if any(point.revision for point in every):
        git = "git: revision of your code (+: with uncommitted changes)"
        tool = any((point.revision or "").startswith(_TOOL) for point in every)
        lines.append(f"{git}; tool: only this tool's revision is known." if tool else f"{git}.")
    return lines


def _date(point: HistoryPoint) -> str | None:
    instant = _instant(point.date)
    return point.date if instant is None else f"{instant:%Y-%m-%d %H:%M}"


def _instant(date: str | None) -> datetime | None:
    """Return the date in UTC; None where it is none."""
    try:
        instant = datetime.fromisoformat(date or "")
        return (instant.astimezone(UTC) if instant.tzinfo else instant).replace(tzinfo=None)
    except (ValueError, OverflowError):
        return None


def _chart(history: History) -> Chart:
    """Return the chart, a view for each title; a variant has the same colour and symbol in every view."""
    colours = palette(point.variant for series in history.values() for point in series)
    markers = {name: (colour, _SYMBOLS[place % len(_SYMBOLS)]) for place, (name, colour) in enumerate(colours.items())}
    views = [View(printable(title), _figure(series, markers)) for title, series in history.items()]
    note = (
        "Bars: the 95% interval of the median. Hollow: other processes disturbed the run. Runs are in their order "
        "where not every date is known."
    )
    return Chart("history", "Median time of the fastest correct variant", views, note)


def _figure(series: Sequence[HistoryPoint], markers: Mapping[str, tuple[str, str]]) -> Figure:
    instants = [instant for point in series if (instant := _instant(point.date)) is not None]
    dated = len(instants) == len(series) and len(set(instants)) > 1
    if dated:
        places, x = [instant.isoformat() for instant in instants], axis("start of the run, UTC", type="date")
    else:
        places = [f"{number}: {_date(point) or 'undated'}" for number, point in enumerate(series, 1)]
        x = axis("run, in order", type="category")
    medians = [point.p50_ms for point in series]
    traces: list[dict[str, Any]] = [line("fastest", places, medians, GREY, 1.0, hoverinfo="skip", showlegend=False)]
    for variant in dict.fromkeys(point.variant for point in series):
        chosen = [number for number, point in enumerate(series) if point.variant == variant]
        colour, symbol = markers[variant]
        values = [medians[number] for number in chosen]
        bars = error_bars(values, [series[number].ci95 for number in chosen], colour)
        texts = [plain(_hover_text(series[number])) for number in chosen]
        more: dict[str, Any] = {"error_y": bars, "text": texts, "hoverinfo": "text"}
        traces.append(points(variant, [places[number] for number in chosen], values, symbol, colour, 10, **more))
        if any(series[number].disturbed for number in chosen):
            symbols = [f"{symbol}-open" if series[number].disturbed else symbol for number in chosen]
            traces[-1]["marker"]["symbol"] = symbols
    return figure(traces, x, axis("p50, ms", rangemode="tozero"))


def _hover_text(point: HistoryPoint) -> str:
    time = show(estimate(point.p50_ms, point.ci95), "ms")
    facts = [_date(point) or "undated", f"git {point.revision or ABSENT}", point.run, point.disturbed]
    return f"{point.fastest}: {time} ms, {', '.join(filter(None, facts))}"


if __name__ == "__main__":
    sys.exit(main())
