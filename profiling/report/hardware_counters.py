"""Hardware counters of the longest kernels of a call, and how far they confirm what the trace says bounds a kernel."""

from __future__ import annotations

from typing import Literal

from profiling.report.format import percent
from profiling.report.run_data import RunData, cell_table, name_of
from profiling.report.table import Column, Table, columns
from profiling.results.explained import CountedKernel, KernelBound
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
    lines = filter(None, (agreement_line(record) for record, _ in counted))
    return cell_table(COUNTERS, _COLUMNS, rows, (_MEANING, *lines), 3, "report")


def agreement_line(record: Record) -> str:
    """Return for how much of the kernel time counters and trace name the same bound; empty where nothing has both."""
    kernels = () if record.hardware_counters is None else record.hardware_counters.kernels
    spent: dict[str | None, float] = {}
    for each in kernels:
        spent[agrees(each)] = spent.get(agrees(each), 0.0) + each.ms
    whole = sum(spent.values())
    both = whole - spent.pop(None, 0.0)
    if not both:
        return ""
    cache = spent.get("yes; L2", 0.0)
    more = f" For {percent(cache / both)} counters add the reason: L2." if cache else ""
    return (
        f"{name_of(record)}: counters and trace name the same ceiling, or neither, for "
        f"{percent((cache + spent.get('yes', 0.0)) / both)} of the time of the kernels that both judge "
        f"({percent(both / whole)} of those listed).{more}"
    )


def ceiling_by_counters(kernel: CountedKernel) -> KernelBound | None:
    """Return the ceiling of a kernel by counters, in the classes of a trace, which have no L2.

    Memory bandwidth by trace is the rate of the fastest copy of as many bytes, which may pass at the rate of L2: then
    that is the ceiling. Where a copy of as many bytes is much faster, the kernel asks L2 for more than its bytes, and
    is below both ceilings.
    """
    if kernel.bound_by_counters != "L2 bandwidth":
        return kernel.bound_by_counters
    return "memory bandwidth" if kernel.bound_by_trace == "memory bandwidth" else "neither"


def agrees(kernel: CountedKernel) -> Literal["yes", "yes; L2", "no"] | None:
    """Return whether both name the same ceiling, or neither; None if one of them does not judge.

    `yes; L2`: both say neither, and by counters the reason is L2, which no trace shows.
    """
    if kernel.bound_by_counters is None or kernel.bound_by_trace is None:
        return None
    if ceiling_by_counters(kernel) != kernel.bound_by_trace:
        return "no"
    return "yes; L2" if (kernel.bound_by_counters, kernel.bound_by_trace) == ("L2 bandwidth", "neither") else "yes"


def bytes_by_trace(record: Record, kernel: CountedKernel) -> float | None:
    """Return the mean bytes of a launch by the trace; None where they are not known.

    They are those of all its launches, so they compare with the bytes that counters saw where these cover nearly all.
    """
    named = () if record.trace_analysis is None else record.trace_analysis.kernels
    same = [each for each in named if each.name == kernel.name]
    known = len(same) == 1 and (kernel.covered or 0.0) >= _NEARLY_ALL
    return same[0].gbps * same[0].mean_us * 1e3 if known and same[0].gbps and same[0].mean_us else None


def traffic(record: Record, kernel: CountedKernel, moved: float | None) -> float | None:
    """Return the bytes `moved` by DRAM or L2 over the kernel's bytes by trace; None if one is not known."""
    own = bytes_by_trace(record, kernel)
    return moved / own if own and moved is not None else None


_COLUMNS = (
    *columns(CountedKernel, "name", "ms", "share", "mean_us", "counted_us", "dram", "dram_bytes"),
    Column[_Row]("DRAM over bytes by trace", lambda row: traffic(*row, row[1].dram_bytes), "ratio"),
    *columns(CountedKernel, "l2"),
    Column[_Row]("L2 over bytes by trace", lambda row: traffic(*row, row[1].l2_bytes), "ratio"),
    *columns(CountedKernel, "tensor", "fma", "sm", "occupancy", "bound_by_counters", "bound_by_trace"),
    Column[_Row]("agree", lambda row: agrees(row[1])),
)
