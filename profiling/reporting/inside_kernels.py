"""The kernels of a call by their total time, each against what this device was measured to do at best."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from profiling.reporting.facts import added, at, items_at, number_at
from profiling.reporting.format import ABSENT, average_count, one_line, percent, significant
from profiling.reporting.grid import grid, noted
from profiling.reporting.table import shown_times
from profiling.results.records import Record

_HEADERS = (
    *("component", "variant", "kernel", "class", "count", "mean µs", "total ms", "share"),
    *("GB/s", "of the bandwidth", "TFLOP/s", "of the product rate"),
)
_NOTE = (
    "Of the bandwidth: the faster of copy and read in the ceilings; above 100%, bytes came from a cache. "
    "Of the product rate: that of the run's dtype."
)

#: Copies over the bus, as CUPTI names them: the device's memory is not what bounds them.
_CROSSES = re.compile(r"Memcpy (HtoD|DtoH)")


def kernel_table(records: Sequence[Record], environment: Mapping[str, Any], *, most: int) -> str:
    """Return the Markdown table of the `most` longest kernels of each cell; empty where no trace saw one."""
    rows = [row for record in records for row in _rows(record, environment, most)]
    table = grid(_HEADERS, rows, markdown=True, names=4)
    return noted(table, (_NOTE,)) if any(row[9] != ABSENT or row[11] != ABSENT for row in rows) else table


def _rows(record: Record, environment: Mapping[str, Any], most: int) -> Iterator[tuple[str, ...]]:
    found = [item for item in items_at(record.inside, "kernels") if isinstance(item, Mapping)]
    kernels = sorted(found, key=lambda kernel: -(number_at(kernel, "ms") or 0.0))
    bandwidth, products = _ceilings(record, environment)
    for kernel in kernels[:most]:
        yield (
            *(record.component, record.variant, one_line(at(kernel, "name") or "?")),
            one_line(at(kernel, "class") or ABSENT),
            average_count(number_at(kernel, "count")),
            *shown_times(record, significant(number_at(kernel, "mean_us"), 3), significant(number_at(kernel, "ms"))),
            percent(number_at(kernel, "share"), 1),
            *_achieved(number_at(kernel, "gbps"), None if _CROSSES.match(str(at(kernel, "name"))) else bandwidth),
            *_achieved(number_at(kernel, "tflops"), products),
        )
    if rest := kernels[most:]:
        count, ms, share = (added(rest, key) for key in ("count", "ms", "share"))
        names = (record.component, record.variant, f"and {len(rest)} more", ABSENT, average_count(count), ABSENT)
        yield (*names, *shown_times(record, significant(ms)), percent(share, 1), *[ABSENT] * 4)


def _ceilings(record: Record, environment: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Return the measured bandwidth in GB/s and the rate of products in TFLOP/s; None where they do not apply."""
    ceilings = at(environment, "ceilings")
    rates = [rate for key in ("copy_bytes_per_s", "read_bytes_per_s") if (rate := number_at(ceilings, key))]
    products = number_at(ceilings, "matmul_flops_per_s") if at(ceilings, "dtype") == record.dtype else None
    return max(rates) / 1e9 if rates else None, products / 1e12 if products else None


def _achieved(rate: float | None, ceiling: float | None) -> tuple[str, str]:
    return significant(rate, 3), percent(None if rate is None or not ceiling else rate / ceiling)
