"""The cell of `launch_overhead`: calibrate, once, in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from profiling.errors import InputError
from profiling.launch_overhead.chains import Chain, chains
from profiling.launch_overhead.fits import Array, at_size, crossing, estimate
from profiling.launch_overhead.options import CalibrationOptions
from profiling.launch_overhead.sampling import Mode, Series, Times, cpu_takers, cuda_takers, points, take_rounds
from profiling.machine.gc_policy import no_garbage_collection
from profiling.run.cell import Cell

Numbers = dict[str, Any]


@dataclass(frozen=True)
class Readings:
    """The samples of one chain, and the numbers in them. A number that was not measured is not in the mapping."""

    chain: Chain
    times: Mapping[Series, Times]

    def dispatch(self) -> Numbers:
        """Return what a call costs a CPU at the smallest size, and the size at which its work takes as long again."""
        totals = [self._of(size, "eager").host_lines().slope for size in self.chain.sizes]  # [rounds] each
        found = self._crossing("dispatch_bound", np.stack([total / (2 * totals[0]) for total in totals], axis=1))
        return self._at_smallest() | _present({"dispatch_us_per_operator": estimate(totals[0])}) | found

    def launch(self) -> Numbers:
        """Return what a launch costs host and device at the smallest size, and below which size the device starves."""
        sizes = self.chain.sizes
        host = np.stack([self._of(size, "eager").host_lines().slope for size in sizes], axis=1)  # [rounds, sizes]
        gpu = np.stack([self._of(size, "eager_queued").device_lines().slope for size in sizes], axis=1)
        launch = {"host_us_per_launch": estimate(host[:, 0]), "gpu_us_per_launch": estimate(gpu[:, 0])}
        return self._at_smallest() | _present(launch) | self._crossing("starvation", gpu / host, host)

    def graph(self) -> Numbers:
        """Return what a node and the launch of a graph cost.

        The device's cost of a launch is what a graph takes beyond its nodes, less what eager calls take beyond theirs
        in the same round: the events around them, and the device starting at all. The host's has two parts, since a
        driver spends a little on each node; how little, for graphs that are a chain, is in
        https://developer.nvidia.com/blog/constant-time-launch-for-straight-line-graphs-and-other-performance-enhancements/
        """
        smallest = self.chain.sizes[0]
        host = self._of(smallest, "graph").host_lines()
        device = self._of(smallest, "graph_queued").device_lines()
        queued = self._of(smallest, "eager_queued").device_lines()
        return _present(
            {
                "graph_us_per_node": estimate(device.slope),
                "graph_launch_host_us": estimate(host.intercept),
                "graph_host_us_per_node": estimate(host.slope),
                "graph_launch_device_us": estimate(device.intercept - queued.intercept),
            }
        )

    def operators(self) -> list[Numbers]:
        """Return microseconds a call at each size: host, device when queued, and the pace of an eager loop."""
        rows = []
        for size in self.chain.sizes:
            eager = self._of(size, "eager")
            queued = self.times.get(self._key(size, "eager_queued"))
            clocks = {
                "host_us": estimate(eager.host_lines().slope),
                "gpu_us": None if queued is None else estimate(queued.device_lines().slope),
                "pace_us": estimate(eager.device_lines().slope),
            }
            rows.append({"chain": self.chain.name, self.chain.size_name: size} | _present(clocks))
        return rows

    def _crossing(self, name: str, ratios: Array, durations: Array | None = None) -> Numbers:
        """Return where `ratios` [rounds, sizes] rise through 1, and `durations` (the same shape, µs) there."""
        sizes = self.chain.sizes
        found = np.array([crossing(sizes, row) for row in ratios])
        size = estimate(found)
        if size is None:
            return _present({f"{name}_note": self._uncrossed(found)})
        numbers: Numbers = {f"{name}_{self.chain.size_name}": size}
        if durations is not None:
            there = [at_size(one, sizes, row) for one, row in zip(found, durations, strict=True)]
            numbers |= _present({f"{name}_us": estimate(np.array(there))})
        for unit in self.chain.work(sizes[0]):
            numbers[f"{name}_{unit}"] = _through(lambda value, unit=unit: self.chain.work(value)[unit], size)
        return numbers

    def _uncrossed(self, found: Array) -> str | None:
        if np.isnan(found).all():
            return None
        name, sizes = self.chain.size_name, self.chain.sizes
        if np.nanmedian(found) > 0:
            return f"up to {name} {sizes[-1]} every operator works for less time than its call costs the host"
        return f"from {name} {sizes[0]} on every operator works for longer than its call costs the host"

    def _at_smallest(self) -> Numbers:
        return {self.chain.size_name: self.chain.sizes[0]}

    def _key(self, size: int, mode: Mode) -> Series:
        return Series(self.chain.name, self.chain.size_name, size, mode)

    def _of(self, size: int, mode: Mode) -> Times:
        return self.times[self._key(size, mode)]


def _through(rising: Callable[[float], float], size: Numbers) -> Numbers:
    result = size | {"p50": rising(size["p50"])}
    return result | {"ci95": [rising(end) for end in size["ci95"]]} if "ci95" in size else result


def _present(numbers: Mapping[str, Any]) -> Numbers:
    return {key: value for key, value in numbers.items() if value is not None}


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


@dataclass
class CalibrationCell(Cell):
    """Measure what a launch costs on the run's device, in its dtype and with its seed."""

    options: CalibrationOptions = field(default_factory=CalibrationOptions)

    def measure(self) -> None:
        """Add the calibration as the record's section `launches`."""
        settings = self.job.settings
        options = replace(self.options, dtype=settings.dtype, seed=settings.seed)
        with self.phase("calibrate"):
            content = calibrate(torch.device(settings.device), options, lambda line: print(line, flush=True))
        self.add(launches=content)
