"""Profiles a step with torch.profiler into files of the run folder, in a pass separate from timing.

The profiler slows down the host by some microseconds per operator. Durations of GPU kernels come from CUPTI and are
right, even for kernels that a CUDA graph replays.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from profiling.results.explanations import TraceFiles
from profiling.trace.device_work import detached_afterwards
from profiling.trace.spans import cell_span, span


def trace_step(
    step: Callable[[], object],
    *,
    component: str,
    variant: str,
    folder: Path,
    iterations: int = 5,
    warmup: int = 2,
    device: torch.device,
    stacks: bool = False,
) -> TraceFiles:
    """Profile `iterations` calls of `step` into `folder`, the run folder's `traces`.

    Writes `<component>.<variant>.json.gz`, a Chrome trace for Perfetto or chrome://tracing, and
    `<component>.<variant>.txt`, tables of operators. The first `warmup` profiled calls are discarded, because CUPTI
    starts slowly. Each iteration starts on an idle device. The profiler's FLOP formulas miss attention, and every
    operator of a compiled or replayed step.

    Raises:
        ValueError: `iterations` or `warmup` is below one.

    """
    if iterations < 1 or warmup < 1:
        raise ValueError(f"a trace needs at least 1 iteration and 1 warm-up call, got {iterations} and {warmup}")
    folder.mkdir(parents=True, exist_ok=True)
    trace, operators = (folder / f"{component}.{variant}.{end}" for end in ("json.gz", "txt"))
    on_device = device.type == "cuda"
    profiler = torch.profiler.profile(
        activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_device else [])],
        # One session with a warm-up phase: restarting CUPTI around CUDA graphs is fragile.
        schedule=torch.profiler.schedule(wait=0, warmup=warmup, active=iterations, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(trace)),  # the suffix selects gzip
        record_shapes=True,
        profile_memory=True,
        with_flops=True,
        with_stack=stacks,
        acc_events=True,  # avoids a warning that events are cleared after the cycle
    )
    with detached_afterwards(on_device) as traced, profiler, cell_span(component, variant, "trace"):
        for index in range(-warmup, iterations):
            with span("warmup" if index < 0 else str(index)):
                step()
            synchronize(device)
            if index < 0:
                traced()
            profiler.step()
    averages = profiler.key_averages()
    title = f"{component}/{variant}: {iterations} profiled iterations on {device}; times are sums over all of them\n"
    operators.write_text(title + operator_tables(averages, on_device=on_device), encoding="utf-8")
    run_folder = folder.parent
    return TraceFiles(
        trace=trace.relative_to(run_folder).as_posix(), operators=operators.relative_to(run_folder).as_posix()
    )


def synchronize(device: torch.device) -> None:
    """Wait until the device is idle; return at once on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def operator_tables(averages: Any, *, on_device: bool) -> str:
    """Return the tables of operators by self device time (where `on_device`) and by self CPU time.

    `averages` is the EventList of `torch.profiler.profile.key_averages()`. Spans are removed from it, since they would
    come before every operator.
    """
    operators = [each for each in averages if not each.is_user_annotation and not each.key.startswith("ProfilerStep")]
    averages[:] = operators  # in place, so that it stays an EventList
    keys = {"device time": "self_device_time_total"} if on_device else {}
    return "".join(
        f"\nTop operators by self {what}\n" + averages.table(sort_by=key, row_limit=30, max_name_column_width=90)
        for what, key in {**keys, "CPU time": "self_cpu_time_total"}.items()
    )
