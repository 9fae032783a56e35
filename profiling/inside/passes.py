"""Short profiler passes beside the main trace: one with a span for each submodule, one with a span for each line."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity

from profiling.inside.timeline import Timeline, timeline
from profiling.tracing.chrome_trace import read_events
from profiling.tracing.profiler import synchronize
from profiling.tracing.spans import cell_span, span


def short_trace(
    call: Callable[[], object],
    device: torch.device,
    around: Callable[[], AbstractContextManager[None]],
    *,
    cell: tuple[str, str],
    calls: int = 1,
) -> Timeline:
    """Profile `calls` calls, one more before them for the profiler to start up, all inside `around()`.

    `cell` is (component, variant). The calls move a network's state on, as those of the main trace do.
    """
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with tempfile.TemporaryDirectory(prefix="profiling-") as folder:
        file = Path(folder) / "trace.json"
        with (
            torch.profiler.profile(
                activities=activities,
                schedule=torch.profiler.schedule(wait=0, warmup=1, active=calls, repeat=1),
                on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(file)),
                record_shapes=True,
                acc_events=True,
            ) as profiler,
            cell_span(*cell, "trace"),
        ):
            for index in range(-1, calls):
                with span("warmup" if index < 0 else str(index)), around():
                    call()
                synchronize(device)
                profiler.step()
        return timeline(read_events(file))
