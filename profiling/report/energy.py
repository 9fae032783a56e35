"""Energy of a call and of a frame, by cell."""

from __future__ import annotations

from profiling.errors import printable
from profiling.report.format import Value, estimate, named_once
from profiling.report.page import Section
from profiling.report.run_data import RunData, cell_table, name_of
from profiling.report.table import columns
from profiling.results.record import Record

#: Title of the table of energies.
ENERGY = "Energy by the counter of the GPU"
_LEGEND = (
    "Energy of the whole GPU over windows of frames that follow each other, each waited for, with 95% intervals over "
    "the windows. It does not contain the host. Idle: power of the GPU before, while nothing ran. Above idle: "
    "without that power; its interval does not contain the error of the idle power.",
)


def energy_section(data: RunData) -> Section:
    """Return the table of energies, and a line for each cell whose energy is not known."""
    rows = [record for record in data.records if joules_per_frame(record) is not None]
    unknown = named_once((name_of(r), r.energy.reason) for r in data.records if r.energy and r.energy.reason)
    lines = [f"Energy of {', '.join(names)} is not known: {reason}." for reason, names in unknown.items()]
    return Section("energy", "Energy", tuple(map(printable, lines)), _LEGEND, (cell_table(ENERGY, _COLUMNS, rows),))


def joules_per_frame(record: Record) -> Value | None:
    """Return the joules of a frame with their interval; None where they are not known."""
    energy = record.energy
    return None if energy is None else estimate(energy.joules_per_frame, energy.joules_per_frame_ci95)


_COLUMNS = (
    *columns(Record, "joules_per_frame", "above_idle_per_frame", at="energy", measured=True, wrap=12),
    *columns(Record, "watts", at="energy", measured=True),
    *columns(Record, "idle_w", at="energy"),
)
