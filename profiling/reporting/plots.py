"""The plots of a run: each where there is something to plot, and a line where something is missing for one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from profiling.errors import MissingExtraError
from profiling.reporting.budget_plot import BUDGET_FILE, plot_budget
from profiling.reporting.frame_plot import FRAMES_FILE, plot_frames
from profiling.reporting.frame_series import read_frame_times
from profiling.reporting.plot import PLOT_FILE, plot_sweep
from profiling.results.records import Record

TITLES = {
    PLOT_FILE: "Total time over calls",
    FRAMES_FILE: "Frame time over frames",
    BUDGET_FILE: "Stage budget",
}


def draw_plots(records: Sequence[Record], run: Path) -> tuple[str, ...]:
    """Write the run's plots; return where each is, or what is missing for it, a line each.

    Raises:
        OSError: the folder cannot be written to.

    """
    loops, unread = read_frame_times(records, run)
    plots: dict[str, Callable[[Path], bool]] = {
        PLOT_FILE: lambda path: plot_sweep(records, path),
        FRAMES_FILE: lambda path: plot_frames(loops, path),
        BUDGET_FILE: lambda path: plot_budget(records, path),
    }
    lines = list(unread)
    for name, draw in plots.items():
        try:
            if draw(run / name):
                lines.append(f"plot: {run / name}")
            else:
                (run / name).unlink(missing_ok=True)  # one of an earlier rendering would pass for this one's
        except MissingExtraError as error:
            lines.append(f"no plot: {error}")
    return tuple(dict.fromkeys(lines))


def plot_links(run: Path) -> tuple[str, ...]:
    """Return the plots that the run holds as Markdown images."""
    return tuple(f"![{title}]({name})" for name, title in TITLES.items() if (run / name).is_file())
