"""Hardware counters of the longest kernels of a call, and what bounds each by counters and by the trace."""

from __future__ import annotations

from profiling.report.run_data import RunData, cell_table
from profiling.report.table import Column, Table, columns
from profiling.results.explained import CountedKernel
from profiling.results.record import Record

COUNTERS = "Hardware counters of the longest kernels"
_NEARLY_ALL = 0.9  # of a kernel's time
_MEANING = (
    "Measured by ncu (Nsight Compute), in shares of the peak of the device. Bound by counters: what reaches 60% of its "
    "peak; L2 alone where the kernel reads the same data several times, or little of each sector that it fetches. "
    "Bound by trace: 70% of a measured ceiling, for the bytes and FLOPs of its operators. Neither: it is short, waits, "
    "or is busy with other instructions."
)

_Row = tuple[Record, CountedKernel]


def counters_table(data: RunData) -> Table[_Row]:
    """Return the table of all cells that have counters; empty where none has."""
    counted = [(record, record.hardware_counters) for record in data.records if record.hardware_counters is not None]
    rows = [(record, kernel) for record, counters in counted for kernel in counters.kernels]
    return cell_table(COUNTERS, _COLUMNS, rows, (_MEANING,), 3)


def traffic(record: Record, kernel: CountedKernel, moved: float | None) -> float | None:
    """Return the bytes `moved` by DRAM or L2 in a launch over the kernel's mean bytes by trace; None if not known.

    The trace's bytes are of all launches, so they compare with those that counters saw where these cover nearly all.
    """
    named = () if record.trace_analysis is None else record.trace_analysis.kernels
    same = [each for each in named if each.name == kernel.name]
    known = len(same) == 1 and (kernel.covered or 0.0) >= _NEARLY_ALL
    own = same[0].gbps * same[0].mean_us * 1e3 if known and same[0].gbps and same[0].mean_us else None
    return moved / own if own and moved is not None else None


_COLUMNS = (
    *columns(CountedKernel, "name", "ms", "share", "mean_us", "counted_us", "dram", "l2"),
    Column[_Row]("L2 over bytes by trace", lambda row: traffic(*row, row[1].l2_bytes), "ratio"),
    *columns(CountedKernel, "tensor", "fma", "sm", "occupancy", "bound_by_counters", "bound_by_trace"),
)
