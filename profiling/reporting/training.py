"""The tables of a training run: memory by phase with the ways of running side by side, and the log of the steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from profiling.reporting.facts import by_component, items_at, mapping_at, number_at
from profiling.reporting.format import ABSENT, mebibytes, one_line, significant, whole
from profiling.reporting.grid import Titled, grid
from profiling.results.records import Record

_KINDS = (
    ("allocated", "allocated"),
    ("reserved", "reserved"),
    ("max_allocated", "max allocated"),
    ("max_reserved", "max reserved"),
    ("device_used", "device total"),
    ("host_rss", "host RSS"),
)
#: From the start of the process to the end of the training: where the cell looked, and where the graph engine did.
_PHASES = ("dataloader", "model", "ready", "before static input", "static input", "capture", "training")
_STATIC = ("before static input", "static input")
_DELTA = "static input, its delta"


def training_tables(records: Sequence[Record], *, markdown: bool) -> tuple[Titled, ...]:
    """Return the memory by phase of each component and the log of the steps; empty without training."""
    trained = [record for record in records if record.training]
    tables = [
        (f"Memory by phase, MiB: {one_line(component)}", _memory(group, markdown=markdown))
        for component, group in by_component(trained).items()
    ]
    headers = ("component", "variant", "step", "loss", "eager's loss", "step ms", "waiting for data ms")
    log = [row for record in trained for row in _log(record)]
    tables.append(("Steps", grid(headers, log, markdown=markdown)))
    return tuple((title, table) for title, table in tables if table)


def _memory(group: Sequence[Record], *, markdown: bool) -> str:
    headers = ["phase", *(f"{record.variant}: {kind}" for _, kind in _KINDS for record in group)]
    rows = []
    phases = {record.variant: _phases(record) for record in group}
    for phase in (*_PHASES, _DELTA):
        cells = [mebibytes(number_at(phases[record.variant], phase, key)) for key, _ in _KINDS for record in group]
        if any(cell != ABSENT for cell in cells):
            rows.append([phase, *cells])
    order = [*_PHASES[:5], _DELTA, *_PHASES[5:]]
    rows.sort(key=lambda row: order.index(row[0]))
    return grid(headers, rows, markdown=markdown, names=1)


def _phases(record: Record) -> Mapping[str, Any]:
    phases = {**mapping_at(record.memory, "phases"), **mapping_at(record.graphs, "memory")}
    ends = {key: [number_at(phases, phase, key) for phase in _STATIC] for key, _ in _KINDS}
    delta = {key: after - before for key, (before, after) in ends.items() if before is not None and after is not None}
    return {**phases, _DELTA: delta}


def _log(record: Record) -> list[tuple[str, ...]]:
    eager = {number_at(item, "step"): item for item in items_at(record.training, "eager_log")}
    eager.pop(None, None)
    return [
        (
            record.component,
            record.variant,
            whole(number_at(item, "step")),
            significant(number_at(item, "loss"), 5),
            significant(number_at(eager.get(number_at(item, "step")), "loss"), 5),
            significant(number_at(item, "step_ms")),
            significant(number_at(item, "data_ms"), 3),
        )
        for item in items_at(record.training, "log")
    ]
