"""Memory by kind: at each phase of a cell, at its peaks, and around the static input of a captured training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from profiling.errors import printable
from profiling.report.charts import Chart, Figure, View, axis, bars, figure
from profiling.report.format import MIB, listed
from profiling.report.page import Section
from profiling.report.run_data import RunData, cell_table, cell_words
from profiling.report.table import Column
from profiling.results.record import Record

KINDS = {
    "allocated": "allocated",
    "reserved": "reserved",
    "max_allocated": "max allocated",
    "max_reserved": "max reserved",
    "held": "held",
    "graph_pool": "graph pools",
    "device_used": "device used",
    "host_rss": "host RSS",
}
#: Phases before and after the graph engine allocates static inputs; the difference is the memory of these inputs.
_STATIC = ("before static input", "static input")
_DELTA = "static input, its delta"


@dataclass(frozen=True)
class Phase:
    """The memory of a cell at one phase, in bytes by kind."""

    record: Record
    name: str
    sizes: Mapping[str, int]


def memory_section(data: RunData) -> Section:
    """Return the table of memory by phase, and a view for each component and kind."""
    phases = [phase for record in data.records for phase in phases_of(record)]
    columns = (
        Column[Phase]("phase", lambda row: row.name),
        *(Column[Phase](title, lambda row, kind=kind: row.sizes.get(kind), "MiB") for kind, title in KINDS.items()),
    )
    views = [
        View(f"{component}: {title}", drawn)
        for component, group in data.groups.items()
        for kind, title in KINDS.items()
        if (drawn := _figure(data, group, kind, title))
    ]
    chart = Chart("memory", "Memory by phase", views, "A phase in which a kind was not measured has no bar.")
    table = cell_table("Memory by phase", columns, phases, lambda row: row.record, keys=3, depth="report")
    return Section("memory", "Memory", tables=(table,), charts=(chart,), legend=_residents(data))


def _residents(data: RunData) -> tuple[str, ...]:
    """Return which variants held memory at the same time, and in which kinds it is counted."""
    components: dict[tuple[tuple[str, ...], bool], list[str]] = {}
    for component, group in data.groups.items():
        waited = [record for record in group if record.turns is not None and record.turns.beside]
        names = dict.fromkeys(
            name for each in waited if each.turns for name in (each.variant, *sorted(each.turns.beside))
        )
        if names:
            one_process = any(each.turns is not None and each.turns.one_process for each in waited)
            components.setdefault((tuple(names), one_process), []).append(component)
    lines = []
    for (names, one_process), concerned in components.items():
        of = "" if len(concerned) == len(data.groups) else f" of {listed(concerned)}"
        where = "Device used, reserved and host RSS (one process)" if one_process else "Numbers of device used"
        lines.append(
            f"Prepared beside each other: {listed(names)}{of}. {where} include all of them; every other "
            "number is of one variant alone."
        )
    return tuple(map(printable, lines))


def phases_of(record: Record) -> Iterator[Phase]:
    """Yield the phases of a cell in the order of time, then the peaks of preparing and of the timed part."""
    memory, sizes = record.memory, {}
    if memory is not None:
        sizes = {name: _sizes(kinds) for name, kinds in memory.phases.items()}
    captured = {name: _sizes(kinds) for name, kinds in record.graphs.memory.items()} if record.graphs else {}
    if all(name in captured for name in _STATIC):
        before, after = (captured[name] for name in _STATIC)
        delta = {kind: after[kind] - before[kind] for kind in after if kind in before}
        rest = {name: sizes for name, sizes in captured.items() if name not in _STATIC}
        captured = {_STATIC[0]: before, _STATIC[1]: after, _DELTA: delta, **rest}
    if record.state is not None and record.state.bytes:
        kind = "host_rss" if record.state.on_host or record.device == "cpu" else "allocated"
        yield Phase(record, "copies of the state", {kind: record.state.bytes})
    # The capture is part of preparation: its phases come before the phase at whose end all is prepared.
    last = next((name for name in ("prepared", "training") if name in sizes), None)
    for name, kinds in sizes.items():
        if name == last:
            yield from (Phase(record, each, captured[each]) for each in captured)
        yield Phase(record, name, kinds)
    if last is None:
        yield from (Phase(record, each, captured[each]) for each in captured)
    if memory is not None:
        peaks = {
            "allocated": memory.peak_allocated,
            "reserved": memory.peak_reserved,
            "held": memory.peak_held,
            "graph_pool": memory.graph_pool,
            "host_rss": memory.peak_host_rss,
        }
        for name, kinds in (("prepare peak", {"allocated": memory.prepare_peak_allocated}), ("steady peak", peaks)):
            if known := {kind: size for kind, size in kinds.items() if size is not None}:
                yield Phase(record, name, known)


def _sizes(kinds: object) -> dict[str, int]:
    return {kind: size for kind in KINDS if (size := getattr(kinds, kind, None)) is not None}


def _figure(data: RunData, group: Sequence[Record], kind: str, title: str) -> Figure | None:
    traces = []
    for record in group:
        known = {phase.name: phase.sizes[kind] / MIB for phase in phases_of(record) if kind in phase.sizes}
        if known:
            traces.append(bars(cell_words(record), list(known), list(known.values()), data.colours[record.variant]))
    if len({place for trace in traces for place in trace["x"]}) < 2:
        return None  # one bar shows no more than the table
    return figure(traces, axis("phase", type="category"), axis(f"{title}, MiB", rangemode="tozero"))
