"""Energy of a call and of a frame, by cell, and a chart of speed against energy over the variants."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from profiling.errors import printable
from profiling.report.charts import Chart, Figure, View, axis, error_bars, figure, points, scale
from profiling.report.format import Estimate, Value, estimate
from profiling.report.page import Section
from profiling.report.run_data import RunData, cell_table, cell_words, itself, name_of
from profiling.report.table import Column
from profiling.results.energy import Energy
from profiling.results.judgement import by_component
from profiling.results.record import Record

#: Title of the table of energies.
ENERGY = "Energy by the counter of the GPU"
_LEGEND = (
    "J/frame: energy of the whole GPU over windows of frames that follow each other, each waited for; in brackets its "
    "95% interval over the windows. It does not contain the host. Idle: power of the GPU before, while nothing ran.",
    "Above idle: without the idle power for the time of a frame; its interval does not contain the error of the idle "
    "power. Frames/J: 1 / (J/frame).",
)


def energy_section(data: RunData) -> Section:
    """Return the table of energies, a line for each cell whose energy is not known, and the chart."""
    asked = [record for record in data.records if record.energy is not None]
    rows = [record for record in asked if joules_per_frame(record) is not None]
    reasons: dict[str, list[str]] = {}
    for record in asked:
        if record.energy is not None and record.energy.reason is not None:
            reasons.setdefault(record.energy.reason, []).append(name_of(record))
    lines = [f"Energy of {', '.join(names)} is not known: {reason}." for reason, names in reasons.items()]
    views = [
        View(component, drawn)
        for component, group in by_component(rows).items()
        if (drawn := _figure(data, group)) is not None
    ]
    note = "Lower left is better: faster, and less energy a frame. Bars: 95% intervals. Failed cells are left out."
    chart = Chart("energy", "Energy of a frame against its time", views, note)
    table = cell_table(ENERGY, _COLUMNS, rows, itself)
    legend = _LEGEND if rows else ()
    return Section("energy", "Energy", tuple(map(printable, lines)), legend, (table,), (chart,))


def joules_per_frame(record: Record) -> Value | None:
    """Return the joules of a frame with their interval; None where they are not known."""
    energy = record.energy
    return None if energy is None else _of_a_frame(energy, energy.joules_per_frame, energy.joules_per_call_ci95)


def _of_a_frame(energy: Energy, joules: float | None, of_a_call: Sequence[float] | None) -> Value | None:
    """Return joules of a frame with the interval of those of a call."""
    if energy.joules_per_frame is None or energy.joules_per_call is None:
        return None
    frames = energy.joules_per_call / energy.joules_per_frame
    return estimate(joules, None if of_a_call is None else [end / frames for end in of_a_call])


def _above_idle(energy: Energy) -> Value | None:
    return _of_a_frame(energy, energy.above_idle_per_frame, energy.above_idle_per_call_ci95)


def _of(read: Callable[[Energy], Value | None]) -> Callable[[Record], Value | None]:
    return lambda record: None if record.energy is None else read(record.energy)


def _per_call(energy: Energy) -> float | None:
    """Return the joules of a call where it makes several frames."""
    return energy.joules_per_call if energy.joules_per_call != energy.joules_per_frame else None


_COLUMNS = (
    Column[Record]("J/frame", joules_per_frame, "number", unit="", measured=True, wrap=12),
    Column[Record]("above idle", _of(_above_idle), "number", unit="J", measured=True, wrap=12),
    Column[Record]("frames/J", _of(lambda energy: energy.frames_per_joule), "number", measured=True),
    Column[Record]("J/call", _of(_per_call), "number", measured=True),
    Column[Record]("power", _of(lambda energy: energy.watts), "number", unit="W", measured=True),
    Column[Record]("idle", _of(lambda energy: energy.idle_w), "number", unit="W"),
    Column[Record]("windows", _of(lambda energy: len(energy.windows)), "count", depth="report"),
    Column[Record](
        "of", _of(lambda energy: sum(each.seconds for each in energy.windows)), "s", unit="s in all", depth="report"
    ),
    Column[Record]("counter steps every", _of(lambda energy: energy.step_ms), "number", unit="ms", depth="report"),
)


def _figure(data: RunData, group: Sequence[Record]) -> Figure | None:
    """Draw the energy of a frame over its median time, a point for each correct variant."""
    traces, all_ms, all_joules = [], [], []
    for record in group:
        value, energy = record.median_ms, record.energy
        if value is None or energy is None or energy.joules_per_frame is None or not record.is_correct:
            continue
        frame_ms = value / (record.frames_per_call or 1)
        shown = joules_per_frame(record)
        ends = [(shown.low, shown.high)] if isinstance(shown, Estimate) else [None]
        colour, name = data.colours[record.variant], cell_words(record)
        drawn = points(name, [frame_ms], [energy.joules_per_frame], colour=colour, size=11)
        traces.append({**drawn, "error_y": error_bars([energy.joules_per_frame], ends)})
        all_ms.append(frame_ms)
        all_joules.append(energy.joules_per_frame)
    if not traces:
        return None
    x = axis("median time of a frame, ms", **scale(all_ms))
    return figure(traces, x, axis("energy of a frame, J", **scale(all_joules)))
