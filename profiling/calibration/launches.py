"""The calibration: sweep two chains over sizes and counts, and say what a launch costs on this device.

A cost is the slope of time over the number of calls, never one time over one number: what a sample costs once (the
events, the first launch, the clock) is in the intercept. Slopes are fitted robustly within a round, and the median over
rounds is the number, with its bootstrap interval. Nothing compiles, and Python's garbage collector is off throughout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import torch

from profiling.calibration.chains import chains
from profiling.calibration.headline import Readings
from profiling.calibration.options import CalibrationOptions
from profiling.calibration.sweep import points, take_rounds
from profiling.calibration.takers import cpu_takers, cuda_takers
from profiling.core.garbage import no_garbage_collection
from profiling.errors import InputError


def calibrate(
    device: torch.device, options: CalibrationOptions, on_progress: Callable[[str], None]
) -> Mapping[str, Any]:
    """Measure and return plain JSON: {"launch_calibration", "operators", "points"}.

    `launch_calibration` holds the headline numbers, each {"p50", "ci95", "n"} over rounds: at its top level those of
    the smallest elementwise operator, under "linear" those of a linear, by call. What was not measured is not there.

    - CUDA: `host_us_per_launch` (eager, queue never full), `gpu_us_per_launch` (queue full), `graph_us_per_node`,
      `graph_launch_host_us` and `graph_host_us_per_node` (time of `replay()` = first + second × nodes),
      `graph_launch_device_us`; `starvation_elements` or `starvation_width`: the size at which the device takes as
      long for an operator as the host for launching it, `starvation_us` long, of `starvation_bytes` and, for a
      linear, `starvation_flops`. Below, an eager loop leaves the device idle. `starvation_note` says why there is none.
    - CPU: `dispatch_us_per_operator`; `dispatch_bound_elements` or `dispatch_bound_width`, `_bytes`, `_flops`,
      `_note`: the size at which an operator works as long as it is dispatched.

    `operators` holds microseconds a call at each size (host, device when queued, the pace of an eager loop; on
    a CPU the host's alone); `points` every measured point (see `sweep.points`): all of it can be fitted again.

    `on_progress` is given a line before each round.

    Raises:
        InputError: a device that is neither a CPU nor CUDA.
        torch.OutOfMemoryError: the largest sizes do not fit.

    """
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"device={device}: launches are measured on cpu and cuda. Use one of them.")
    on_cuda = device.type == "cuda"
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode())
        if on_cuda:
            stack.enter_context(torch.cuda.device(device))
        stack.enter_context(no_garbage_collection())
        both = chains(device, options)
        takers = cuda_takers(both, options.counts, device) if on_cuda else cpu_takers(both)
        times = take_rounds(takers, options.counts, options.rounds, options.seed, on_progress)
    elementwise, linear = (Readings(chain, times) for chain in both)
    facts = {"device": str(device), "dtype": options.dtype, "rounds": options.rounds}
    numbers = elementwise.launch() | elementwise.graph() if on_cuda else elementwise.dispatch()
    of_linear = {"rows": options.rows, **(linear.launch() if on_cuda else linear.dispatch())}
    return {
        "launch_calibration": {**facts, **numbers, "linear": of_linear},
        "operators": elementwise.operators() + linear.operators(),
        "points": points(times),
    }
