"""Hardware counters of the longest kernels of a call, and how far they confirm what the trace says bounds a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from profiling.report.format import percent
from profiling.report.run_data import RunData, cell_table, name_of
from profiling.report.table import Column, Table
from profiling.results.record import CountedKernel, Record

COUNTERS = "Hardware counters of the longest kernels"
_MEANING = (
    "Measured by ncu (Nsight Compute), in shares of the peak of the device. Bound by counters: memory bandwidth from "
    "60% of the peak of DRAM or L2, compute from 60% of that of tensor or FMA pipes, the larger of both; neither for a "
    "kernel below, which is short, waits, or is busy with other instructions (SM: multiprocessors, instructions of any "
    "kind). Bound by trace: the same from 70% of a measured ceiling, by the bytes and FLOPs of its operators."
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


def agreement_line(record: Record) -> str:
    """Return for how much of the kernel time counters and trace name the same bound; empty where nothing has both."""
    if record.hardware_counters is None:
        return ""
    same, both, whole = agreement(record.hardware_counters.kernels)
    if not both:
        return ""
    return (
        f"{name_of(record)}: counters and trace name the same bound for {percent(same / both)} of the time of the "
        f"kernels that both judge ({percent(both / whole)} of those listed)."
    )


def agreement(kernels: Sequence[CountedKernel]) -> tuple[float, float, float]:
    """Return milliseconds a call of kernels with the same bound by counters and trace, with both, and of all."""
    judged = [each for each in kernels if each.bound_by_counters is not None and each.bound_by_trace is not None]
    same = sum(each.ms for each in judged if each.bound_by_counters == each.bound_by_trace)
    return same, sum(each.ms for each in judged), sum(each.ms for each in kernels)


def _agrees(kernel: CountedKernel) -> str | None:
    if kernel.bound_by_counters is None or kernel.bound_by_trace is None:
        return None
    return "yes" if kernel.bound_by_counters == kernel.bound_by_trace else "no"


_COLUMNS = (
    Column[_Row]("kernel", lambda row: row.kernel.name),
    Column[_Row]("total", lambda row: row.kernel.ms, "ms", measured=True),
    Column[_Row]("share", lambda row: row.kernel.share, "percent"),
    Column[_Row]("mean", lambda row: row.kernel.mean_us, "us"),
    Column[_Row]("mean under ncu", lambda row: row.kernel.counted_us, "us"),
    Column[_Row]("DRAM", lambda row: row.kernel.dram, "percent"),
    Column[_Row]("DRAM", lambda row: row.kernel.dram_bytes, "MiB"),
    Column[_Row]("L2", lambda row: row.kernel.l2, "percent"),
    Column[_Row]("tensor pipes", lambda row: row.kernel.tensor, "percent"),
    Column[_Row]("FMA pipes", lambda row: row.kernel.fma, "percent"),
    Column[_Row]("SM", lambda row: row.kernel.sm, "percent"),
    Column[_Row]("achieved occupancy", lambda row: row.kernel.occupancy, "percent"),
    Column[_Row]("bound by counters", lambda row: row.kernel.bound_by_counters),
    Column[_Row]("bound by trace", lambda row: row.kernel.bound_by_trace),
    Column[_Row]("agree", lambda row: _agrees(row.kernel)),
)
