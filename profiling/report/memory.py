"""Memory by kind: at each phase of a cell, at its peaks, and around the static input of a captured training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import itemgetter

from profiling.errors import printable
from profiling.report.format import listed
from profiling.report.page import Section
from profiling.report.run_data import RunData, cell_table
from profiling.report.table import Column, columns
from profiling.results.field import described
from profiling.results.measured import Memory, MemoryKinds
from profiling.results.record import Record

#: Kinds of memory that only peaks have.
_PEAKS = ("peak_held", "graph_pool")
#: Title of each kind of memory.
_KINDS = {
    kind: described(struct, kind).title
    for struct, kinds in ((MemoryKinds, MemoryKinds.__struct_fields__), (Memory, _PEAKS))
    for kind in kinds
}
#: Phases before and after the graph engine allocates static inputs; the difference is the memory of these inputs.
_STATIC = ("before static input", "static input")
_DELTA = "static input, its delta"


#: The memory of a cell at one phase, in bytes by kind.
Phase = tuple[Record, str, Mapping[str, int]]


def memory_section(data: RunData) -> Section:
    """Return the table of memory by phase."""
    phases = [phase for record in data.records for phase in phases_of(record)]
    shown = (
        Column[Phase]("phase", itemgetter(1)),
        *columns(MemoryKinds, *MemoryKinds.__struct_fields__, of=itemgetter(2)),
        *columns(Memory, *_PEAKS, of=itemgetter(2)),
    )
    table = cell_table("Memory by phase", shown, phases, keys=3, depth="report")
    return Section("memory", "Memory", tables=(table,), legend=_residents(data))


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
        before, after = (captured.pop(name) for name in _STATIC)
        delta = {kind: after[kind] - before[kind] for kind in after if kind in before}
        captured = {_STATIC[0]: before, _STATIC[1]: after, _DELTA: delta, **captured}
    phases: dict[str, Mapping[str, int]] = {}
    if record.state is not None and record.state.bytes:
        kind = "host_rss" if record.state.on_host or record.device == "cpu" else "allocated"
        phases["copies of the state"] = {kind: record.state.bytes}
    # The capture is part of preparation: its phases come before the phase at whose end all is prepared.
    last = next((name for name in ("prepared", "training") if name in sizes), None)
    for name, kinds in sizes.items():
        phases |= (captured if name == last else {}) | {name: kinds}
    phases |= captured
    if memory is not None:
        peaks = {
            **{"allocated": memory.peak_allocated, "reserved": memory.peak_reserved, "peak_held": memory.peak_held},
            **{"graph_pool": memory.graph_pool, "host_rss": memory.peak_host_rss},
        }
        for name, kinds in (("prepare peak", {"allocated": memory.prepare_peak_allocated}), ("steady peak", peaks)):
            phases[name] = {kind: size for kind, size in kinds.items() if size is not None}
    yield from ((record, name, kinds) for name, kinds in phases.items() if kinds)


def _sizes(kinds: object) -> dict[str, int]:
    return {kind: size for kind in _KINDS if (size := getattr(kinds, kind, None)) is not None}
