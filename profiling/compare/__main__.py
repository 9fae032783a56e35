"""Compare two runs cell by cell: `python -m profiling.compare A B`. Needs no torch, measures nothing.

With two git revisions or two checkouts in the place of runs, measure them first, in turns.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from profiling.compare.cells import (
    COMPILED_ANEW,
    IN_TURNS,
    PASSED,
    SLOWER,
    TWO_RUNS,
    VERDICTS,
    CellComparison,
    compared_cells,
    exit_code,
    read_run,
)
from profiling.compare.differences import Difference, run_differences
from profiling.errors import INTERRUPTED, InputError, command, prepare_output, printable, reason_of, shell_words
from profiling.report.cells import ratio_value
from profiling.report.format import count_of, few
from profiling.report.page import Section
from profiling.report.render import Report, check_page_path, parse_options, show
from profiling.report.table import Column, Table
from profiling.results.environment import ENVIRONMENT_FILE
from profiling.results.jsonl import RESULTS_FILE
from profiling.results.judge import RESOLUTION
from profiling.results.sweep import is_sweep

_USAGE = """\
%(prog)s [options] A B                  two runs: folders, or files
       %(prog)s [options] A B [KEY=VALUE ...]  two git revisions or checkouts"""
_EXIT_CODES = "exit code: 0 no cell is slower beyond the threshold, 1 a cell is, 2 some are undecided, or wrong input"
_EPILOG = """\
Two revisions
  %(prog)s HEAD~1 HEAD component=[image_decoder]    the last commit
  %(prog)s HEAD . component=[image_decoder]         what is not committed
  %(prog)s main my-branch --config-dir=. component=[my_net] seconds=60
  KEY=VALUE is as in profiling.generic_forward. Each cell of A is timed in turns with the same cell
  of B. Modules, and the YAML files of components and variants, come from each revision. This tool,
  its metrics and the packages are those installed now. Runs: runs/compare/<time>/A and B.

"""
#: Most rows of a table on the console. A comparison of more than `_FITTING` cells omits those that are the same there.
_CONSOLE, _FITTING = 40, 12
_NOTE = "B / A: of calls timed alternately, or in two runs, in all processes; not p50 / p50."
#: How to do what the verdict of two runs may ask for.
_IN_TURNS = (
    "To measure both in turns: python -m profiling.compare REVISION REVISION component=[NAME], of two versions of the "
    "code; one run with variant=[NAME,NAME], or one profiling.profile(…, variants=[…]), of two variants."
)
#: Characters of a value before the console breaks it.
_WRAP = 28
_LEGEND = (
    "B / A: ratio of the times of neighbouring windows, or of all windows of two runs, with its 95% interval; above 1, "
    "B is slower. The interval contains what equal code differs by between processes and between runs.",
    f"same: the whole interval is within {RESOLUTION:.0%}. faster, slower: the ratio is beyond that, and its interval "
    "excludes 1; a chance of 5% that any cell is called so falsely (Holm). The exit code is by --threshold.",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print how B compares with A; return the exit code."""
    prepare_output()
    parser = argparse.ArgumentParser(
        prog="python -m profiling.compare",
        usage=_USAGE,
        description="Did my change help? Compares two runs, or measures two revisions of your code in turns.",
        epilog=f"{_EPILOG}{_EXIT_CODES}.\nIf the report of a measured run cannot be written, the exit code is not 0.\n"
        "If the --html page cannot be written, stderr says so; the exit code stays.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name, role in (("A", "before"), ("B", "after")):
        parser.add_argument(
            name.lower(),
            metavar=name,
            help=f"{role} the change: the folder of a run, its results.jsonl, a git revision, or a checkout",
        )
    parser.add_argument(
        "overrides", metavar="KEY=VALUE", nargs="*", default=[], help="for two revisions: what to measure, and how"
    )
    parser.add_argument(
        "--threshold",
        metavar="FRACTION",
        help=f"largest slowdown with exit code 0 (default: {TWO_RUNS}, which is 5%%; {COMPILED_ANEW} of a cell that "
        f"two runs compiled; of two revisions {IN_TURNS})",
    )
    parser.add_argument(
        "--cells", metavar="GLOB", help="only the cells whose <component>.<variant> matches: '*.compile'"
    )
    parser.add_argument(
        "--config-dir", metavar="DIR", type=Path, help="folder of your component/*.yaml, read from each revision"
    )
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
    threshold = None if options.threshold is None else _fraction(options.threshold)
    check_page_path(options.html)
    folders: tuple[Path, ...] = (Path(options.a), Path(options.b))
    is_reported = True
    if sweep := next(filter(is_sweep, folders), None):
        each = command("-m", "profiling.history", *folders)
        raise InputError(f"{sweep} is a sweep. Name one of its runs, {sweep / '0'} for example; for all runs: {each}")
    if _are_checkouts(options):
        from profiling.compare.measure import measure  # needs torch's environment and Hydra, which reading does not

        try:
            folders, is_reported = measure((options.a, options.b), options.overrides, options.config_dir)
        except OSError as error:
            where = f" {error.filename}" if error.filename else ""
            reason = f"cannot write{where}: {error.strerror or error}"
            raise InputError(f"{reason}. Make room, or choose another folder: hydra.run.dir=FOLDER") from None
    report, code = compare_runs(folders, threshold, options.cells)
    show(options, report)
    return code if is_reported else code or InputError.exit_code


def _are_checkouts(options: argparse.Namespace) -> bool:
    """Return whether the command names two checkouts to measure. Raises InputError for runs with measuring options."""
    if "=" in options.b and not Path(options.b).exists():
        raise InputError(f"B is missing: {options.b} is an option. Name what {options.a} is compared with before it.")
    paths = [Path(options.a), Path(options.b)]
    runs = [path for path in paths if path.is_file() or (path / RESULTS_FILE).is_file()]
    measuring = [*options.overrides[:1], *(["--config-dir"] if options.config_dir else [])]
    if measuring and runs:
        raise InputError(
            f"{runs[0]} is a run. To compare runs, leave {shell_words(measuring[:1])} out; to measure, name two "
            "revisions or checkouts."
        )
    unknown = next((path for path in paths if not path.exists()), None)
    if runs and unknown is not None:
        raise InputError(
            f"{runs[0]} is a run, and {unknown} is none: there is no such folder. Name two runs, or two revisions, "
            "which are then measured."
        )
    return bool(measuring) or not any(path.exists() and not (path / ".git").exists() for path in paths)


def _fraction(text: str) -> float:
    with suppress(ValueError):
        if 0 < (fraction := float(text)) < 1:
            return fraction
    raise InputError(f"--threshold={text} is no number between 0 and 1; 2% is --threshold=0.02.")


def compare_runs(paths: Sequence[Path], threshold: float | None = None, glob: str | None = None) -> tuple[Report, int]:
    """Return the report on two runs, compared cell by cell, and the exit code.

    `threshold`: the largest slowdown that passes, by default each cell's own limit; `glob`: only cells like it count. A
    path that is no run, or has no such cell, raises InputError.
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
    cells = sorted(compared_cells(a, b), key=lambda cell: VERDICTS.index(cell.verdict))
    differences = run_differences(a, b)
    if not differences:
        lines.append("The recorded environments and options of the runs do not differ.")
    numbers = Counter(cell.verdict for cell in cells)
    counts = ", ".join(f"{numbers[verdict]} {verdict}" for verdict in VERDICTS if numbers[verdict])
    alone = {run: [cell.name for cell in cells if cell.reason == f"only in {run}"] for run in "AB"}
    both = [cell for cell in cells if not cell.reason.startswith("only in ")]
    shown = min(_CONSOLE, max(_FITTING, len(both) - numbers["same"]))
    answer = (
        _answer(cells, threshold),
        f"{count_of(len(cells), 'cell')}: {counts}.",
        *(f"Only in {run}: {few(names)}." for run, names in alone.items() if names),
    )
    rows = [("all", each) for each in differences]
    rows += [(cell.name, each) for cell in cells for each in cell.changes]
    changes = Table("What differs", _CHANGES, rows, few=_CONSOLE)
    in_turns = any("in turns" in cell.reason for cell in cells) and not any(each.is_realtime for each in a.records)
    notes = [_NOTE, *([_IN_TURNS] if in_turns else [])]
    sections = (
        Section("verdict", "Cells", answer, _LEGEND, (Table("Cells", _CELLS, both, notes, few=shown),)),
        Section("differences", "What differs", lines, tables=(changes,)),
    )
    one, other = (path.resolve().name for path in paths)
    return Report(printable(f"{other} compared with {one}"), heading, sections), exit_code(cells, threshold)


def _answer(cells: Sequence[CellComparison], threshold: float | None) -> str:
    code, worse = exit_code(cells, threshold), [cell for cell in cells if cell.is_worse(threshold)]
    limits = sorted({cell.limit(threshold) for cell in worse or cells if cell.interval is not None} or {TWO_RUNS})
    limit = " or ".join(f"{100 * each:.4g}%" for each in limits)
    limit = limit if len(limits) == 1 else f"its limit ({limit})"
    compared = sum(cell.verdict != "not compared" for cell in cells)
    number, missing = sum(cell.is_open(threshold) for cell in cells), sum(cell.unmatched for cell in cells)
    undecided = f"Undecided for {number} of {count_of(compared, 'cell')} whether B is slower by more than {limit}"
    if less := sum(cell.is_open(threshold) and cell.verdict == "slower" for cell in cells):
        undecided += f" ({less} of them {'is' if less == 1 else 'are'} slower)"
    lacking = f"B lacks what {count_of(missing, 'cell')} of A can be compared with"
    answer = "; ".join([undecided] * bool(number) + [lacking] * bool(missing))
    if all(cell.verdict == "not compared" for cell in cells):
        different = any(cell.other_work for cell in cells)
        why = "cells of A and B do different work" if different else "no cell was measured, and correct, in both"
        answer = f"Nothing was compared: {why}"
    answer = {
        PASSED: f"No cell of B is slower than A by more than {limit}",
        SLOWER: f"B is slower than A in {count_of(len(worse), 'cell')}: the estimated slowdown is more than {limit}",
    }.get(code, answer)
    return f"{answer} (exit code {code})."


_CELLS = (
    Column[CellComparison]("component", lambda cell: cell.component),
    Column[CellComparison]("variant", lambda cell: cell.variant),
    Column[CellComparison]("A p50", lambda cell: cell.a_ms, "ms"),
    Column[CellComparison]("B p50", lambda cell: cell.b_ms, "ms"),
    Column[CellComparison]("B / A", lambda cell: ratio_value(cell.pair), "ratio"),
    Column[CellComparison]("verdict", lambda cell: ": ".join(filter(None, (cell.verdict, cell.reason))), wrap=_WRAP),
)
_CHANGES = (
    Column[tuple[str, Difference]]("cell", lambda row: row[0], wrap=30),
    Column[tuple[str, Difference]]("what", lambda row: row[1].name, wrap=40),
    Column[tuple[str, Difference]]("A", lambda row: row[1].a, wrap=_WRAP),
    Column[tuple[str, Difference]]("B", lambda row: row[1].b, wrap=_WRAP),
)


if __name__ == "__main__":
    sys.exit(main())
