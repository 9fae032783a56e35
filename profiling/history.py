"""Show the fastest correct variant of each component over folders of runs: `python -m profiling.history FOLDER ...`.

The runs of a sweep are points as others are; where it sweeps what changes the work, each value has a series of its own.
Runs are compared where they had the same variants: else the fastest of more would be called a gain.
Needs no torch. Exit code 0: done; 2: a folder holds no runs, or the page could not be written.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from profiling.compare.cells import read_run
from profiling.errors import InputError, prepare_output, printable, reason_of
from profiling.report.answer import answer_of
from profiling.report.cells import conditions_text, median_of, ratio_value
from profiling.report.format import Value, count_of, few
from profiling.report.format import show as shown
from profiling.report.page import Section
from profiling.report.render import Report, check_page_path, parse_options, show
from profiling.report.run_data import RunData
from profiling.report.table import Column, Table
from profiling.results.jsonl import RESULTS_FILE
from profiling.results.judge import Cell, Pair, compare_runs, judged
from profiling.results.overrides import concerns, is_work, recipe_of, setting, swept_keys, values_of
from profiling.results.record import Record
from profiling.results.sweep import is_sweep, read_sweep
from profiling.results.verdicts import cell_of, work_of

#: What stands in the place of a ratio of two runs that had other variants.
_OTHER_VARIANTS = "other variants"


@dataclass(frozen=True)
class HistoryPoint:
    """The fastest correct variant of a component in one run, and how it compares with the runs before it."""

    run: str  # its folder, relative to the folder of all runs
    date: str | None  # when the run began, ISO 8601 in UTC
    revision: str | None  # of the user's code, with + for uncommitted changes; `tool …` where only the tool's is known
    variant: str  # the one with the lowest estimate
    not_slower: str | None  # variants of its run that are the same as this one, or undecided
    p50: Value | None  # of a call, or of a frame of a loop, in ms
    cell: Cell
    variants: frozenset[str]  # all that its run had for the component
    conditions: str | None = None  # under which it was timed
    vs_first: Value | None = None  # time of the first run over this one: above 1 is faster
    vs_previous: Value | None = None


_LEGEND = (
    "A component has a table for each device (of a CPU with its threads), precision and amount of work. git: revision "
    "of your code (+: with uncommitted changes); tool: only this tool's revision is known.",
    "not slower: variants of the run that take the same time (within 1%), or for which that is undecided.",
    "vs first, vs previous: the other run's time over this one's, with the 95% interval; above 1, this run is faster. "
    "Same: within 1%. Undecided: the interval contains 1, or would among so many runs. "
    f"{_OTHER_VARIANTS}: the runs had different ones, and the fastest of more would seem a gain.",
)
#: The points of each title, oldest first. Their times are comparable: same device, same work.
History = Mapping[str, tuple[HistoryPoint, ...]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the history; return the exit code."""
    prepare_output()
    parser = argparse.ArgumentParser(
        prog="python -m profiling.history",
        description="Did the fastest correct variant of each component become faster, from run to run?",
        epilog="exit code: 0 done, 2 a folder has no runs, or the page of --html could not be written",
    )
    what = "a run, a sweep, or a folder that has such anywhere below it"
    parser.add_argument("folders", metavar="FOLDER", type=Path, nargs="+", help=what)
    options = parse_options(parser, arguments)
    try:
        check_page_path(options.html)
        history = read_history(*options.folders)
    except (InputError, OSError) as error:
        print(f"error: {printable(error)}", file=sys.stderr)
        return InputError.exit_code
    runs = {point.run for series in history.values() for point in series}
    heading = [printable(f"{count_of(len(runs), 'run')} in {', '.join(map(str, options.folders))}")]
    return 0 if show(options, Report("history", heading, [_section(history)])) else InputError.exit_code


def read_history(*folders: Path) -> History:
    """Read every run below `folders`; runs without a date come first, by name.

    A run that cannot be read is skipped with a line on stderr. No run in a folder, or none with a correct cell that was
    timed, raises InputError.
    """
    runs: dict[Path, None] = {}
    for folder in folders:
        below = sorted(path.parent for path in folder.rglob(RESULTS_FILE) if path.stat().st_size)
        if not below:
            raise InputError(f"{folder} holds no runs: there is no {RESULTS_FILE} below it. Name a folder of runs.")
        runs |= dict.fromkeys(below)
    top = os.path.commonpath([folder.absolute() for folder in folders])
    swept = _swept({run.parent for run in runs})
    found: dict[str, dict[str | None, list[HistoryPoint]]] = {}  # by title, then by inputs
    for run in runs:
        try:
            loaded = read_run(run)
            points_of_run = _points(loaded, os.path.relpath(run, top), swept.get(run, {}))
        except Exception as error:  # a fault in one run must not hide the others
            print(printable(f"skipped {run}: {reason_of(error)}"), file=sys.stderr)
            continue
        for line in loaded.damage:
            print(printable(f"{run}: {line}"), file=sys.stderr)
        for (title, inputs), point in points_of_run.items():
            found.setdefault(title, {}).setdefault(inputs, []).append(point)
    history: dict[str, list[HistoryPoint]] = {}
    for title, by_inputs in found.items():
        several = len(by_inputs.keys() - {None}) > 1  # records of earlier versions do not have them
        for inputs, points in by_inputs.items():
            history.setdefault(f"{title} · inputs {inputs}" if several and inputs else title, []).extend(points)
    if not history:
        names = ", ".join(map(str, folders))
        raise InputError(f"{names}: none of its {len(runs)} runs has a correct cell with times.")
    longest_first = sorted(history.items(), key=lambda item: -len(item[1]))
    return {title: _ordered(series) for title, series in longest_first}


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
        known = ("dtype", "loop.schedule")  # which stand in the title, and behind the variant
        keys = [key for key in swept_keys(sweep) if key not in known]
        values |= {folder / job.folder: values_of(job, keys) for job in sweep.jobs}
    return values


def _ordered(series: Sequence[HistoryPoint]) -> tuple[HistoryPoint, ...]:
    """Return the points by date, with their ratios to the first and the previous one."""
    points = sorted(series, key=lambda point: (point.date or "", point.run))
    pairs = judged(
        {
            (before, after): compare_runs(points[before].cell, points[after].cell)
            for after in range(1, len(points))
            for before in {0, after - 1}
            if points[before].variants == points[after].variants
        }
    )
    compared = [
        replace(point, vs_first=_versus(pairs.get((0, place))), vs_previous=_versus(pairs.get((place - 1, place))))
        for place, point in enumerate(points)
    ]
    return (points[0], *compared[1:])


def _versus(pair: Pair | None) -> Value | None:
    """Return a ratio, and the answer on it where it is no difference."""
    if pair is None:
        return _OTHER_VARIANTS
    answer, value = pair.answer(), ratio_value(pair)
    return value if answer in ("faster", "slower") or value == answer else f"{answer}: {shown(value, 'ratio')}"


def _points(run: RunData, name: str, swept: Mapping[str, str]) -> dict[tuple[str, str | None], HistoryPoint]:
    """Return the point of each title and inputs: of the correct records with equal work, where one was timed."""
    groups: dict[tuple[str, str | None], list[Record]] = {}
    for record in run.records:
        if cell_of(record) is not None:
            groups.setdefault((_title(run, record, swept), record.inputs), []).append(record)
    return {key: _point(run, group, name, swept) for key, group in groups.items()}


def _title(run: RunData, record: Record, swept: Mapping[str, str]) -> str:
    """Return the title of a series: component, device, dtype, and what a call or frame computes, without the inputs."""
    device = run.environment.device
    parts = [record.component, device and device.name, record.dtype]
    if device is not None and device.type == "cpu" and run.environment.threads is not None:
        parts.append(count_of(run.environment.threads, "thread"))
    parts += [f"{name} {value}" for name, value in work_of(record).items() if value and name != "inputs"]
    parts += [setting(key, value) for key, value in swept.items() if is_work(key) and concerns(key, record)]
    training = run.config.get("training")
    if isinstance(training, Mapping) and training.get("autocast"):
        parts.append(f"autocast {training['autocast']}")  # dtype is that of the weights
    if record.realtime is not None and record.scale is None:  # a recording of a program's own loop
        parts += [Path(word).name for word in shlex.split(run.environment.command or "")[1:2]]
    return " · ".join(filter(None, parts))


def _point(run: RunData, group: Sequence[Record], name: str, swept: Mapping[str, str]) -> HistoryPoint:
    answer = answer_of(group[0].component, group)
    fastest, cell = answer.fastest, None if answer.fastest is None else cell_of(answer.fastest)
    assert fastest is not None, "all of the group were timed"
    assert cell is not None
    not_slower = {kind: answer.named(kind) for kind in ("same", "undecided")}
    return HistoryPoint(
        run=name,
        date=run.environment.captured_at,
        revision=run.environment.revision,
        variant=_recipe(fastest, swept),
        not_slower="; ".join(f"{kind}: {few(names)}" for kind, names in not_slower.items() if names) or None,
        p50=median_of(fastest),
        cell=cell,
        variants=frozenset(
            _recipe(each, swept)
            for each in run.records
            if each.component == fastest.component and each.status != "skipped"
        ),
        conditions=conditions_text(fastest),
    )


def _recipe(record: Record, swept: Mapping[str, str]) -> str:
    """Return the variant, with the schedule of a loop and what the sweep sets of it."""
    schedule = record.realtime and record.realtime.schedule
    name = f"{record.variant} ({schedule})" if schedule else record.variant
    return recipe_of(name, {key: value for key, value in swept.items() if concerns(key, record)})


def _section(history: History) -> Section:
    columns = (
        Column[HistoryPoint]("run", lambda point: point.run),
        Column[HistoryPoint]("began (UTC)", lambda point: point.date and point.date[:16].replace("T", " ")),
        Column[HistoryPoint]("git", lambda point: point.revision),
        Column[HistoryPoint]("fastest correct", lambda point: point.variant, wrap=20),
        Column[HistoryPoint]("not slower", lambda point: point.not_slower, wrap=20),
        Column[HistoryPoint]("p50", lambda point: point.p50, "ms", wrap=8),
        Column[HistoryPoint]("vs first", lambda point: point.vs_first, "ratio", wrap=8),
        Column[HistoryPoint]("vs previous", lambda point: point.vs_previous, "ratio", wrap=8),
        Column[HistoryPoint]("conditions", lambda point: point.conditions, wrap=20),
    )
    tables = [Table(title, columns, series, keys=1) for title, series in history.items()]
    return Section("history", "The fastest correct variant of each run", tables=tables, legend=_LEGEND)


if __name__ == "__main__":
    sys.exit(main())
