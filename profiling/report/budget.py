"""The stage budget of a loop: where the time of a frame goes, as a table and as a chart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from profiling.report.charts import GREY, Figure, View, axis, bars, figure, palette, points
from profiling.report.run_data import cell_words
from profiling.report.table import Column
from profiling.results.loop import BudgetPart, Realtime
from profiling.results.record import Record

_CLOCKS, _REST = ("device", "host"), "outside the stages"


def budget_parts(loop: Realtime) -> dict[str, BudgetPart]:
    """Return the parts of a frame by name, and the frame itself where the means of its parts add up to its own."""
    parts = dict(loop.budget.parts) if loop.budget is not None else {}
    if loop.frame_ms is not None and any(part.mean_ms is not None for part in parts.values()):
        parts["frame"] = BudgetPart(mean_ms=loop.frame_ms.mean, share=loop.frame_ms.p50 / loop.budget_ms)
    return parts


_Part = tuple[Record, str, BudgetPart]
BUDGET = (
    Column[_Part]("stage", lambda row: row[1]),
    Column[_Part]("GPU", lambda row: row[2].device_ms, "ms", measured=True),
    Column[_Part]("host", lambda row: row[2].host_ms, "ms", measured=True),
    Column[_Part]("mean", lambda row: row[2].mean_ms, "ms", measured=True),
    Column[_Part]("of the budget", lambda row: row[2].share, "percent", measured=True),
)


@dataclass(frozen=True)
class _Stages:
    """The median of each stage of a loop in milliseconds, by the device's clock, or the host's where no device ran."""

    name: str
    loop: Realtime
    clock: str
    ms: dict[str, float]


def _stages_of(record: Record, loop: Realtime) -> _Stages:
    parts = {} if loop.budget is None else {stage: loop.budget.parts.get(stage) for stage in loop.stages}
    for clock in _CLOCKS:
        times = {stage: getattr(part, f"{clock}_ms", None) for stage, part in parts.items()}
        known = {stage: ms for stage, ms in times.items() if ms is not None}
        if known:
            break
    else:
        clock, known = _CLOCKS[-1], {}
    return _Stages(cell_words(record, component=True), loop, clock, known)


def budget_views(loops: Sequence[tuple[Record, Realtime]]) -> list[View]:
    """Return a view of stages that run in turn, stacked, and one of stages that overlap, side by side."""
    correct = [stages for record, loop in loops if record.is_correct and (stages := _stages_of(record, loop)).ms]
    kinds = (
        (False, "stages in turn", "stages stacked, the rest of the frame on top", "stack"),
        (True, "stages that overlap", "stages side by side: they overlap and do not add up", "group"),
    )
    return [
        View(label, _budget_figure(chosen, words, mode))
        for overlap, label, words, mode in kinds
        if (chosen := [each for each in correct if (each.loop.schedule == "overlap") is overlap])
    ]


def _budget_figure(loops: Sequence[_Stages], words: str, mode: str) -> Figure:
    names = [each.name for each in loops]
    colours = palette(stage for each in loops for stage in each.ms)
    traces = [bars(stage, names, [each.ms.get(stage) for each in loops], colour) for stage, colour in colours.items()]
    if mode == "stack":
        overheads = [each.loop.budget.overhead_ms if each.loop.budget is not None else None for each in loops]
        traces.append(bars(_REST, names, [ms if ms is None else max(0.0, ms) for ms in overheads], GREY))
    medians = {each.name: each.loop.frame_ms.p50 for each in loops if each.loop.frame_ms is not None}
    frame = points("frame, p50", list(medians), list(medians.values()), "line-ew-open", size=40)
    targets = sorted({(each.loop.target_fps, each.loop.budget_ms) for each in loops if each.loop.target_fps})
    budgets = [(budget_ms, f"budget, {target:g} FPS") for target, budget_ms in targets]
    clocks = " or ".join(dict.fromkeys(each.clock for each in loops))
    y = axis(f"{clocks} time, median, ms", rangemode="tozero")
    x = axis(f"loop ({words})", type="category")
    return figure([*traces, frame], x, y, budgets, barmode=mode, scattermode="overlay")
