"""The optimisation history over a folder of runs: `python -m profiling.history FOLDER`. Needs no torch."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from profiling.comparison.edge import read_options, unforeseen
from profiling.comparison.page_file import LostPageError, checked_file, write_page
from profiling.comparison.timeline import Timelines, history_text, timelines
from profiling.comparison.timeline_plot import HISTORY_FILE, plot_history
from profiling.errors import InputError, MissingExtraError


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the history and plot it into the folder; return 0, or 2 where it holds no runs or a file was lost."""
    parser = argparse.ArgumentParser(
        prog="python -m profiling.history",
        description="The best right variant of each component, run by run.",
        epilog="exit code: 0 done, 2 no runs there, or the plot or the page could not be written",
    )
    parser.add_argument("folder", type=Path, help="a folder with the folders of runs anywhere below it")
    chosen = read_options(parser, arguments)
    try:
        file = checked_file(chosen.html) if chosen.html else None
        lines = timelines(chosen.folder, _skipped)
        print(history_text(lines, markdown=chosen.markdown))
    except (InputError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return InputError.exit_code
    except Exception as error:  # a record that was edited by hand may hold anything
        what = f"{chosen.folder} has a run that cannot be read: {unforeseen(error)}"
        print(f"error: {what}. Hold the runs against each other with profiling.compare.", file=sys.stderr)
        return InputError.exit_code
    # The text stands; neither file costs the other.
    written = [_plot(lines, chosen.folder / HISTORY_FILE), file is None or _write_page(lines, chosen.folder, file)]
    return 0 if all(written) else InputError.exit_code


def _skipped(run: Path, reason: str) -> None:
    print(f"skipped {run}: {reason}", file=sys.stderr)


def _plot(lines: Timelines, file: Path) -> bool:
    """Write the plot and say where it is; return False where it could not be written."""
    try:
        plot_history(lines, file)
        print(f"\nplot: {file}")
    except MissingExtraError as error:
        print(f"\nno plot: {error}")
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return False
    except Exception as error:  # a name or number that a plot has no place for
        print(f"error: {file} was not written: {unforeseen(error)}. The table above stands.", file=sys.stderr)
        return False
    return True


def _write_page(lines: Timelines, folder: Path, file: Path) -> bool:
    try:
        print(write_page(file, partial(_page, lines, folder)), file=sys.stderr)
    except LostPageError as error:
        print(f"error: {error}", file=sys.stderr)
        return False
    return True


def _page(lines: Timelines, folder: Path) -> str:
    # The text needs neither jinja2 nor plotly.
    from profiling.comparison.html.history_page import render_history

    return render_history(lines, folder)


if __name__ == "__main__":
    sys.exit(main())
