"""Layers that transforms replaced or left, the error of each quantised layer, and accuracy against speed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from profiling.report.charts import GREY, Chart, Figure, View, axis, figure, line, plain, points, scale
from profiling.report.page import Section
from profiling.report.run_data import RunData, cell_table, cell_words, first
from profiling.report.table import Column
from profiling.results.explained import Choices, LayerSensitivity, RecipeStep
from profiling.results.record import Record

_Step = tuple[Record, RecipeStep]
_Left = tuple[Record, RecipeStep, str, int, str]
_Alone = tuple[Record, LayerSensitivity]
#: Most layer names in a cell of a table; the record has more.
_NAMES = 3


def quantisation_section(data: RunData) -> Section:
    """Return the tables of replaced, remaining and single layers, and the chart of accuracy against speed."""
    steps = [(record, step) for record in data.records for step in record.recipe or () if step.choices is not None]
    left = [row for record, step in steps for row in _left(record, step)]
    alone = [(record, layer) for record in data.records if record.sensitivity for layer in record.sensitivity.layers]
    tables = (
        cell_table("Layers that transforms replaced", _REPLACED, steps, first, keys=4, depth="report"),
        cell_table("Layers left unchanged, and why", _LEFT, left, first, keys=4, depth="report"),
        cell_table("Each layer quantised alone, largest error first", _ALONE, alone, first, keys=3, depth="report"),
    )
    return Section("quantisation", "Quantisation", _lines(data), tables=tables, charts=(_front_chart(data),))


def front_of(records: Sequence[Record]) -> list[Record]:
    """Return the correct records that no other one beats in both error and time, the fastest first."""
    front: list[Record] = []
    for record in sorted(records, key=lambda each: (_ms(each), _error(each))):
        if record.is_correct and (not front or _error(record) < _error(front[-1])):
            front.append(record)
    return front


def _left(record: Record, step: RecipeStep) -> Iterator[_Left]:
    assert step.choices is not None
    for reason, count in step.choices.left.items():
        names = [layer.name for layer in step.choices.layers if layer.left == reason]
        more = f" and {count - _NAMES} more" if count > _NAMES else ""
        yield record, step, reason, count, f"{', '.join(names[:_NAMES])}{more}"


def _lines(data: RunData) -> tuple[str, ...]:
    """Return a line for each cell whose layers were quantised alone: how many, and how they were timed."""
    lines = []
    for record in data.records:
        if (section := record.sensitivity) is not None:
            lines.append(
                f"{cell_words(record)}: {len(section.layers)} of {section.quantised} quantised layers alone; times "
                f"{section.timed}"
            )
    return tuple(lines)


def _ms(record: Record) -> float:
    assert record.wall_p50 is not None
    return record.wall_p50


def _error(record: Record) -> float:
    assert record.parity is not None
    assert record.parity.rel_l2 is not None
    return record.parity.rel_l2


def _front_chart(data: RunData) -> Chart:
    """Draw the error and the time of the variants of each component that has an inexact one."""
    views = []
    for component, group in data.groups.items():
        known = [each for each in group if each.wall_p50 is not None and each.parity and each.parity.rel_l2 is not None]
        if any(step.choices is not None for record in known for step in record.recipe or ()) and len(known) > 1:
            views.append(View(component, _figure(data, known)))
    note = (
        "Line: the front; no other correct variant is both faster and nearer to the reference. Open circles: failed or "
        "invalid variants, whose speed does not count."
    )
    return Chart("accuracy", "Accuracy against speed", views, note)


def _figure(data: RunData, records: Sequence[Record]) -> Figure:
    front = front_of(records)
    traces = []
    if front:
        traces.append(line("front", [_error(each) for each in front], [_ms(each) for each in front], GREY))
    for record in records:
        symbol = "circle" if record.is_correct else "circle-open"
        traces.append(
            points(record.variant, [_error(record)], [_ms(record)], symbol, data.colours[record.variant], size=10)
        )
        traces[-1]["legendgroup"] = plain(record.variant)
    errors, times = [_error(each) for each in records], [_ms(each) for each in records]
    x = axis("relative L2 error against the reference", **scale(errors))
    return figure(traces, x, axis("wall time of a call, ms", **scale(times)))


def _choices(row: _Step) -> Choices:
    assert row[1].choices is not None
    return row[1].choices


_REPLACED = (
    Column[_Step]("stage", lambda row: row[1].stage),
    Column[_Step]("transform", lambda row: row[1].name),
    Column[_Step]("replaced", lambda row: _choices(row).replaced, "count"),
    Column[_Step]("by", lambda row: ", ".join(f"{count} {name}" for name, count in _choices(row).now.items())),
    Column[_Step]("left", lambda row: sum(_choices(row).left.values()), "count"),
)
_LEFT = (
    Column[_Left]("stage", lambda row: row[1].stage),
    Column[_Left]("transform", lambda row: row[1].name),
    Column[_Left]("layers", lambda row: row[3], "count"),
    Column[_Left]("why they stay", lambda row: row[2], wrap=60),
    Column[_Left]("such as", lambda row: row[4], wrap=40),
)
_ALONE = (
    Column[_Alone]("layer", lambda row: row[1].name),
    Column[_Alone]("outputs × inputs", lambda row: " × ".join(map(str, row[1].shape))),
    Column[_Alone]("rel. L2 error", lambda row: row[1].rel_l2, "error"),
    Column[_Alone]("as it was", lambda row: row[1].ms.before, "ms"),
    Column[_Alone]("quantised", lambda row: row[1].ms.after, "ms"),
    Column[_Alone]("leaving it out costs", lambda row: _saved(row[1]), "ms"),
)


def _saved(layer: LayerSensitivity) -> float | None:
    before, after = layer.ms.before, layer.ms.after
    return None if before is None or after is None else before - after
