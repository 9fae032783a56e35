"""Loops of frames: each frame against the deadline with the causes of slow ones, and where the budget went."""

from __future__ import annotations

from typing import Any

import numpy as np

from profiling.reporting.facts import at, number_at
from profiling.reporting.frame_plot import envelope
from profiling.reporting.frame_series import Frames
from profiling.reporting.html.budget_chart import budget_chart
from profiling.reporting.html.figure import axis, cell_words, figure, plain, rounded, scale, share
from profiling.reporting.html.material import Material, palette
from profiling.reporting.html.section import Chart, Figure, Section, View
from profiling.reporting.realtime_frames import kind_of, slow_frames
from profiling.reporting.realtime_words import realtime_legend, realtime_lines
from profiling.results.records import Record

#: How the titles of its tables begin.
_TABLES = (
    *("Frames", "Stage budget", "Floor of a frame", "What bounds each part", "Parts of a frame, predicted"),
    *("Deadlines", "Slow"),
)
#: A colour that no cause is marked in.
_FRAMES = "#7b8a9c"
_SYMBOLS = ("circle-open", "triangle-up-open", "square-open", "diamond-open", "triangle-down-open", "star-open")


def realtime_section(material: Material) -> Section:
    """Return the frames over time, the stage budget, and the tables of a loop."""
    loops, unread = material.loops
    views = [View(cell_words(record, component=True), _frames(material, (record, frames))) for record, frames in loops]
    charts = (
        Chart("frames", "Frame time over frames", views, _note(loops)),
        Chart("budget", "Stage budget", budget_chart(material.records), "Medians of each stage; only what is right."),
    )
    return Section(
        "realtime",
        "Frames against the deadline",
        (*realtime_lines(material.records), *realtime_legend(material.records), *unread),
        tuple(chart for chart in charts if chart.views),
        material.titled(*_TABLES),
    )


def _note(loops: tuple[Frames, ...]) -> str:
    most = share(len(loops))
    longest = max((frames.size for _, frames in loops), default=0)
    thinned = f"Of more than {most} frames the lowest and the highest of each stretch are drawn." * (longest > most)
    marked = "Marks: the slow frames that the record lists, by cause; shaded: before the times settled."
    return f"{marked} {thinned}".strip()


def _frames(material: Material, loop: Frames) -> Figure:
    record, frames = loop
    places = envelope(frames, share(len(material.loops[0])))
    line = {"color": _FRAMES, "width": 1}
    shown = {"x": places.tolist(), "y": rounded(frames[places])}
    data = [{"type": "scatter", "mode": "lines", "name": "frame time", "line": line, **shown}, *_slow(record)]
    target = number_at(record.realtime, "target_fps")
    deadline = [(1000 / target, f"deadline, {target:g} FPS")] if target else []
    shapes = []
    end = _settled_at(record, frames.size)
    if end:
        ends = {"x0": 0, "x1": end, "yref": "paper", "y0": 0, "y1": 1}
        shade = {"type": "rect", **ends, "fillcolor": "#888888", "opacity": 0.15, "line": {"width": 0}}
        shapes.append({**shade, "layer": "below"})
    y = axis("frame time, ms", **scale(np.array(frames[places])))
    return figure(data, axis("frame", rangemode="tozero"), y, deadline, shapes=shapes)


def _settled_at(record: Record, size: int) -> float | None:
    """Return the frame from which times were steady: the end of the series where they never were."""
    if at(record.realtime, "steady", "settled") is False:
        return size
    return number_at(record.realtime, "steady", "from_frame")


def _slow(record: Record) -> list[dict[str, Any]]:
    """Mark each slow frame once for each kind of cause; hollow, so that one does not hide another."""
    found: dict[str, list[tuple[int, float]]] = {}
    for frame, milliseconds, causes in slow_frames(record):
        for cause in dict.fromkeys(map(kind_of, causes)):
            found.setdefault(cause, []).append((frame, milliseconds))
    colours = palette(found)
    return [
        {
            **{"type": "scatter", "mode": "markers", "name": f"slow: {plain(cause)}"},
            "marker": {"symbol": _SYMBOLS[place % len(_SYMBOLS)], "size": 9, "color": colours[cause]},
            "x": [frame for frame, _ in frames],
            "y": rounded(milliseconds for _, milliseconds in frames),
        }
        for place, (cause, frames) in enumerate(found.items())
    ]
