"""A run's records as the console text, `report.md` and `classic.txt`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from profiling.core.records import Record, read_records
from profiling.reporting.classic import render_classic
from profiling.reporting.detail_tables import detail_tables
from profiling.reporting.details import artefacts, causes, legend, networks, notes
from profiling.reporting.drift import drift_tables
from profiling.reporting.facts import is_realtime
from profiling.reporting.format import escaped, one_line
from profiling.reporting.graphs import graph_tables
from profiling.reporting.grid import Titled
from profiling.reporting.heading import command_line, environment_lines, read_environment
from profiling.reporting.launches import render_launches
from profiling.reporting.plots import draw_plots, plot_links
from profiling.reporting.realtime import realtime_tables
from profiling.reporting.realtime_verdict import realtime_verdicts
from profiling.reporting.realtime_words import realtime_legend, realtime_lines
from profiling.reporting.sweep import sweep_legend, sweep_tables
from profiling.reporting.table import render_table
from profiling.reporting.training import training_tables
from profiling.reporting.verdict import verdicts

REPORT_FILE = "report.md"
CLASSIC_FILE = "classic.txt"

#: Lines a kind and cell of what the compiler reported; the rest stands in `report.md`.
CONSOLE_LINES = 8


def write_report(run: Path) -> str:
    """Write the run's `report.md`, `classic.txt` and plots, and return the console text.

    A folder that can't be written to costs a line of the text and nothing else.

    Raises:
        InputError: the folder holds no results, or results of another schema.

    """
    records = read_records(run)
    environment = read_environment(run)
    text = render_console(records, environment, run)
    try:
        text = "\n".join((text, *draw_plots(records, run)))
        _write(run / REPORT_FILE, render_markdown(records, environment, run))
        _write(run / CLASSIC_FILE, render_classic(records) + "\n")
    except OSError as error:
        cause = error.strerror or type(error).__name__
        return f"{text}\n{REPORT_FILE} and {CLASSIC_FILE} could not be rewritten: {cause}."
    return text


def render_console(records: Sequence[Record], environment: Mapping[str, Any], run: Path) -> str:
    """Return what a terminal shows: the table, what went wrong, the verdicts, and where to look further."""
    cells = [record for record in records if not record.launches]
    timed = [record for record in cells if not is_realtime(record)]
    blocks = [
        list(environment_lines(environment)),
        [render_table(timed)] if timed or not records else [],
        list(legend(cells)) if cells else [],
        *([f"{title}:", "", table] for title, table in _own_tables(records, markdown=False)),
        list(sweep_legend(records)),
        list(realtime_legend(records)),
        list(realtime_lines(records)),
        [*causes(records, run), *notes(records)],
        [*realtime_verdicts(records), *verdicts(timed)],
        list(networks(cells)),
        list(artefacts(records, root=f"{run}/", most=CONSOLE_LINES)),
        [f"run: {run}"],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def render_markdown(records: Sequence[Record], environment: Mapping[str, Any], run: Path) -> str:
    """Return `report.md`: what the console shows, and the tables it has no room for. No path outside the run."""
    cells = [record for record in records if not record.launches]
    timed = [record for record in cells if not is_realtime(record)]
    targets = ", ".join(dict.fromkeys(record.target for record in records)) or "profile"
    sections = [
        f"## {escaped(targets)}: {escaped(run.resolve().name)}",
        _bullets(environment_lines(environment)),
        render_table(timed, markdown=True) if timed or not records else "",
        # The legend shows what is struck out by striking it out, so it is not escaped.
        "\n".join(f"{line}  " for line in legend(cells)) if cells else "",
        *(_titled(escaped(title), table) for title, table in _own_tables(records, markdown=True)),
        "\n".join(f"{escaped(line)}  " for line in sweep_legend(records)),
        "\n".join(f"{escaped(line)}  " for line in realtime_legend(records)),
        _titled("Over the frames", _bullets(realtime_lines(records))),
        *plot_links(run),
        _titled("Verdict", _bullets([*realtime_verdicts(records), *verdicts(timed)])),
        _titled("Not ok", _bullets(causes(records, run))),
        _titled("Notes", _bullets(notes(records))),
        _titled("Networks", _bullets(networks(cells))),
        *(_titled(title, table) for title, table in detail_tables(records)),
        _titled("To look into (paths are relative to the run)", _bullets(artefacts(records))),
        _titled("Command", _fenced(command_line(environment))),
    ]
    return "\n\n".join(section.rstrip() for section in sections if section) + "\n"


def _own_tables(records: Sequence[Record], *, markdown: bool) -> tuple[Titled, ...]:
    """Return the tables of what only some targets and variants measure."""
    launches = [("What a launch costs", render_launches(r.launches, markdown=markdown)) for r in records if r.launches]
    tables = (realtime_tables, sweep_tables, graph_tables, training_tables, drift_tables)
    return (*launches, *(titled for made in tables for titled in made(records, markdown=markdown)))


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {escaped(line)}" for line in lines)


def _titled(title: str, body: str) -> str:
    return f"### {title}\n\n{body}" if body else ""


def _fenced(command: str | None) -> str:
    if command is None:
        return ""
    fence = "```"
    while fence in command:
        fence += "`"
    return f"{fence}bash\n{one_line(command)}\n{fence}"


def _write(path: Path, text: str) -> None:
    """Replace the file at once: a reader, or a crash, never sees half of it."""
    new = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        new.write_text(text, encoding="utf-8")
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
