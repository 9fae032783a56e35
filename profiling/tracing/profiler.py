"""A torch.profiler pass of its own over a step, for the question why it is not faster.

It never shares a pass with timing: the profiler slows the host down by microseconds an operator. Durations of GPU
kernels are CUPTI's own and stay true, also for kernels that a CUDA graph replays.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from profiling.tracing.spans import cell_span, span

# Chrome-trace categories of work on the device; spans drawn on its row (gpu_user_annotation) are not among them.
_DEVICE_WORK = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_ROWS = 30


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
    averages: list[Any] = []

    def keep(profiler: torch.profiler.profile) -> None:
        profiler.export_chrome_trace(str(trace))
        averages.append(profiler.key_averages())

    with _profiler(device, iterations, warmup, stacks, keep) as profiler, cell_span(component, variant, "trace"):
        for index in range(-warmup, iterations):
            with span("warmup" if index < 0 else str(index)):
                step()
            _synchronize(device)
            profiler.step()
    events = _read_events(trace)
    result = _summarise(events, averages[0], trace, operators, iterations)
    title = f"{component}/{variant}: {iterations} profiled iterations on {device}; times are sums over all of them\n"
    operators.write_text(title + _tables(averages[0], device), encoding="utf-8")
    return result


def _profiler(
    device: torch.device, iterations: int, warmup: int, stacks: bool, keep: Callable[[torch.profiler.profile], None]
) -> torch.profiler.profile:
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    return torch.profiler.profile(
        activities=activities,
        # One session with a warm-up phase, not two: stopping and restarting CUPTI around CUDA graphs is fragile.
        schedule=torch.profiler.schedule(wait=0, warmup=warmup, active=iterations, repeat=1),
        on_trace_ready=keep,
        record_shapes=True,
        profile_memory=True,
        with_flops=True,
        with_stack=stacks,
        acc_events=True,  # without it 2.13 warns that a cycle's events are cleared, which is what we want
    )


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _read_events(trace: Path) -> list[dict[str, Any]]:
    with gzip.open(trace, "rt", encoding="utf-8", errors="replace") as stream:
        return json.load(stream)["traceEvents"]


def _summarise(
    events: list[dict[str, Any]], averages: Any, trace: Path, operators: Path, iterations: int
) -> TraceResult:
    device_work = [event["dur"] for event in events if event.get("cat") in _DEVICE_WORK]  # microseconds
    flops = sum(average.flops for average in averages)
    run_folder = trace.parent.parent
    return TraceResult(
        trace=trace.relative_to(run_folder).as_posix(),
        operators=operators.relative_to(run_folder).as_posix(),
        iterations=iterations,
        events=len(events),
        device_ms=sum(device_work) / 1e3 / iterations if device_work else None,
        device_launches=len(device_work) / iterations if device_work else None,
        flops=flops / iterations if flops else None,
    )


def _tables(averages: Any, device: torch.device) -> str:
    """Return the top operators as text, by device time and by CPU time; our own spans are left out of the rows."""
    averages[:] = [average for average in averages if not _is_span(average)]
    keys = {"CPU time": "self_cpu_time_total"}
    if device.type == "cuda":
        # Called self_cuda_time_total before torch 2.4 or so; should it be renamed again, one line here.
        device_key = "self_device_time_total"
        keys = {"device time": device_key if hasattr(averages[0], device_key) else "self_cuda_time_total", **keys}
    tables = [
        f"\nTop operators by {what} of their own\n"
        + averages.table(sort_by=key, row_limit=_ROWS, max_name_column_width=90)
        for what, key in keys.items()
    ]
    return "".join(tables)


def _is_span(average: Any) -> bool:
    return bool(getattr(average, "is_user_annotation", False)) or average.key.startswith("ProfilerStep")
