"""A run's records as the console text, `report.md`, `report.html` and `classic.txt`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from profiling.reporting.classic import render_classic
from profiling.reporting.detail_tables import detail_tables
from profiling.reporting.details import artefacts, causes, legend, networks, notes
from profiling.reporting.facts import is_realtime
from profiling.reporting.format import escaped, listed, one_line
from profiling.reporting.heading import command_line, environment_lines, read_environment
from profiling.reporting.html import HTML_FILE
from profiling.reporting.inside import inside_lines, inside_tables
from profiling.reporting.own_tables import own_tables
from profiling.reporting.plots import draw_plots, plot_links
from profiling.reporting.realtime_verdict import realtime_verdicts
from profiling.reporting.realtime_words import realtime_legend, realtime_lines
from profiling.reporting.sweep import sweep_legend
from profiling.reporting.table import render_table
from profiling.reporting.verdict import verdicts
from profiling.results.records import Record, read_records

REPORT_FILE = "report.md"
CLASSIC_FILE = "classic.txt"

#: Lines a kind and cell of what the compiler reported; the rest stands in `report.md`.
CONSOLE_LINES = 8


def write_report(run: Path) -> str:
    """Write the run's `report.md`, `report.html`, `classic.txt` and plots, and return the console text.

    A folder that can't be written to costs a line of the text and nothing else.

    Raises:
        InputError: the folder holds no results, or results of another schema.

    """
    records = read_records(run)
    environment = read_environment(run)
    text = render_console(records, environment, run)
    plots: tuple[str, ...] = ()
    left = [REPORT_FILE, CLASSIC_FILE, HTML_FILE]
    try:
        plots = draw_plots(records, run)
        _write(run / REPORT_FILE, render_markdown(records, environment, run))
        left.remove(REPORT_FILE)
        _write(run / CLASSIC_FILE, render_classic(records) + "\n")
        left.remove(CLASSIC_FILE)
        page = _page(records, environment, run)
    except OSError as error:
        cause = error.strerror or type(error).__name__
        again = f"Make room or change the permissions, then: python -m profiling.report {run}"
        return "\n".join((text, *plots, f"{listed(left)} could not be rewritten: {cause}. {again}"))
    return "\n".join((text, page, *plots))


def _page(records: Sequence[Record], environment: Mapping[str, Any], run: Path) -> str:
    """Write `report.html` and return the line that says where it is; a run must not be lost for want of a chart."""
    try:
        from profiling.reporting.html.page import render_html
    except ModuleNotFoundError as error:
        return f"{HTML_FILE} was not written: {error.name} is not installed. pip install {error.name}"
    _write(run / HTML_FILE, render_html(records, environment, run))
    return f"open in a browser: {run / HTML_FILE}"


def render_console(records: Sequence[Record], environment: Mapping[str, Any], run: Path) -> str:
    """Return what a terminal shows: the table, what went wrong, the verdicts, and where to look further."""
    cells = [record for record in records if not record.launches]
    timed = [record for record in cells if not is_realtime(record)]
    blocks = [
        list(environment_lines(environment)),
        [render_table(timed)] if timed or not records else [],
        list(legend(cells)) if cells else [],
        *([f"{title}:", "", table] for title, table in own_tables(records, markdown=False)),
        list(sweep_legend(records)),
        list(realtime_legend(records)),
        list(realtime_lines(records)),
        [*causes(records, run), *notes(records)],
        [*realtime_verdicts(records), *verdicts(timed)],
        list(inside_lines(records)),
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
        *(_titled(escaped(title), table) for title, table in own_tables(records, markdown=True)),
        "\n".join(f"{escaped(line)}  " for line in sweep_legend(records)),
        "\n".join(f"{escaped(line)}  " for line in realtime_legend(records)),
        _titled("Over the frames", _bullets(realtime_lines(records))),
        *plot_links(run),
        _titled("Verdict", _bullets([*realtime_verdicts(records), *verdicts(timed)])),
        _titled("Not ok", _bullets(causes(records, run))),
        _titled("Notes", _bullets(notes(records))),
        _titled("Networks", _bullets(networks(cells))),
        _titled("Inside a call", _bullets(inside_lines(records))),
        *(_titled(title, table) for title, table in (*inside_tables(records, environment), *detail_tables(records))),
        _titled("To look into (paths are relative to the run)", _bullets(artefacts(records))),
        _titled("Command", _fenced(command_line(environment))),
    ]
    return "\n\n".join(section.rstrip() for section in sections if section) + "\n"


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
