"""Render a run again from its records: `python -m profiling.report RUN`. Needs no torch, measures nothing."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from profiling.errors import InputError, prepare_output, print_text, printable
from profiling.report.export import as_csv, as_json, as_junit
from profiling.report.render import render_classic, render_console, render_markdown, write_report
from profiling.report.run_data import RunData, load_run

_FORMATS: Mapping[str, Callable[[RunData], str]] = {
    "table": render_console,
    "markdown": render_markdown,
    "classic": render_classic,
    "json": as_json,
    "csv": as_csv,
    "junit": as_junit,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a run's report and rewrite its files; return 0, or 2 where the folder is no run."""
    prepare_output()
    parser = argparse.ArgumentParser(
        prog="python -m profiling.report",
        description="Print a run again and rewrite its report.md, report.html and classic.txt.",
        epilog="exit code: 0 done, 2 the folder is no run",
    )
    parser.add_argument("run", type=Path, help="the run's folder, printed at the end of the run")
    parser.add_argument("--format", choices=tuple(_FORMATS), help="print only this and write no file")
    chosen = parser.parse_args(arguments)
    try:
        print_text(_text(chosen.run, chosen.format))
    except (InputError, OSError) as error:
        print(f"error: {printable(error)}", file=sys.stderr)
        return InputError.exit_code
    return 0


def _text(run: Path, form: str | None) -> str:
    data = load_run(run)
    if not data.records:  # a file of that name that no run wrote, perhaps beside a report.md of the user
        raise InputError(f"{run} is no run: its results.jsonl holds no record. Name a folder that a run printed.")
    if form is None:
        return write_report(run)
    return _FORMATS[form](data).rstrip()


if __name__ == "__main__":
    sys.exit(main())
