"""Hardware counters of the longest kernels of a call, and how far they confirm what the trace says bounds a kernel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from profiling.report.format import percent
from profiling.report.run_data import RunData, cell_table, name_of
from profiling.report.table import Column, Table
from profiling.results.explained import CountedKernel, KernelBound
from profiling.results.record import Record

COUNTERS = "Hardware counters of the longest kernels"
_NEARLY_ALL = 0.9  # of a kernel's time
_MEANING = (
    "Measured by ncu (Nsight Compute), in shares of the peak of the device. Bound by counters, from 60% of a peak: "
    "memory bandwidth (DRAM), compute (tensor or FMA pipes), or L2 bandwidth: L2 alone, because the kernel reads the "
    "same data several times, or little of each sector that it fetches; one that reads each byte once would be faster. "
    "Neither: a kernel below, which is short, waits, or is busy with other instructions (SM: multiprocessors, "
    "instructions of any kind). Bound by trace: the same threshold, as 70% of a measured ceiling, for the bytes and "
    "FLOPs of its operators. Neither by trace: below both ceilings; a trace does not show the reason. Where it is L2, "
    "the last column says so, and L2 over bytes says how often the kernel asks for the bytes of its operators."
)


@dataclass(frozen=True)
class _Row:
    record: Record
    kernel: CountedKernel


def counters_table(data: RunData) -> Table[_Row]:
    """Return the table of all cells that have counters; empty where none has."""
    rows = [
        _Row(record, kernel)
        for record in data.records
        if record.hardware_counters is not None
        for kernel in record.hardware_counters.kernels
    ]
    lines = [line for record in data.records if (line := agreement_line(record))]
    return cell_table(COUNTERS, _COLUMNS, rows, lambda row: row.record, (_MEANING, *lines), 3, "report")


@dataclass(frozen=True)
class Agreement:
    """Milliseconds of kernel time a call, by the judgements of counters and trace.

    `same`: both name the same ceiling (memory bandwidth, compute) or neither. `cache`, a part of it: neither, with
    L2 as the reason by counters, which no trace shows. `different`: they name different ones. `whole`: all listed
    kernels, including those that one of the two does not judge. `ceiling`: kernels at a ceiling by counters;
    `claimed`: at a ceiling by trace; `confirmed`: at the same ceiling by both.
    """

    same: float
    cache: float
    different: float
    whole: float
    ceiling: float
    claimed: float
    confirmed: float

    @property
    def both(self) -> float:
        """Milliseconds of the kernels that both judge."""
        return self.same + self.different


def agreement_line(record: Record) -> str:
    """Return for how much of the kernel time counters and trace name the same bound; empty where nothing has both."""
    if record.hardware_counters is None:
        return ""
    found = agreement(record.hardware_counters.kernels)
    if not found.both:
        return ""
    cache = f" For {percent(found.cache / found.both)} counters add the reason: L2." if found.cache else ""
    return (
        f"{name_of(record)}: counters and trace name the same ceiling, or neither, for "
        f"{percent(found.same / found.both)} of the time of the kernels that both judge "
        f"({percent(found.both / found.whole)} of those listed).{cache}"
    )


def agreement(kernels: Sequence[CountedKernel]) -> Agreement:
    """Return how much of the kernels' time counters and trace judge alike."""

    def spent(chosen: Iterable[CountedKernel]) -> float:
        return sum(each.ms for each in chosen)

    judged = [each for each in kernels if agrees(each) is not None]
    claimed = [each for each in judged if each.bound_by_trace != "neither"]
    return Agreement(
        same=spent(each for each in judged if agrees(each) != "no"),
        cache=spent(each for each in judged if agrees(each) == "yes; L2"),
        different=spent(each for each in judged if agrees(each) == "no"),
        whole=spent(kernels),
        ceiling=spent(each for each in judged if ceiling_by_counters(each) != "neither"),
        claimed=spent(claimed),
        confirmed=spent(each for each in claimed if agrees(each) == "yes"),
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
    Column[_Row]("kernel", lambda row: row.kernel.name),
    Column[_Row]("total", lambda row: row.kernel.ms, "ms", measured=True),
    Column[_Row]("share", lambda row: row.kernel.share, "percent"),
    Column[_Row]("mean", lambda row: row.kernel.mean_us, "us"),
    Column[_Row]("mean under ncu", lambda row: row.kernel.counted_us, "us"),
    Column[_Row]("DRAM", lambda row: row.kernel.dram, "percent"),
    Column[_Row]("DRAM", lambda row: row.kernel.dram_bytes, "MiB"),
    Column[_Row](
        "DRAM over bytes by trace", lambda row: traffic(row.record, row.kernel, row.kernel.dram_bytes), "ratio"
    ),
    Column[_Row]("L2", lambda row: row.kernel.l2, "percent"),
    Column[_Row]("L2 over bytes by trace", lambda row: traffic(row.record, row.kernel, row.kernel.l2_bytes), "ratio"),
    Column[_Row]("tensor pipes", lambda row: row.kernel.tensor, "percent"),
    Column[_Row]("FMA pipes", lambda row: row.kernel.fma, "percent"),
    Column[_Row]("SM", lambda row: row.kernel.sm, "percent"),
    Column[_Row]("achieved occupancy", lambda row: row.kernel.occupancy, "percent"),
    Column[_Row]("bound by counters", lambda row: row.kernel.bound_by_counters),
    Column[_Row]("bound by trace", lambda row: row.kernel.bound_by_trace),
    Column[_Row]("agree", lambda row: agrees(row.kernel)),
)
