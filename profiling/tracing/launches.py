"""How many times a call makes the host hand something to the GPU: what CUDA graphs are there to save."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity

#: Calls of the CUDA runtime and driver that put work on a stream.
HANDS_OVER = re.compile(r"(cuda|cu)(Launch(Cooperative)?Kernel|Memcpy|Memset|GraphLaunch)")


def host_launches(call: Callable[[], object], *, calls: int = 3) -> float | None:
    """Return kernels, copies, fills and graphs that the host launches a call; None where CUPTI saw none.

    One graph launch counts once, however many nodes it has. For a pass of its own: the profiler slows the host down.
    """
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=1)
    with torch.profiler.profile(activities=activities, schedule=schedule, acc_events=True) as profiler:
        for count in (1, calls):
            for _ in range(count):
                call()
            torch.cuda.synchronize()
            profiler.step()
    seen = sum(average.count for average in profiler.key_averages() if HANDS_OVER.match(average.key))
    return seen / calls if seen else None
