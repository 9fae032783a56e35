"""The optimisation history over a folder of runs: `python -m profiling.history FOLDER`. Needs no torch."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence
from pathlib import Path

from profiling.comparison.timeline import history_text, timelines
from profiling.comparison.timeline_plot import HISTORY_FILE, plot_history
from profiling.errors import InputError, MissingExtraError


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the history and plot it into the folder; return 0, or 2 where it holds no runs."""
    parser = argparse.ArgumentParser(
        prog="python -m profiling.history", description="The best right variant of each component, run by run."
    )
    parser.add_argument("folder", type=Path, help="a folder with the folders of runs anywhere below it")
    parser.add_argument("--markdown", action="store_true", help="tables as Markdown")
    chosen = parser.parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without × shows a ? and not a traceback
    try:
        lines = timelines(chosen.folder)
        print(history_text(lines, markdown=chosen.markdown))
        plot_history(lines, chosen.folder / HISTORY_FILE)
        print(f"\nplot: {chosen.folder / HISTORY_FILE}")
    except MissingExtraError as error:
        print(f"\nno plot: {error}")
    except (InputError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return InputError.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
