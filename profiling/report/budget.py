"""The stage budget of a loop: where the time of a frame goes, as a table and as a chart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from profiling.report.charts import GREY, Part, Row, Rows, View, palette
from profiling.report.format import significant
from profiling.report.run_data import cell_words
from profiling.report.table import Column, columns
from profiling.results.loop import BudgetPart, Realtime
from profiling.results.record import Record

_CLOCKS, _REST = ("device", "host"), "outside the stages"


#: A part of the frames of a loop: its median times, and its name.
_Part = tuple[Record, BudgetPart, str]


def budget_parts(record: Record, loop: Realtime) -> Iterator[_Part]:
    """Yield the parts of a frame, and the frame itself where the means of its parts add up to its own."""
    parts = loop.budget.parts if loop.budget is not None else {}
    yield from ((record, part, name) for name, part in parts.items())
    if loop.frame_ms is not None and any(part.mean_ms is not None for part in parts.values()):
        yield record, BudgetPart(mean_ms=loop.frame_ms.mean, share=loop.frame_ms.p50 / loop.budget_ms), "frame"


BUDGET = (
    Column[_Part]("stage", lambda row: row[2]),
    *columns(BudgetPart, "device_ms", "host_ms", "mean_ms"),
    *columns(BudgetPart, "share", measured=True),
)


@dataclass(frozen=True)
class _Stages:
    """The median of each stage of a loop in milliseconds, by the device's clock, or the host's where no device ran."""

    name: str
    loop: Realtime
    ms: dict[str, float]


def _stages_of(record: Record, loop: Realtime) -> _Stages:
    parts = {} if loop.budget is None else {stage: loop.budget.parts.get(stage) for stage in loop.stages}
    for clock in _CLOCKS:
        times = {stage: getattr(part, f"{clock}_ms", None) for stage, part in parts.items()}
        if known := {stage: ms for stage, ms in times.items() if ms is not None}:
            return _Stages(cell_words(record, component=True), loop, known)
    return _Stages(cell_words(record, component=True), loop, {})


def budget_views(loops: Sequence[tuple[Record, Realtime]]) -> list[View]:
    """Return a view of the loops whose stages run in turn, and one of those whose stages overlap: a row a stage."""
    correct = [stages for record, loop in loops if record.is_correct and (stages := _stages_of(record, loop)).ms]
    colours = palette(stage for each in correct for stage in each.ms) | {_REST: GREY}
    views = []
    for overlap, label in ((False, "stages in turn"), (True, "stages that overlap, and do not add up")):
        chosen = [each for each in correct if (each.loop.schedule == "overlap") is overlap]
        rows = [row for each in chosen for row in (_overlapping if overlap else _in_turn)(each, colours)]
        budgets = {each.loop.budget_ms: f"{each.loop.target_fps:g} FPS" for each in chosen if each.loop.target_fps}
        longest = [sum(part.ms for part in row.parts) for row in rows]
        views += [View(label, Rows(rows, 1.02 * max(*longest, *budgets), sorted(budgets.items())))] if rows else []
    return views


def _in_turn(each: _Stages, colours: Mapping[str, str]) -> list[Row]:
    overhead_ms = each.loop.budget.overhead_ms if each.loop.budget is not None else None
    times = {**each.ms, _REST: max(0.0, overhead_ms or 0.0)}
    frame = f"frame {significant(each.loop.frame_ms.p50)} ms" if each.loop.frame_ms is not None else ""
    return [Row(each.name, frame, [Part(stage, ms, colours[stage]) for stage, ms in times.items()])]


def _overlapping(each: _Stages, colours: Mapping[str, str]) -> list[Row]:
    return [
        Row(f"{each.name}: {stage}", f"{significant(ms)} ms", [Part(stage, ms, colours[stage])])
        for stage, ms in each.ms.items()
    ]
