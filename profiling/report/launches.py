"""Launch costs of host and device: the headline numbers of each chain of operators, and each operator by size."""

from __future__ import annotations

from profiling.errors import printable
from profiling.report.format import ABSENT, Value, count_of, show
from profiling.report.page import Section
from profiling.report.run_data import RunData
from profiling.report.table import Column, Table, columns
from profiling.results.explained import LaunchCosts, LaunchOverhead, OperatorCost


def launches_section(data: RunData) -> Section:
    """Return the headline table and the table by operator size of each calibration."""
    tables, lines = [], []
    for launches in (record.launches for record in data.records if record.launches is not None):
        tables += [_headline(launches), Table("An operator by its size", _OPERATORS, launches.operators)]
        costs = launches.launch_calibration
        lines.append(
            f"{costs.device}, {costs.dtype}: slopes over the number of calls, medians of {costs.rounds} rounds with "
            "their 95% intervals."
        )
        for name, each in _chains(launches).items():
            lines += [f"{name}: {note}." for note in (each.starvation_note, each.dispatch_bound_note) if note]
    return Section("launches", "Launch overhead", list(map(printable, lines)), tables=tables)


def _chains(launches: LaunchOverhead) -> dict[str, LaunchCosts]:
    costs = launches.launch_calibration
    return {"elementwise": costs} | ({"linear": costs.linear} if costs.linear is not None else {})


def _headline(launches: LaunchOverhead) -> Table[tuple[str, ...]]:
    """Return a table with a row for each cost and a column for each chain of operators."""
    chains = _chains(launches)
    shown = (
        Column[tuple[str, ...]]("what", lambda row: row[0]),
        *(
            Column[tuple[str, ...]](f"{name}, {_size(chain)}", lambda row, place=place: row[place])
            for place, (name, chain) in enumerate(chains.items(), start=1)
        ),
    )
    rows = [(cost.header, *(show(cost.read(chain), cost.kind) for chain in chains.values())) for cost in _COSTS]
    return Table("Launch costs", shown, [row for row in rows if set(row[1:]) != {ABSENT}], keys=1)


def _size(chain: LaunchCosts | OperatorCost) -> str:
    size = count_of(chain.elements, "element") if chain.elements is not None else f"width {chain.width}"
    rows = getattr(chain, "rows", None)
    return size if rows is None else f"{size}, rows {rows}"


def _idle(row: OperatorCost) -> Value | None:
    """Return the share of an eager loop in which the device waits for the next launch."""
    gpu, pace = row.gpu_us, row.pace_us
    # For a device that is always busy this is noise of some tenths of a percent around zero.
    return round(max(0.0, 1 - gpu.p50 / pace.p50), 2) if gpu is not None and pace is not None and pace.p50 else None


_COSTS = columns(
    *(LaunchCosts, "host_us_per_launch", "gpu_us_per_launch"),
    *("graph_us_per_node", "graph_launch_device_us", "graph_launch_host_us", "graph_host_us_per_node"),
    *("starvation_elements", "starvation_width", "starvation_us", "starvation_bytes", "starvation_flops"),
    *("dispatch_us_per_operator", "dispatch_bound_elements", "dispatch_bound_width"),
    *("dispatch_bound_bytes", "dispatch_bound_flops"),
)
_OPERATORS = (
    *columns(OperatorCost, "chain"),
    Column[OperatorCost]("size", _size),
    *columns(OperatorCost, "host_us", "gpu_us", "pace_us"),
    Column[OperatorCost]("GPU idle in eager", _idle, "percent"),
)
