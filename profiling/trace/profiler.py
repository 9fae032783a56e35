"""A torch.profiler pass of its own over a step, for the question why it is not faster.

It never shares a pass with timing: the profiler slows the host down by microseconds an operator. Durations of GPU
kernels are CUPTI's own and stay true, also for kernels that a CUDA graph replays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from profiling.trace.events import WORK, read_events
from profiling.trace.spans import cell_span, span

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


@dataclass(frozen=True)
class TraceResult:
    """What a profiler pass left behind; absent (None) is not measured.

    `trace` and `operators` are paths relative to the run folder. `device_ms` is the summed duration of kernels, copies
    and fills per iteration in milliseconds (work that overlaps on two streams counts twice), None on a CPU or where
    CUPTI saw nothing. `device_launches` is their number per iteration. `flops` is what the profiler's formulas count
    per iteration: matrix products, convolutions, additions and multiplications that ran as aten operators. A compiled
    or replayed step hides its operators, and attention has no formula: a lower bound, None where nothing counted.
    """

    trace: str
    operators: str
    iterations: int
    events: int
    device_ms: float | None
    device_launches: float | None
    flops: float | None


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
) -> TraceResult:
    """Profile `iterations` calls of a prepared `step` into `folder`, the run folder's `traces`.

    Writes `<component>.<variant>.json.gz`, a Chrome trace (Perfetto and chrome://tracing open it), and
    `<component>.<variant>.txt`, the top operators. The first `warmup` calls run with the profiler on and are thrown
    away, since the first start of CUPTI takes long; the device is idle at the start of every iteration.

    Raises:
        ValueError: `iterations` or `warmup` is below one.

    """
    if iterations < 1 or warmup < 1:
        raise ValueError(f"a trace needs at least 1 iteration and 1 warm-up call, got {iterations} and {warmup}")
    folder.mkdir(parents=True, exist_ok=True)
    trace, operators = (folder / f"{component}.{variant}.{end}" for end in ("json.gz", "txt"))
    with _profiler(device, iterations, warmup, stacks, trace) as profiler, cell_span(component, variant, "trace"):
        for index in range(-warmup, iterations):
            with span("warmup" if index < 0 else str(index)):
                step()
            synchronize(device)
            profiler.step()
    averages = profiler.key_averages()
    result = _summarise(averages, trace, operators, iterations)
    title = f"{component}/{variant}: {iterations} profiled iterations on {device}; times are sums over all of them\n"
    operators.write_text(title + operator_tables(averages, on_device=device.type == "cuda"), encoding="utf-8")
    return result


def _profiler(device: torch.device, iterations: int, warmup: int, stacks: bool, trace: Path) -> torch.profiler.profile:
    return torch.profiler.profile(
        activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])],
        # One session with a warm-up phase, not two: stopping and restarting CUPTI around CUDA graphs is fragile.
        schedule=torch.profiler.schedule(wait=0, warmup=warmup, active=iterations, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(trace)),  # gzip, by the name's end
        record_shapes=True,
        profile_memory=True,
        with_flops=True,
        with_stack=stacks,
        acc_events=True,  # without it torch warns that events are cleared at the end of the one cycle
    )


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was given; nothing to wait for on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _summarise(averages: Any, trace: Path, operators: Path, iterations: int) -> TraceResult:
    events, device_work = 0, []
    for event in read_events(trace):
        events += 1
        if event.get("cat") in WORK:
            device_work.append(event["dur"])  # microseconds
    flops = sum(average.flops for average in averages)
    run_folder = trace.parent.parent
    return TraceResult(
        trace=trace.relative_to(run_folder).as_posix(),
        operators=operators.relative_to(run_folder).as_posix(),
        iterations=iterations,
        events=events,
        device_ms=sum(device_work) / 1e3 / iterations if device_work else None,
        device_launches=len(device_work) / iterations if device_work else None,
        flops=flops / iterations if flops else None,
    )
