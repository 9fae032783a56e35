"""Memory by kind at the end of each phase of a cell, and at its peaks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import itemgetter

from msgspec import structs

from profiling.report.page import Section
from profiling.report.run_data import RunData, cell_table
from profiling.report.table import Column, columns
from profiling.results.measured import Memory, MemoryKinds
from profiling.results.record import Record

_BESIDE = (
    "Device used, and in one process also reserved and host RSS, include the variants that were prepared beside each "
    "other; every other number is of one variant alone."
)

#: The memory of a cell at one phase, in bytes by kind.
_Phase = tuple[Record, str, Mapping[str, int | None]]


def memory_section(data: RunData) -> Section:
    """Return the table of memory by phase."""
    phases = [phase for record in data.records for phase in _phases(record)]
    shown = (
        Column[_Phase]("phase", itemgetter(1)),
        *columns(MemoryKinds, "allocated", "reserved", "device_used", "host_rss", of=itemgetter(2)),
        *columns(Memory, "peak_held", "graph_pool", of=itemgetter(2)),
    )
    beside = any(record.turns is not None and record.turns.beside for record in data.records)
    table = cell_table("Memory by phase", shown, phases, [_BESIDE] if beside else [], keys=3)
    return Section("memory", "Memory", tables=(table,))


def _phases(record: Record) -> Iterator[_Phase]:
    """Yield the phases of a cell, those of a capture, then the peaks of preparing and of the timed part."""
    memory, captured = record.memory, record.graphs.memory if record.graphs is not None else {}
    phases: dict[str, Mapping[str, int | None]] = {
        name: structs.asdict(kinds)
        for name, kinds in {**(memory.phases if memory is not None else {}), **captured}.items()
    }
    if record.state is not None and record.state.bytes:
        kind = "host_rss" if record.state.on_host or record.device == "cpu" else "allocated"
        phases["copies of the state"] = {kind: record.state.bytes}
    if memory is not None:
        phases["prepare peak"] = {"allocated": memory.prepare_peak_allocated}
        phases["steady peak"] = {
            **{"allocated": memory.peak_allocated, "reserved": memory.peak_reserved, "host_rss": memory.peak_host_rss},
            **{"peak_held": memory.peak_held, "graph_pool": memory.graph_pool},
        }
    yield from ((record, name, sizes) for name, sizes in phases.items() if set(sizes.values()) != {None})
