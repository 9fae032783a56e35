"""A run's records as the console text, `report.md`, `report.html` and `classic.txt`.

One list of sections is rendered three times; each section, table and chart names the first rendering that shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from profiling.errors import install_hint, printable, python_command
from profiling.report.answer import answer_section, notes_section, status_section
from profiling.report.classic import render_classic
from profiling.report.format import escaped, listed
from profiling.report.graphs import compile_section, file_lines, files_section, graphs_section
from profiling.report.heading import heading_lines, network_section, origin_sections
from profiling.report.latency import distribution_section, latency_section
from profiling.report.launches import launches_section
from profiling.report.memory import memory_section
from profiling.report.page import Section, render_page
from profiling.report.realtime import realtime_section
from profiling.report.roofline import roofline_section
from profiling.report.run_data import RunData, load_run
from profiling.report.sweep import sweep_section
from profiling.report.table import WIDTH, console, fits, markdown, wrapped_line
from profiling.report.trace import trace_section
from profiling.report.training import training_section
from profiling.results.run_folder import write_text

REPORT_FILE, PAGE_FILE, CLASSIC_FILE = "report.md", "report.html", "classic.txt"

_SECTIONS = (
    *(
        answer_section,
        status_section,
        latency_section,
        realtime_section,
        launches_section,
        sweep_section,
        training_section,
    ),
    *(graphs_section, roofline_section, trace_section, memory_section, distribution_section),
    *(compile_section, files_section, notes_section, network_section),
)


def write_report(folder: Path) -> str:
    """Write the run's `report.md`, `report.html` and `classic.txt`, and return the console text.

    Where a file cannot be written, the text ends with a line that says why.

    Raises:
        InputError: the folder holds no results, or results of another schema.

    """
    data = load_run(folder)
    sections = sections_of(data)
    left = [REPORT_FILE, CLASSIC_FILE, PAGE_FILE]
    lost = ""
    try:
        write_text(folder / REPORT_FILE, render_markdown(data, sections))
        left.remove(REPORT_FILE)
        write_text(folder / CLASSIC_FILE, render_classic(data.records) + "\n")
        left.remove(CLASSIC_FILE)
        write_text(folder / PAGE_FILE, render_html(data, sections))
        left.remove(PAGE_FILE)
    except OSError as error:
        cause = error.strerror or type(error).__name__
        again = f"Make room or change the permissions, then: {python_command()} -m profiling.report {folder}"
        lost = f"{listed(left)} could not be written: {cause}. {again}"
    except ModuleNotFoundError as error:
        lost = f"{PAGE_FILE} was not written: {install_hint(error.name)}"
    page = "" if PAGE_FILE in left else f"report: {folder / PAGE_FILE}"
    return "\n".join(filter(None, (render_console(data, sections), page, lost)))


def sections_of(data: RunData) -> tuple[Section, ...]:
    """Return the sections of a run in their order; those that hold nothing are false."""
    return (*(section(data) for section in _SECTIONS), *origin_sections(data))


def render_console(data: RunData, sections: Sequence[Section] | None = None) -> str:
    """Return the console text, 100 columns wide: the answer, failed and skipped cells, details, paths to open."""
    blocks = [[shortened_line(line) for line in heading_lines(data.environment)]]
    for section in sections or sections_of(data):
        if section.depth == "console":
            blocks.append([wrapped_line(line) for line in section.lines])
            for table in (table for table in section.tables if table and table.depth == "console"):
                blocks.append([*([f"{table.title}:", ""] if table.title != section.title else []), console(table)])
    blocks.append([*file_lines(data), f"run: {data.folder}"])
    return "\n\n".join("\n".join(block) for block in blocks if block)


def render_markdown(data: RunData, sections: Sequence[Section] | None = None) -> str:
    """Return `report.md`: the console's text and further tables. It contains no path outside the run."""
    parts = [
        f"## {escaped(_title(data))}",
        _bullets(heading_lines(data.environment)),
    ]
    for section in sections or sections_of(data):
        tables = [table for table in section.tables if table and fits(table.depth, "report")]
        if not fits(section.depth, "report") or not (tables or section.lines or section.legend or section.text):
            continue
        parts += [f"### {escaped(section.title)}", _bullets(section.lines)]
        for table in tables:
            title = "" if table.title == section.title else f"#### {escaped(table.title)}"
            parts += [title, markdown(table)]
        parts += [_bullets(section.legend), _fenced(section.text)]
    return "\n\n".join(part for part in parts if part) + "\n"


def render_html(data: RunData, sections: Sequence[Section] | None = None) -> str:
    """Return the page of a run; it contains no path outside the run."""
    return render_page(_title(data), heading_lines(data.environment), sections or sections_of(data))


def shortened_line(text: str) -> str:
    """Return as many facts of a heading line as the console has room for."""
    parts = text.split(" · ")
    while len(" · ".join(parts)) > WIDTH and len(parts) > 1:
        parts.pop()
    return " · ".join(parts)


def _title(data: RunData) -> str:
    targets = ", ".join(dict.fromkeys(printable(record.target) for record in data.records)) or "profile"
    return f"{targets}: {printable(data.folder.resolve().name)}"


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {escaped(line)}" for line in lines)


def _fenced(text: str) -> str:
    if not text:
        return ""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}bash\n{text}\n{fence}"
