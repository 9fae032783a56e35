"""Hardware counters of the longest kernels of a call, and how far they confirm what the trace says bounds a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from profiling.report.format import percent
from profiling.report.run_data import RunData, cell_table, name_of
from profiling.report.table import Column, Table
from profiling.results.record import CountedKernel, Record

COUNTERS = "Hardware counters of the longest kernels"
_NEARLY_ALL = 0.9  # of a kernel's time
_MEANING = (
    "Measured by ncu (Nsight Compute), in shares of the peak of the device. Bound by counters, from 60% of a peak: "
    "memory bandwidth (DRAM), compute (tensor or FMA pipes), or L2 bandwidth: L2 alone, because the kernel reads the "
    "same data several times, or little of each sector that it fetches; one that reads each byte once would be faster. "
    "Neither: a kernel below, which is short, waits, or is busy with other instructions (SM: multiprocessors, "
    "instructions of any kind). Bound by trace: the same threshold, as 71% of a measured ceiling, for the bytes and "
    "FLOPs of its operators. It cannot see L2: where both say the same but for L2, the last column says so."
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
    """Milliseconds a call of kernels that counters and trace judge alike, alike but for L2, otherwise, and of all."""

    same: float
    cache: float
    different: float
    whole: float

    @property
    def both(self) -> float:
        """Milliseconds of the kernels that both judge."""
        return self.same + self.cache + self.different


def agreement_line(record: Record) -> str:
    """Return for how much of the kernel time counters and trace name the same bound; empty where nothing has both."""
    if record.hardware_counters is None:
        return ""
    found = agreement(record.hardware_counters.kernels)
    if not found.both:
        return ""
    cache = f", and for {percent(found.cache / found.both)} but for L2" if found.cache else ""
    return (
        f"{name_of(record)}: counters and trace name the same bound for {percent(found.same / found.both)} of the time "
        f"of the kernels that both judge ({percent(found.both / found.whole)} of those listed){cache}."
    )


def agreement(kernels: Sequence[CountedKernel]) -> Agreement:
    """Return how much of the kernels' time counters and trace judge alike."""

    def spent(word: str) -> float:
        return sum(each.ms for each in kernels if agrees(each) == word)

    return Agreement(spent("yes"), spent("but for L2"), spent("no"), sum(each.ms for each in kernels))


def agrees(kernel: CountedKernel) -> Literal["yes", "but for L2", "no"] | None:
    """Return whether both name the same bound; None where one does not judge.

    Memory bandwidth by trace is the rate of the fastest copy of as many bytes, which may pass at the rate of L2. A
    kernel that L2 bounds and whose own bytes are few is `neither` to the trace, which does not see L2.
    """
    counted, traced = kernel.bound_by_counters, kernel.bound_by_trace
    if counted is None or traced is None:
        return None
    if counted == traced or (counted, traced) == ("L2 bandwidth", "memory bandwidth"):
        return "yes"
    return "but for L2" if (counted, traced) == ("L2 bandwidth", "neither") else "no"


def bytes_by_trace(record: Record, kernel: CountedKernel) -> float | None:
    """Return the mean bytes of a launch by the trace; None where they are not known.

    They are those of all its launches, so they compare with the bytes that counters saw where these cover nearly all.
    """
    named = () if record.trace_analysis is None else record.trace_analysis.kernels
    same = [each for each in named if each.name == kernel.name]
    known = len(same) == 1 and (kernel.covered or 0.0) >= _NEARLY_ALL
    return same[0].gbps * same[0].mean_us * 1e3 if known and same[0].gbps and same[0].mean_us else None


def traffic(record: Record, kernel: CountedKernel) -> float | None:
    """Return the bytes that DRAM moved over the bytes by trace; None where one is not known."""
    counted = bytes_by_trace(record, kernel)
    return kernel.dram_bytes / counted if counted and kernel.dram_bytes is not None else None


_COLUMNS = (
    Column[_Row]("kernel", lambda row: row.kernel.name),
    Column[_Row]("total", lambda row: row.kernel.ms, "ms", measured=True),
    Column[_Row]("share", lambda row: row.kernel.share, "percent"),
    Column[_Row]("mean", lambda row: row.kernel.mean_us, "us"),
    Column[_Row]("mean under ncu", lambda row: row.kernel.counted_us, "us"),
    Column[_Row]("DRAM", lambda row: row.kernel.dram, "percent"),
    Column[_Row]("DRAM", lambda row: row.kernel.dram_bytes, "MiB"),
    Column[_Row]("DRAM over bytes by trace", lambda row: traffic(row.record, row.kernel), "ratio"),
    Column[_Row]("L2", lambda row: row.kernel.l2, "percent"),
    Column[_Row]("tensor pipes", lambda row: row.kernel.tensor, "percent"),
    Column[_Row]("FMA pipes", lambda row: row.kernel.fma, "percent"),
    Column[_Row]("SM", lambda row: row.kernel.sm, "percent"),
    Column[_Row]("achieved occupancy", lambda row: row.kernel.occupancy, "percent"),
    Column[_Row]("bound by counters", lambda row: row.kernel.bound_by_counters),
    Column[_Row]("bound by trace", lambda row: row.kernel.bound_by_trace),
    Column[_Row]("agree", lambda row: agrees(row.kernel)),
)
