"""Where a frame's budget goes: the stages of each loop against the time between two frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from profiling.reporting.budget_plot import stage_times
from profiling.reporting.facts import at, is_realtime, is_right, number_at
from profiling.reporting.html.figure import GREY, axis, cell_name, figure, plain, rounded
from profiling.reporting.html.material import palette
from profiling.reporting.html.section import Figure, View
from profiling.results.records import Record

_REST = "beside the stages"


def budget_chart(records: Sequence[Record]) -> list[View]:
    """Return a view of stages that run in turn, stacked, and one of stages that overlap, side by side."""
    rows = [record for record in records if is_realtime(record) and is_right(record) and stage_times(record)[1]]
    kinds = (
        (False, "stages in turn", "the stages stacked, the rest of the frame on top", "stack"),
        (True, "stages that overlap", "the stages side by side, for they overlap and do not add up", "group"),
    )
    return [
        View(label, _figure(chosen, words, mode))
        for overlap, label, words, mode in kinds
        if (chosen := [record for record in rows if (at(record.realtime, "schedule") == "overlap") is overlap])
    ]


def _figure(rows: Sequence[Record], words: str, mode: str) -> Figure:
    stages = palette(stage for record in rows for stage in stage_times(record)[1])
    data = [
        _bars(rows, [stage_times(r)[1].get(stage) for r in rows], stage, colour) for stage, colour in stages.items()
    ]
    if mode == "stack":
        rest = [number_at(record.realtime, "budget", "overhead_ms") for record in rows]
        data.append(_bars(rows, [None if value is None else max(0.0, value) for value in rest], _REST, GREY))
    whole = [number_at(record.realtime, "frame_ms", "p50") for record in rows]
    marks = {"symbol": "line-ew-open", "size": 40, "color": GREY, "line": {"width": 3}}
    frame = {"type": "scatter", "mode": "markers", "name": "frame, p50", "marker": marks}
    data.append({**_bars(rows, whole, "frame, p50", GREY), **frame})
    targets = sorted({target for record in rows if (target := number_at(record.realtime, "target_fps"))})
    budgets = [(1000 / target, f"budget, {target:g} FPS") for target in targets]
    clocks = " or ".join(dict.fromkeys(stage_times(record)[0] for record in rows))
    y = axis(f"{clocks} time, median, ms", rangemode="tozero")
    x = axis(f"loop ({words})", type="category")
    return figure(data, x, y, budgets, barmode=mode, scattermode="overlay")


def _bars(rows: Sequence[Record], values: Sequence[float | None], name: str, colour: str) -> dict[str, Any]:
    known = [(cell_name(row, component=True), ms) for row, ms in zip(rows, values, strict=True) if ms is not None]
    places = {"x": [place for place, _ in known], "y": rounded(ms for _, ms in known)}
    return {"type": "bar", "name": plain(name), "marker": {"color": colour}, **places}
