"""Launch costs of host and device, of each chain of operators."""

from __future__ import annotations

from profiling.errors import printable
from profiling.report.format import count_of
from profiling.report.page import Section
from profiling.report.run_data import RunData
from profiling.report.table import Column, Table, columns
from profiling.results.explained import LaunchCosts

#: A chain of operators, and what its launches cost.
_Chain = tuple[str, LaunchCosts]


def launches_section(data: RunData) -> Section:
    """Return the table of each calibration; the record has the cost of an operator at each size."""
    tables, lines = [], []
    for launches in (record.launches for record in data.records if record.launches is not None):
        costs = launches.launch_calibration
        chains = [("elementwise", costs), *([("linear", costs.linear)] if costs.linear is not None else [])]
        tables.append(Table("Launch costs", _COSTS, chains))
        lines.append(
            f"{costs.device}, {costs.dtype}: slopes over the number of calls, medians of {costs.rounds} rounds with "
            "their 95% intervals."
        )
        for name, each in chains:
            lines += [f"{name}: {note}." for note in (each.starvation_note, each.dispatch_bound_note) if note]
    return Section("launches", "Launch overhead", list(map(printable, lines)), tables=tables)


def _size(chain: LaunchCosts) -> str:
    return count_of(chain.elements, "element") if chain.elements is not None else f"width {chain.width}"


_COSTS = (
    Column[_Chain]("chain", lambda row: row[0]),
    Column[_Chain]("size", lambda row: _size(row[1])),
    *columns(LaunchCosts, "rows"),
    *columns(LaunchCosts, "host_us_per_launch", "gpu_us_per_launch", "graph_us_per_node", "graph_launch_device_us"),
    *columns(LaunchCosts, "graph_launch_host_us", "graph_host_us_per_node", "dispatch_us_per_operator"),
    *columns(LaunchCosts, "starvation_elements", "starvation_width", "starvation_us"),
    *columns(LaunchCosts, "dispatch_bound_elements", "dispatch_bound_width"),
)
