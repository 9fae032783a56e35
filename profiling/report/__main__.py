"""Render a run again from its records: `python -m profiling.report RUN`. Needs no torch, measures nothing."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from profiling.errors import InputError
from profiling.report.format import replace_unprintable
from profiling.report.render import render_classic, render_console, render_markdown, write_report
from profiling.report.run_data import load_run


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a run's report and rewrite its files; return 0, or 2 where the folder is no run."""
    parser = argparse.ArgumentParser(
        prog="python -m profiling.report",
        description="Print a run again and rewrite its report.md, report.html and classic.txt.",
        epilog="exit code: 0 done, 2 the folder is no run",
    )
    parser.add_argument("run", type=Path, help="the run's folder, printed at the end of the run")
    parser.add_argument("--format", choices=("table", "markdown", "classic"), help="print only this and write no file")
    chosen = parser.parse_args(arguments)
    replace_unprintable()
    try:
        text = _text(chosen.run, chosen.format)
        with suppress(BrokenPipeError):  # the reader, `head` for example, closed the pipe
            print(text, flush=True)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _text(run: Path, form: str | None) -> str:
    if form is None:
        return write_report(run)
    render = {"classic": render_classic, "markdown": render_markdown, "table": render_console}[form]
    return render(load_run(run)).rstrip()


if __name__ == "__main__":
    sys.exit(main())
