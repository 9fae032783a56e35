"""Median time of the best right variant over the runs, a panel a component, with the interval of each median."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Any

from profiling.comparison.timeline import Milestone, Timelines
from profiling.reporting.figure import blank_figure, plain

HISTORY_FILE = "history.svg"
_COLUMNS = 2


def plot_history(lines: Timelines, path: Path) -> None:
    """Write the plot; runs stand side by side in their order, under their date and git revision.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OSError: the file cannot be written.

    """
    columns = min(_COLUMNS, len(lines))
    figure, panels = blank_figure(ceil(len(lines) / columns), columns, width=6.0, height=3.6)
    variants = dict.fromkeys(stone.variant for line in lines.values() for stone in line)
    colours = {name: f"C{i % 10}" for i, name in enumerate(variants)}
    for (title, line), panel in zip(lines.items(), panels, strict=False):
        _draw(panel, line, colours)
        highest = max(stone.ci95[1] if stone.ci95 else stone.p50_ms for stone in line)
        panel.set(ylabel="p50 ms", ylim=(0, 1.3 * highest), xlim=(-0.5, len(line) - 0.5))
        panel.set_title(plain(title), fontsize=7)
        panel.grid(visible=True, axis="y", alpha=0.3)
        panel.legend(fontsize=7)
    for panel in panels[len(lines) :]:  # the places that are left over
        panel.set_axis_off()
    figure.savefig(path, metadata={"Date": None})


def _draw(panel: Any, line: tuple[Milestone, ...], colours: dict[str, str]) -> None:
    panel.plot(range(len(line)), [stone.p50_ms for stone in line], color="0.7", linewidth=1)
    for variant in dict.fromkeys(stone.variant for stone in line):
        places = [place for place, stone in enumerate(line) if stone.variant == variant]
        medians = [line[place].p50_ms for place in places]
        ends = [line[place].ci95 or (line[place].p50_ms, line[place].p50_ms) for place in places]
        # A bootstrap interval holds its median up to rounding, and matplotlib refuses bars of a negative length.
        bars = [
            [max(0.0, median - low) for median, (low, _) in zip(medians, ends, strict=True)],
            [max(0.0, high - median) for median, (_, high) in zip(medians, ends, strict=True)],
        ]
        panel.errorbar(places, medians, yerr=bars, fmt="o", color=colours[variant], capsize=3, label=plain(variant))
    labels = [f"{(stone.date or 'undated')[:10]}\n{(stone.revision or '')[:13]}" for stone in line]
    panel.set_xticks(range(len(line)), labels, rotation=30, fontsize=6)
