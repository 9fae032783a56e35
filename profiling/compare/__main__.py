"""Compare two runs, cell by cell: `python -m profiling.compare A B`. Needs no torch, measures nothing.

Exit code 0: no cell of B is slower than in A by more than the threshold; 1: a cell is; 2: cannot tell of every cell.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from profiling.compare.command import check_page_path, describe_error, parse_options, write_page
from profiling.compare.loaded_run import read_run
from profiling.compare.output import EXIT_CODES, Comparison, comparison_page, comparison_text
from profiling.errors import InputError, prepare_output, print_text, printable


def main(arguments: Sequence[str] | None = None) -> int:
    """Print how B compares with A; return the exit code."""
    prepare_output()
    parser = argparse.ArgumentParser(
        prog="python -m profiling.compare",
        description="Compare two runs, cell by cell.",
        epilog=f"{EXIT_CODES}; a page that cannot be written is an error on stderr and changes no exit code",
    )
    for name, role in (("A", "the run that B is compared with"), ("B", "the run that is judged")):
        parser.add_argument(
            name.lower(), metavar=name, type=Path, help=f"{role}: its folder, or a file like its results.jsonl"
        )
    parser.add_argument(
        "--threshold", metavar="FRACTION", type=float, default=0.02, help="largest change that is the same (0.02: 2%%)"
    )
    parser.add_argument("--cells", metavar="GLOB", help="only cells <component>.<variant> that match: '*.compile'")
    options = parse_options(parser, arguments)
    try:
        return _compare(options)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
    except Exception as error:  # a traceback would end with exit code 1, which means slower
        failure = f"{options.a} and {options.b} cannot be compared: {describe_error(error)}"
        print(f"error: {printable(failure)}. Leave the cell out with --cells, or repeat the run.", file=sys.stderr)
    return InputError.exit_code


def _compare(options: argparse.Namespace) -> int:
    if not 0 < options.threshold < 1:
        raise InputError(f"--threshold {options.threshold} must be between 0 and 1; 0.02 is 2%.")
    if options.html:
        check_page_path(options.html)
    a, b = (read_run(path, options.cells) for path in (options.a, options.b))
    comparison = Comparison(a, b, options.threshold)
    text = comparison_text(comparison, as_markdown=options.markdown)
    print_text(text)
    if options.html:
        write_page(options.html, lambda: comparison_page(comparison))
    return comparison.exit_code


if __name__ == "__main__":
    sys.exit(main())
