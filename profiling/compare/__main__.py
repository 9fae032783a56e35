"""Compare two runs cell by cell: `python -m profiling.compare A B`. Needs no torch, measures nothing.

With two git revisions or two checkouts in the place of runs, measure them first, in turns.

Exit code 0: no cell of B is slower than in A by more than the threshold; 1: a cell is; 2: undecided for some;
130: interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from profiling.compare.cells import IN_TURNS, TWO_RUNS
from profiling.compare.output import (
    EXIT_CODES,
    check_page_path,
    compare_runs,
    parse_options,
    report_of,
    show,
)
from profiling.errors import InputError, command, prepare_output, printable, reason_of, shell_words
from profiling.results.jsonl import RESULTS_FILE
from profiling.results.sweep import is_sweep

INTERRUPTED = 130
_USAGE = """\
%(prog)s [options] A B                  two runs: folders, or files
       %(prog)s [options] A B [KEY=VALUE ...]  two git revisions or checkouts"""
_EPILOG = """\
Two revisions
  %(prog)s HEAD~1 HEAD component=[image_decoder]    the last commit
  %(prog)s HEAD . component=[image_decoder]         what is not committed
  %(prog)s main my-branch --config-dir=. component=[my_net] seconds=60
  KEY=VALUE is as in profiling.generic_forward. Each cell of A takes turns with its like of B.
  Modules, and the YAML files of components and variants, come from each revision; this tool, its
  metrics and the installed packages are the present ones. Runs: runs/compare/<time>/A and B.

"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print how B compares with A; return the exit code."""
    prepare_output()
    parser = argparse.ArgumentParser(
        prog="python -m profiling.compare",
        usage=_USAGE,
        description="Compare two runs cell by cell; or measure two revisions of your code in turns and compare them.",
        epilog=f"{_EPILOG}{EXIT_CODES};\na page that cannot be written is an error on stderr and changes no exit code",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name, role in (("A", "the run that B is compared with"), ("B", "the run that is judged")):
        parser.add_argument(name.lower(), metavar=name, help=f"{role}: its folder, a file of records, or a revision")
    parser.add_argument(
        "overrides", metavar="KEY=VALUE", nargs="*", default=[], help="what to measure of two revisions, and how"
    )
    parser.add_argument(
        "--threshold",
        metavar="FRACTION",
        type=float,
        help=f"largest change that is the same ({TWO_RUNS}: 5%%; {IN_TURNS} where the cells took turns)",
    )
    parser.add_argument("--cells", metavar="GLOB", help="only cells <component>.<variant> that match: '*.compile'")
    parser.add_argument("--config-dir", metavar="DIR", type=Path, help="your component/*.yaml, from each revision")
    options = parse_options(parser, arguments)
    try:
        return _compare(options)
    except KeyboardInterrupt:
        return INTERRUPTED
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
    except Exception as error:  # a traceback would end with exit code 1, which means slower
        failure = f"{options.a} and {options.b} cannot be compared: {reason_of(error)}"
        print(f"error: {printable(failure)}. Leave the cell out with --cells, or repeat the run.", file=sys.stderr)
    return InputError.exit_code


def _compare(options: argparse.Namespace) -> int:
    if options.threshold is not None and not 0 < options.threshold < 1:
        raise InputError(f"--threshold {options.threshold} must be between 0 and 1; 0.02 is 2%.")
    check_page_path(options.html)
    folders: tuple[Path, ...] = (Path(options.a), Path(options.b))
    if sweep := next(filter(is_sweep, folders), None):
        each = command("-m", "profiling.history", *folders)
        raise InputError(f"{sweep} is a sweep. Name one of its runs, {sweep / '0'} for example; for all runs: {each}")
    if _are_checkouts(options):
        from profiling.compare.measure import measure  # needs torch's environment and Hydra, which reading does not

        folders = measure((options.a, options.b), options.overrides, options.config_dir)
    comparison = compare_runs(folders, options.threshold, options.cells)
    show(options, report_of(comparison))
    return comparison.exit_code


def _are_checkouts(options: argparse.Namespace) -> bool:
    """Return whether the command names two checkouts to measure.

    Raises:
        InputError: it names a run, and options for measuring.

    """
    paths = [Path(options.a), Path(options.b)]
    runs = [path for path in paths if path.is_file() or (path / RESULTS_FILE).is_file()]
    measuring = [*options.overrides[:1], *(["--config-dir"] if options.config_dir else [])]
    if measuring and runs:
        raise InputError(
            f"{runs[0]} is a run. To compare runs, leave {shell_words(measuring[:1])} out; to measure, name two "
            "revisions or checkouts."
        )
    return bool(measuring) or not any(path.exists() and not (path / ".git").exists() for path in paths)


if __name__ == "__main__":
    sys.exit(main())
