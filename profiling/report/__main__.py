"""Render a run or a sweep from its records: `python -m profiling.report RUN`. Needs no torch, measures nothing."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from profiling.errors import InputError, prepare_output, print_text, printable
from profiling.report.export import as_csv, as_json, as_junit
from profiling.report.render import Printed, run_report
from profiling.report.run_data import load_run
from profiling.report.sweep import load_sweep, sweep_csv, sweep_json, sweep_report
from profiling.results.sweep import is_sweep

_FORMATS = ("table", "markdown", "json", "csv", "junit")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report of a run or a sweep and rewrite its files; return 0, 1 or 2, as `--help` says."""
    prepare_output()
    parser = argparse.ArgumentParser(
        prog="python -m profiling.report",
        description="Print a run again and rewrite its report.md and report.html. For a sweep, even while it runs, "
        "write one report.md and report.html over all of its runs.",
        epilog="exit code: 0 done, 1 a file could not be written, 2 the folder is neither a run nor a sweep",
    )
    parser.add_argument("run", type=Path, help="the folder of a run or a sweep, which it printed at its end")
    parser.add_argument("--format", choices=_FORMATS, help="print only this and write no file")
    chosen = parser.parse_args(arguments)
    try:
        printed = _printed(chosen.run, chosen.format)
        print_text(printed.text)
    except (InputError, OSError) as error:
        print(f"error: {printable(error)}", file=sys.stderr)
        return InputError.exit_code
    return int(not printed.is_written)


def _printed(run: Path, form: str | None) -> Printed:
    if is_sweep(run):
        if form == "junit":
            raise InputError(f"--format junit is of a run, and {run} is a sweep. Use table, markdown, json or csv.")
        sweep = load_sweep(run)
        report, texts = sweep_report(sweep), {"json": lambda: sweep_json(sweep), "csv": lambda: sweep_csv(sweep)}
    else:
        data = load_run(run)
        if not data.records:  # a file of that name that no run wrote, perhaps beside a report.md of the user
            raise InputError(f"{run} is no run: its results.jsonl holds no record. Name a folder that a run printed.")
        report = run_report(data)
        texts = {"json": lambda: as_json(data), "csv": lambda: as_csv(data), "junit": lambda: as_junit(data)}
    if form is None:
        return report.written(run)
    return Printed({"table": report.console, "markdown": report.markdown, **texts}[form]().rstrip(), is_written=True)


if __name__ == "__main__":
    sys.exit(main())
