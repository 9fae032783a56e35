"""A run's records as the console text, `report.md` and `report.html`.

One list of sections is rendered three times; each section, table and chart names the first rendering that shows it.
A section that cannot be rendered is a line that says so: see `built`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from shutil import get_terminal_size
from typing import NamedTuple, TypeVar

from profiling.errors import InputError, command, install_hint, print_text, printable, reason_of
from profiling.report.answer import answer_section, notes_section, status_section
from profiling.report.cells import cells_section
from profiling.report.format import count_of, escaped, few, listed, named_once
from profiling.report.heading import heading_lines, origin_sections
from profiling.report.latency import latency_section
from profiling.report.page import PAGE_FILE, Section, render_page
from profiling.report.realtime import realtime_section
from profiling.report.recipes import recipes_section
from profiling.report.roofline import roofline_section
from profiling.report.run_data import RunData, load_run
from profiling.report.table import WIDTH, Column, Depth, Table, console, fits, markdown, wrapped_line
from profiling.report.targets import check_section, launches_section, shape_sweep_section, starts_section
from profiling.report.time_split import time_charts
from profiling.report.trace import trace_section
from profiling.report.tune import tune_section
from profiling.results.record import Record
from profiling.results.run_folder import write_text

REPORT_FILE = "report.md"


def _answer_section(data: RunData) -> Section:
    return replace(answer_section(data), charts=time_charts(data))


def skipped_section(data: RunData) -> Section:
    """Return a line with the number of skipped cells and the most frequent reason, and a table of all reasons."""
    reasons = named_once((each, each.reason or "no reason") for each in data.records if each.status == "skipped")
    if not reasons:
        return Section("skipped", "Skipped")
    reasons = dict(sorted(reasons.items(), key=lambda item: -len(item[1])))
    first, variants = next(iter(reasons)), {record.variant: None for record in next(iter(reasons.values()))}
    more = f" and for {count_of(len(reasons) - 1, 'more reason')}" if len(reasons) > 1 else ""
    number = count_of(sum(map(len, reasons.values())), "cell")
    columns = (
        Column[tuple[str, list[Record]]]("reason", lambda row: row[0], wrap=50),
        Column[tuple[str, list[Record]]]("cells", lambda row: ", ".join(each.name for each in row[1]), wrap=50),
    )
    table = Table("Skipped cells", columns, [*reasons.items()], keys=1, depth="report")
    line = printable(f"{number} skipped: {few([*variants])} ({first}){more}")
    return Section("skipped", "Skipped", (line,), tables=(table,))


#: The sections of a run in their order. `Section.depth` decides whether the console shows one.
_SECTIONS = (
    _answer_section,
    tune_section,  # the winner is what a search is for
    status_section,
    skipped_section,
    check_section,
    realtime_section,
    launches_section,
    shape_sweep_section,
    starts_section,
    cells_section,
    latency_section,
    recipes_section,
    roofline_section,
    trace_section,
    notes_section,
    origin_sections,
)
Data = TypeVar("Data")


class Printed(NamedTuple):
    """The console text of a report, and whether its files were written; if not, its last line says why."""

    text: str
    is_written: bool

    @property
    def failure(self) -> str:
        """Why a file was not written, and what to type next, in one line; "" if all were."""
        return "" if self.is_written else self.text.splitlines()[-1]


class Report(NamedTuple):
    """What all renderings show: a title, lines on the origin of the numbers, and sections, the answer first.

    `places` are the lines with the folders that can be opened, which only the console prints.
    """

    title: str
    heading: Sequence[str]
    sections: Sequence[Section]
    places: str = ""

    def console(self, depth: Depth = "console") -> str:
        """Return the first section, then the heading, the other sections that `depth` shows, and the places."""
        shown = [section_text(section, depth) for section in self.sections if fits(section.depth, depth)]
        lead, *rest = [text for text in shown if text] or [""]
        return "\n\n".join(filter(None, (lead, "\n".join(map(wrapped_line, self.heading)), *rest, self.places)))

    def markdown(self) -> str:
        """Return `report.md`: the first section, then the heading and the others."""
        shown = [text for section in self.sections if (text := _section_markdown(section))]
        parts = (f"## {escaped(self.title)}", *shown[:1], _bullets(self.heading), *shown[1:])
        return "\n\n".join(filter(None, parts)) + "\n"

    def page(self) -> str:
        """Return `report.html`."""
        return render_page(self.title, self.heading, self.sections)

    def written(self, folder: Path, depth: Depth = "console") -> Printed:
        """Write the files into the folder, the page last; return the console text with its path, or why not."""
        text = self.console(depth)
        files = {REPORT_FILE: self.markdown, PAGE_FILE: self.page}
        left = list(files)
        try:
            for name, render in files.items():
                write_text(folder / name, render())
                left.remove(name)
        except ModuleNotFoundError as error:
            return Printed(f"{text}\n{PAGE_FILE} was not written: {install_hint(error.name)}", is_written=True)
        except OSError as error:
            cause = error.strerror or type(error).__name__
            again = f"Make room or change the permissions, then: {command('-m', 'profiling.report', folder)}"
            return Printed(f"{text}\n{listed(left)} could not be written: {cause}. {again}", is_written=False)
        except Exception as error:  # the text is there, and the records are whole
            return Printed(f"{text}\n{listed(left)} could not be written: {reason_of(error)}", is_written=False)
        return Printed(f"{text}\nreport: {printable(folder / PAGE_FILE)}", is_written=True)


def write_report(folder: Path, *, details: bool = False) -> Printed:
    """Write the run's `report.md` and `report.html`, and return the console text.

    Without `details` that has the answer, a line for each cell, and what needs saying. No results, or results of
    another schema, raise InputError.
    """
    return run_report(load_run(folder)).written(folder, "report" if details else "console")


def _places(folder: Path) -> str:
    others = {"traces, for Perfetto": folder / "traces", "compile reports, of tlparse": folder / "tl_out"}
    found = {"run": folder} | {name: place for name, place in others.items() if place.is_dir()}
    return "\n".join(f"{name}: {printable(place)}" for name, place in found.items())


def built(build: Callable[[Data], Section | tuple[Section, ...]], data: Data) -> tuple[Section, ...]:
    """Return the sections that `build` makes of a run or a sweep; if it raises, a line that says so in their place."""
    try:
        made = build(data)
        sections = made if isinstance(made, tuple) else (made,)
        for table in (table for section in sections for table in section.tables):
            table.shown()  # reads its values
    except Exception as error:  # what one section trips on must not hide the others
        name = build.__name__.strip("_").rpartition("_")[0]
        line = f"{name}: cannot be rendered, but is in the results: {reason_of(error)}"
        return (Section(name, name.capitalize(), (line,)),)
    return sections


def run_report(data: RunData) -> Report:
    """Return the report of a run. Neither `report.md` nor the page names a path outside the run's folder."""
    targets = ", ".join(dict.fromkeys(printable(record.target) for record in data.records)) or "profile"
    title = f"{targets}: {printable(data.folder.resolve().name)}"
    sections = tuple(section for build in _SECTIONS for section in built(build, data))
    return Report(title, heading_lines(data), sections, _places(data.folder))


def section_text(section: Section, depth: Depth = "console") -> str:
    """Return the text of a section for a terminal: its tables under their titles, and its lines."""
    width = max(WIDTH, get_terminal_size((WIDTH, 24)).columns)
    lines = "\n".join(wrapped_line(line, width) for line in section.lines)
    texts = []
    for table in section.tables:
        if fits(table.depth, depth) and (text := console(table, width, depth)):
            texts += [text] if table.title == section.title else [f"{table.title}:", text]
    return "\n\n".join(filter(None, (*texts, lines) if section.leads else (lines, *texts)))


def _section_markdown(section: Section) -> str:
    tables = [table for table in section.tables if table and fits(table.depth, "report")]
    if not fits(section.depth, "report") or not (tables or section.lines or section.text):
        return ""
    lines, texts = _bullets(section.lines), []
    for table in tables:
        texts += ["" if table.title == section.title else f"#### {escaped(table.title)}", markdown(table)]
    parts = (*texts, lines) if section.leads else (lines, *texts)
    whole = (f"### {escaped(section.title)}", *parts, _bullets(section.legend), _fenced(section.text))
    return "\n\n".join(part for part in whole if part)


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {escaped(line)}" for line in lines)


def _fenced(text: str) -> str:
    if not text:
        return ""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}bash\n{text}\n{fence}"


def parse_options(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Add the options of `show` to `parser`, and parse the command line of a target that only prints a report."""
    parser.add_argument("--markdown", action="store_true", help="print tables as Markdown, for a pull request")
    parser.add_argument("--html", metavar="FILE", type=Path, help="also write a page with all rows (name it *.html)")
    return parser.parse_intermixed_args(arguments)  # options may stand between and after the others


def check_page_path(path: Path | None) -> None:
    """Raise an InputError where no page can be written to a path, before anything is read: records must stay."""
    if path is not None and (path.suffix != ".html" or path.is_dir() or not path.parent.is_dir()):
        raise InputError(f"--html {path}: name a file that ends in .html, in a folder that exists.")


def show(options: argparse.Namespace, report: Report) -> bool:
    """Print the report, and write its page where --html asks for it; stderr says where it is, or why not (False)."""
    print_text(report.markdown() if options.markdown else report.console())
    path: Path | None = options.html
    if path is None:
        return True
    try:
        write_text(path, report.page())
    except Exception as error:  # a fault of the page must not turn the printed result into a traceback
        missing = isinstance(error, ModuleNotFoundError)
        reason = install_hint(error.name) if missing else reason_of(error)
        print(f"error: {printable(f'{path} was not written: {reason}')}", file=sys.stderr)
        return False
    print(f"open in a browser: {printable(path)}", file=sys.stderr)
    return True
