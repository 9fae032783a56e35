"""Shows a comparison of two runs: the conclusion, the cells, what could explain that.

The console, Markdown and the page have the same tables; the console shows the first rows of long ones. `history` has
the same options and output.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from profiling.compare.cells import (
    PASSED,
    SLOWER,
    VERDICTS,
    CellComparison,
    default_threshold,
    exit_code,
    judged,
    matched_cells,
    read_run,
)
from profiling.compare.differences import Difference, run_differences
from profiling.errors import InputError, install_hint, print_text, printable, reason_of
from profiling.report.format import count_of, estimate
from profiling.report.page import Section
from profiling.report.render import Report
from profiling.report.table import Column, Table
from profiling.results.environment import ENVIRONMENT_FILE
from profiling.results.run_folder import write_text

EXIT_CODES = "exit code: 0 no cell is slower beyond the threshold, 1 a cell is, 2 undecided for some cells"

#: Most rows of a table on the console.
_CONSOLE = 40
#: Characters of a value before the console breaks it.
_WRAP = 28
_LEGEND = (
    "B / A: ratio of the times of neighbouring windows, or of all windows of two runs, with its 95% interval; above 1, "
    "B is slower. The interval contains what equal code differs by between processes and between runs.",
    "same: the whole interval is within the threshold. faster, slower: the ratio is beyond it, and its interval "
    "excludes 1; a chance of 5% that any cell is called so falsely (Holm).",
)


@dataclass(frozen=True)
class Comparison:
    """B compared with A; ratios within 1 ± `threshold` are the same. The cells that matter most come first."""

    title: str
    threshold: float
    heading: Sequence[str]  # a line for each run
    cells: Sequence[CellComparison]
    differences: Sequence[Difference]  # between the environments and options of runs
    lines: Sequence[str]  # what was not read, or is not known

    @property
    def exit_code(self) -> int:
        """0, 1 or 2, as `EXIT_CODES` says."""
        return exit_code(self.cells, self.threshold)


def compare_runs(paths: Sequence[Path], threshold: float | None = None, glob: str | None = None) -> Comparison:
    """Compare two runs cell by cell; without a `threshold` by `default_threshold`, with a `glob` only cells like it.

    Raises:
        InputError: one of them is no run, or has no such cell.

    """
    a, b = (read_run(path, glob) for path in paths)
    heading, lines = [], []
    for letter, path, run in zip("AB", paths, (a, b), strict=True):
        device = run.environment.device
        facts = [str(path), device and device.name, run.environment.captured_at]
        heading.append(printable(f"{letter}: {' · '.join(filter(None, facts))}"))
        lines += [f"{letter}: {line}." for line in run.damage]
        if not run.environment.is_known:
            unknown = "differences in machine, versions and code are unknown"
            lines.append(f"{letter} has no readable {ENVIRONMENT_FILE}: {unknown}.")
    matched, differences = list(matched_cells(a, b)), run_differences(a, b)
    threshold = default_threshold(matched) if threshold is None else threshold
    cells = sorted(judged(matched, threshold), key=lambda cell: VERDICTS.index(cell.verdict))
    if not differences:
        lines.append("The recorded environments and options of the runs do not differ.")
    one, other = (path.resolve().name for path in paths)
    return Comparison(printable(f"{other} compared with {one}"), threshold, heading, cells, differences, lines)


def report_of(comparison: Comparison) -> Report:
    """Return the conclusion with the cells, then what differs."""
    cells = Table("Cells", _CELLS, comparison.cells, few=_CONSOLE)
    rows = [("all", each) for each in comparison.differences]
    rows += [(cell.name, each) for cell in comparison.cells for each in cell.changes]
    changes = Table("What differs", _CHANGES, rows, few=_CONSOLE)
    numbers = Counter(cell.verdict for cell in comparison.cells)
    counts = ", ".join(f"{numbers[verdict]} {verdict}" for verdict in VERDICTS if numbers[verdict])
    answer = (_answer(comparison), f"{count_of(len(comparison.cells), 'cell')}: {counts}.")
    sections = (
        Section("verdict", "Cells", answer, _LEGEND, (cells,)),
        Section("differences", "What differs", comparison.lines, tables=(changes,)),
    )
    return Report(comparison.title, comparison.heading, sections)


def _answer(comparison: Comparison) -> str:
    """Return the conclusion with the exit code."""
    cells, code, limit = comparison.cells, comparison.exit_code, f"{100 * comparison.threshold:.4g}%"
    slower = sum(cell.verdict == "slower" for cell in cells)
    compared = sum(cell.verdict != "not compared" or cell.unmatched for cell in cells)
    number = sum(cell.is_open(comparison.threshold) for cell in cells)
    answer = f"Undecided for {number} of {count_of(compared, 'cell')} whether B is slower by more than {limit}"
    if all(cell.verdict == "not compared" for cell in cells):
        answer = "Nothing was compared: no cell was measured, and correct, in both"
    answer = {
        PASSED: f"No cell of B is slower than A by more than {limit}",
        SLOWER: f"B is slower than A by more than {limit} in {count_of(slower, 'cell')}",
    }.get(code, answer)
    return f"{answer} (exit code {code})."


_CELLS = (
    Column[CellComparison]("component", lambda cell: cell.component),
    Column[CellComparison]("variant", lambda cell: cell.variant),
    Column[CellComparison]("A p50", lambda cell: cell.a_ms, "ms"),
    Column[CellComparison]("B p50", lambda cell: cell.b_ms, "ms"),
    Column[CellComparison]("B / A", lambda cell: cell.pair and estimate(cell.pair.ratio, cell.interval), "number"),
    Column[CellComparison]("verdict", lambda cell: ": ".join(filter(None, (cell.verdict, cell.reason))), wrap=_WRAP),
)
_CHANGES = (
    Column[tuple[str, Difference]]("cell", lambda row: row[0], wrap=30),
    Column[tuple[str, Difference]]("what", lambda row: row[1].name, wrap=40),
    Column[tuple[str, Difference]]("A", lambda row: row[1].a, wrap=_WRAP),
    Column[tuple[str, Difference]]("B", lambda row: row[1].b, wrap=_WRAP),
)


def parse_options(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Add the options that `compare` and `history` share to `parser`, and parse the command line."""
    parser.add_argument("--markdown", action="store_true", help="print tables as Markdown, for a pull request")
    parser.add_argument("--html", metavar="FILE", type=Path, help="also write a page with all rows (name it *.html)")
    return parser.parse_intermixed_args(arguments)  # options may stand between and after the others


def check_page_path(path: Path | None) -> None:
    """Refuse a path that no page can be written to, before anything is read: it must not replace records.

    Raises:
        InputError: it does not end in .html, it is a folder, or its folder is missing.

    """
    if path is not None and (path.suffix != ".html" or path.is_dir() or not path.parent.is_dir()):
        raise InputError(f"--html {path}: name a file that ends in .html, in a folder that exists.")


def show(options: argparse.Namespace, report: Report) -> bool:
    """Print the report, and write its page where --html asks for it, whole or not at all.

    Says on stderr where the page is, or why it was not written (False).
    """
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
