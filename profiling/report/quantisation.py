"""Layers that transforms replaced or left, the error of each quantised layer, and accuracy against speed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter

from profiling.report.charts import GREY, Chart, Figure, View, axis, figure, line, plain, points, scale
from profiling.report.page import Section
from profiling.report.run_data import RunData, cell_table, cell_words
from profiling.report.table import Column, columns
from profiling.results.explained import LayerSensitivity, RecipeStep
from profiling.results.record import Record

#: Layers of a transform that share an outcome: their number, the outcome, and some of their names.
_Layers = tuple[Record, RecipeStep, int, str, str]
#: Most layer names in a cell of a table; the record has more.
_NAMES = 3


def quantisation_section(data: RunData) -> Section:
    """Return the tables of replaced, remaining and single layers, and the chart of accuracy against speed."""
    steps = [(record, step) for record in data.records for step in record.recipe or ()]
    layers = [row for record, step in steps for row in _layers(record, step)]
    alone = [(record, layer) for record in data.records if record.sensitivity for layer in record.sensitivity.layers]
    tables = (
        cell_table("Layers that transforms replaced or left", _LAYERS, layers, keys=4, depth="report"),
        cell_table("Each layer quantised alone, largest error first", _ALONE, alone, keys=3, depth="report"),
    )
    return Section("quantisation", "Quantisation", _lines(data), tables=tables, charts=(_front_chart(data),))


def front_of(records: Sequence[Record]) -> list[Record]:
    """Return the correct records that no other one beats in both error and time, the fastest first."""
    front: list[Record] = []
    for record in sorted(records, key=lambda each: (_ms(each), _error(each))):
        if record.is_correct and (not front or _error(record) < _error(front[-1])):
            front.append(record)
    return front


def _layers(record: Record, step: RecipeStep) -> Iterator[_Layers]:
    if (choices := step.choices) is None:
        return
    for kind, count in choices.now.items():
        yield (
            record,
            step,
            count,
            f"replaced by {kind}",
            _names(layer.name for layer in choices.layers if layer.now == kind),
        )
    for reason, count in choices.left.items():
        yield (
            record,
            step,
            count,
            f"left: {reason}",
            _names(layer.name for layer in choices.layers if layer.left == reason),
        )


def _names(names: Iterable[str]) -> str:
    first = list(islice(names, _NAMES + 1))
    return ", ".join(first[:_NAMES]) + (", …" if len(first) > _NAMES else "")


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


_LAYERS = (
    *columns(RecipeStep, "stage", "name"),
    Column[_Layers]("layers", itemgetter(2), "count"),
    Column[_Layers]("what became of them", itemgetter(3), wrap=60),
    Column[_Layers]("such as", lambda row: row[4] or None, wrap=40),
)
_ALONE = (
    *columns(LayerSensitivity, "name"),
    Column[tuple[Record, LayerSensitivity]]("outputs × inputs", lambda row: " × ".join(map(str, row[1].shape))),
    *columns(LayerSensitivity, "rel_l2", "ms.before", "ms.after"),
)
