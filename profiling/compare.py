"""Compare two runs, cell by cell: `python -m profiling.compare A B`. Needs no torch, measures nothing.

Exit code 0: no cell of B is slower by more than the threshold; 1: one is; 2: they cannot be compared.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from profiling.comparison.compared import Comparison
from profiling.comparison.edge import read_options, unforeseen
from profiling.comparison.judgement import exit_code, judge
from profiling.comparison.page_file import LostPageError, checked_file, write_page
from profiling.comparison.side import read_side
from profiling.comparison.text import render
from profiling.comparison.words import EXIT_CODES
from profiling.errors import InputError


def main(arguments: Sequence[str] | None = None) -> int:
    """Print how B compares with A; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m profiling.compare",
        description="Compare two runs, cell by cell.",
        epilog=f"{EXIT_CODES}; a page that could not be written is told on stderr and changes no exit code",
    )
    for name, what in (("A", "what B is held against"), ("B", "what is judged")):
        where = f"{what}: a run's folder, or a file like its results.jsonl"
        parser.add_argument(name.lower(), metavar=name, type=Path, help=where)
    parser.add_argument(
        "--threshold", type=float, default=0.02, help="how far apart is still the same, as a part of A (default 0.02)"
    )
    parser.add_argument("--cells", metavar="GLOB", help="only cells <component>.<variant> that match, 'world_model.*'")
    chosen = read_options(parser, arguments)
    try:
        return _compare(chosen)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return InputError.exit_code
    except Exception as error:  # a traceback would end with 1, which says that a cell is slower
        what = f"{chosen.a} and {chosen.b} cannot be compared: {unforeseen(error)}"
        print(f"error: {what}. Leave the cell out with --cells, or repeat the run.", file=sys.stderr)
        return InputError.exit_code


def _compare(chosen: argparse.Namespace) -> int:
    if not 0 < chosen.threshold < 1:
        raise InputError(f"--threshold {chosen.threshold}: a part of A above 0 and below 1; 0.02 is 2%.")
    file = checked_file(chosen.html) if chosen.html else None
    a, b = (read_side(path, chosen.cells) for path in (chosen.a, chosen.b))
    comparison = Comparison(a, b, judge(a, b, chosen.threshold), chosen.threshold)
    print(render(comparison, markdown=chosen.markdown))
    if file:
        _write_page(comparison, file)
    return exit_code(comparison.cells, chosen.threshold)


def _write_page(comparison: Comparison, file: Path) -> None:
    """Write the page and say so on stderr: what is printed goes into pull requests as it is."""
    try:
        print(write_page(file, partial(_page, comparison)), file=sys.stderr)
    except LostPageError as error:  # whoever asked is told, and the exit code goes on to say how B compares
        print(f"error: {error}", file=sys.stderr)


def _page(comparison: Comparison) -> str:
    # The text needs neither jinja2 nor plotly.
    from profiling.comparison.html.comparison_page import render_comparison

    return render_comparison(comparison)


if __name__ == "__main__":
    sys.exit(main())
