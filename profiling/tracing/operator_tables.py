"""The top operators of a profiler pass as text, to be read beside the trace."""

from __future__ import annotations

from typing import Any

_ROWS = 30


def operator_tables(averages: Any, *, on_device: bool) -> str:
    """Return the tables by device time (where `on_device`) and by CPU time, each operator's own without its callees'.

    `averages` is what `torch.profiler.profile.key_averages()` returns. Spans, ours and the profiler's, are taken out of
    it: they are stretches of work, not operators, and would stand above every one of them.
    """
    averages[:] = [average for average in averages if not _is_span(average)]  # in place: it stays an EventList
    keys = {"CPU time": "self_cpu_time_total"}
    if on_device:
        # torch renamed it once, from self_cuda_time_total.
        renamed = all(hasattr(average, "self_device_time_total") for average in averages)
        keys = {"device time": "self_device_time_total" if renamed else "self_cuda_time_total", **keys}
    return "".join(
        f"\nTop operators by {what} of their own\n"
        + averages.table(sort_by=key, row_limit=_ROWS, max_name_column_width=90)
        for what, key in keys.items()
    )


def _is_span(average: Any) -> bool:
    return bool(getattr(average, "is_user_annotation", False)) or average.key.startswith("ProfilerStep")
