"""Launch costs of host and device: the headline numbers of each chain of operators, and each operator by size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from profiling.errors import printable
from profiling.report.format import MIB, Estimate, Value, count_of, estimate
from profiling.report.page import Section
from profiling.report.run_data import RunData
from profiling.report.table import Column, Table
from profiling.results.explained import Estimate as Median
from profiling.results.explained import LaunchCosts, LaunchOverhead, OperatorCost

#: Label of a headline number, its field, and the divisor that converts the field to the label's unit.
_CUDA = (
    ("host time of a launch (eager), µs", "host_us_per_launch", 1),
    ("GPU time of a launch (queue full), µs", "gpu_us_per_launch", 1),
    ("GPU time of a graph node, µs", "graph_us_per_node", 1),
    ("GPU time of a graph launch, µs", "graph_launch_device_us", 1),
    ("host time of a graph launch, µs", "graph_launch_host_us", 1),
    ("host time of a graph launch by node, µs", "graph_host_us_per_node", 1),
    ("GPU idles below: elements, millions", "starvation_elements", 1e6),
    ("GPU idles below: width", "starvation_width", 1),
    ("GPU idles below: time of an operator, µs", "starvation_us", 1),
    ("GPU idles below: MiB of an operator", "starvation_bytes", MIB),
    ("GPU idles below: MFLOP of an operator", "starvation_flops", 1e6),
)
_CPU = (
    ("dispatch of an operator (eager), µs", "dispatch_us_per_operator", 1),
    ("work as long as dispatch: elements", "dispatch_bound_elements", 1),
    ("work as long as dispatch: width", "dispatch_bound_width", 1),
    ("work as long as dispatch: KiB of an operator", "dispatch_bound_bytes", 1024),
    ("work as long as dispatch: kFLOP of an operator", "dispatch_bound_flops", 1e3),
)


@dataclass(frozen=True)
class _Line:
    """A headline number of each chain; None where a chain has none."""

    words: str
    elementwise: Estimate | float | None
    linear: Estimate | float | None


def launches_section(data: RunData) -> Section:
    """Return the headline table and the table by operator size of each calibration."""
    tables, lines = [], []
    for launches in (record.launches for record in data.records if record.launches is not None):
        costs = launches.launch_calibration
        on_cpu = costs.device == "cpu"
        headers = [f"elementwise, {_size(costs)}", f"linear, {_size(costs.linear)}"]
        columns = (
            Column[_Line]("what", lambda row: row.words),
            Column[_Line](headers[0], lambda row: row.elementwise, "number"),
            Column[_Line](headers[1], lambda row: row.linear, "number"),
        )
        tables.append(Table("Launch costs", columns, list(_headline(costs, costs.linear, on_cpu=on_cpu)), keys=1))
        tables.append(Table("An operator by its size", _operators(on_cpu), launches.operators))
        lines += _notes(launches)
    return Section("launches", "Launch overhead", lines, tables=tables)


def _headline(costs: LaunchCosts, linear: LaunchCosts | None, *, on_cpu: bool) -> Iterator[_Line]:
    for words, field, unit in _CPU if on_cpu else _CUDA:
        numbers = [_shown(getattr(chain, field, None), unit) for chain in (costs, linear)]
        if any(number is not None for number in numbers):
            yield _Line(words, *numbers)


def _shown(median: Median | None, unit: float = 1) -> Estimate | float | None:
    if median is None:
        return None
    return estimate(median.p50 / unit, None if median.ci95 is None else [end / unit for end in median.ci95])


def _notes(launches: LaunchOverhead) -> list[str]:
    costs = launches.launch_calibration
    lines = [
        f"{costs.device}, {costs.dtype}: slopes over the number of calls, medians of {costs.rounds} rounds with their "
        "95% intervals."
    ]
    for name, chain in (("elementwise", costs), ("linear", costs.linear)):
        for note in (getattr(chain, "starvation_note", None), getattr(chain, "dispatch_bound_note", None)):
            lines += [f"{name}: {note}."] if note else []
    return list(map(printable, lines))


def _size(chain: LaunchCosts | OperatorCost | None) -> str:
    if chain is None:
        return ""
    size = count_of(chain.elements, "element") if chain.elements is not None else f"width {chain.width}"
    rows = getattr(chain, "rows", None)
    return size if rows is None else f"{size}, rows {rows}"


def _operators(on_cpu: bool) -> Sequence[Column[OperatorCost]]:
    names = (Column[OperatorCost]("chain", lambda row: row.chain), Column[OperatorCost]("size", _size))
    if on_cpu:
        return (*names, Column("a call", lambda row: _shown(row.host_us), "us"))
    return (
        *names,
        Column("host", lambda row: _shown(row.host_us), "us"),
        Column("GPU (queue full)", lambda row: _shown(row.gpu_us), "us"),
        Column("eager pace", lambda row: _shown(row.pace_us), "us"),
        Column("GPU idle in eager", _idle, "percent"),
    )


def _idle(row: OperatorCost) -> Value | None:
    """Return the share of an eager loop in which the device waits for the next launch."""
    gpu, pace = row.gpu_us, row.pace_us
    # For a device that is always busy this is noise of some tenths of a percent around zero.
    return round(max(0.0, 1 - gpu.p50 / pace.p50), 2) if gpu is not None and pace is not None and pace.p50 else None
