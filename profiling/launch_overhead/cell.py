"""The cell of `launch_overhead`: samples both chains and derives the costs of a launch, a graph node and a replay."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.stats import quantile_test, theilslopes

from profiling.components.component import Component
from profiling.errors import InputError
from profiling.launch_overhead.sampling import (
    COUNTS,
    DEVICE,
    HOST,
    Array,
    Chain,
    Series,
    make_chains,
    sample_rounds,
    samplers_of,
)
from profiling.machine.gc_policy import no_garbage_collection
from profiling.results.explanations import Estimate, LaunchCalibration, LaunchCosts, LaunchOverhead, OperatorCost
from profiling.results.measured import LEAST_VALUES
from profiling.run.cell import Cell

#: Rounds; each measures every size of both chains.
ROUNDS = 15


class CalibrationCell(Cell):
    """Measure launch costs on the run's device, in its dtype and with its seed."""

    def measure(self) -> None:
        """Add the record's section `launches`."""
        settings = self.job.settings
        device = torch.device(settings.device)
        with self.phase("calibrate"):
            self.add(launches=calibrate(device, settings.dtype, settings.seed, partial(print, flush=True)))

    def components(self) -> Mapping[str, Component]:
        """Refuse: the chains are no components."""
        raise InputError("launch_overhead runs no component: leave out check, starts and memory_snapshot.")


def calibrate(
    device: torch.device, dtype: str = "float32", seed: int = 0, on_progress: Callable[[str], None] = print
) -> LaunchOverhead:
    """Measure launch costs on a CPU or the current CUDA device; `on_progress` is called with a line before each round.

    On CUDA this measures the host and device time of a launch, a graph node and a replay, and the operator size below
    which the device is starved. On a CPU it measures the dispatch time and the size below which that dominates.

    Raises:
        torch.OutOfMemoryError: the largest sizes do not fit.

    """
    on_cuda = device.type == "cuda"
    with torch.inference_mode(), no_garbage_collection():
        chains = make_chains(device, getattr(torch, dtype), seed)
        times = sample_rounds(samplers_of(chains, device), ROUNDS, seed, on_progress)
    elementwise, linear = (ChainSamples(chain, times) for chain in chains)
    return LaunchOverhead(
        launch_calibration=LaunchCalibration(
            device=str(device),
            dtype=dtype,
            rounds=ROUNDS,
            linear=LaunchCosts(rows=1, **linear.launch(on_cuda=on_cuda)),
            **elementwise.launch(on_cuda=on_cuda),
            **(elementwise.graph() if on_cuda else {}),
        ),
        operators=(*elementwise.operators(), *linear.operators()),
    )


@dataclass(frozen=True)
class ChainSamples:
    """The samples of one chain. Costs are fields of `LaunchCosts` by name; None: not measured."""

    chain: Chain
    times: Mapping[Series, Array]  # as `sample_rounds` returns them

    def launch(self, *, on_cuda: bool = True) -> dict[str, Any]:
        """Return host and device time of a launch at the smallest size, and the size below which the device starves.

        A starved device has finished an operator before the host has launched the next one. On a CPU, return the time
        of a dispatch, and the size at which the work itself takes as long.
        """
        host, gpu = self._slopes(HOST), self._slopes(DEVICE, queued=True)
        size, host_us = {self.chain.size_name: self.chain.sizes[0]}, estimate(host[:, 0])
        if not on_cuda:
            work_us = self._crossing("dispatch_bound", host / (2 * host[:, :1]))
            return size | {"dispatch_us_per_operator": host_us, **work_us}
        times_us = {"host_us_per_launch": host_us, "gpu_us_per_launch": estimate(gpu[:, 0])}
        return size | times_us | self._crossing("starvation", gpu / host, host)

    def graph(self) -> dict[str, Any]:
        """Return the costs of a graph node and of a replay.

        The device's cost of a replay is the fixed part of a graph's time, less the fixed part of the time of eager
        calls in the same round: the events around the calls, and the start of the device. The host's cost has a fixed
        part and a small part for each node; for graphs that are a chain, see
        https://developer.nvidia.com/blog/constant-time-launch-for-straight-line-graphs-and-other-performance-enhancements/
        """
        smallest = self.chain.sizes[0]
        host_node, host_replay = self._lines(HOST, smallest, captured=True)
        device_node, device_replay = self._lines(DEVICE, smallest, captured=True, queued=True)
        _, queued = self._lines(DEVICE, smallest, queued=True)
        return {
            "graph_us_per_node": estimate(device_node),
            "graph_launch_host_us": estimate(host_replay),
            "graph_host_us_per_node": estimate(host_node),
            "graph_launch_device_us": estimate(device_replay - queued),
        }

    def operators(self) -> list[OperatorCost]:
        """Return the times of a call at each size: host, device when queued, and an eager loop."""
        clocks = self._slopes(HOST), self._slopes(DEVICE, queued=True), self._slopes(DEVICE)
        costs = []
        for size, *rounds in zip(self.chain.sizes, *(each.T for each in clocks), strict=True):
            host, gpu, pace = map(estimate, rounds)
            named_size: dict[str, Any] = {self.chain.size_name: size}
            costs.append(OperatorCost(chain=self.chain.name, **named_size, host_us=host, gpu_us=gpu, pace_us=pace))
        return costs

    def _crossing(self, name: str, ratios: Array, durations_us: Array | None = None) -> dict[str, Any]:
        """Return the size at which `ratios` [rounds, sizes] rise through 1, with `durations_us` there.

        Without such a size return why there is none; without measurements nothing.
        """
        sizes, label = self.chain.sizes, self.chain.size_name
        crossings = np.array([crossing(sizes, row) for row in ratios])
        if np.isnan(crossings).all():
            return {}
        size = estimate(crossings)
        if size is None:
            beyond = np.nanmedian(crossings) > 0  # the largest size
            where, than = (f"up to {label} {sizes[-1]}", "less") if beyond else (f"from {label} {sizes[0]} on", "more")
            return {f"{name}_note": f"{where} every operator runs for {than} time than its call costs the host"}
        costs: dict[str, Any] = {f"{name}_{label}": size}
        if durations_us is not None:
            there = [at_size(at, sizes, row) for at, row in zip(crossings, durations_us, strict=True)]
            costs[f"{name}_us"] = estimate(np.array(there))
        return costs

    def _lines(self, clock: int, size: int, *, captured: bool = False, queued: bool = False) -> Array:
        """Return the time over the number of calls as `fit_lines` does; NaN where it was not sampled."""
        times = self.times.get(Series(self.chain.name, size, captured, queued))
        return fit_lines(np.full((1, len(COUNTS)), np.nan) if times is None else times[clock])

    def _slopes(self, clock: int, *, queued: bool = False) -> Array:
        """Return the time of an eager call at each size, [rounds, sizes]."""
        return np.stack([self._lines(clock, size, queued=queued)[0] for size in self.chain.sizes], axis=1)


def fit_lines(times: Array) -> Array:
    """Return slope and intercept [2, rounds] of a Theil-Sen line in each round of `times` [rounds, counts].

    The line is over `COUNTS`. NaN: not measured. Up to 29% of the points of a round may be arbitrarily wrong: an
    interrupt lengthens a sample, nothing shortens it. A round's counts were sampled within a second, so drift between
    rounds is in the interval and not in a slope. Sources: Theil, A rank-invariant method of linear and polynomial
    regression analysis (1950); Sen, Estimates of the regression coefficient based on Kendall's tau (1968).
    """
    lines = np.full((2, len(times)), np.nan)
    for index, row in enumerate(times):
        measured = ~np.isnan(row)
        if measured.sum() >= 3:  # any two points lie on a line
            line: Any = theilslopes(row[measured], np.asarray(COUNTS)[measured], method="joint")
            lines[:, index] = line.slope, line.intercept
    return lines


def estimate(rounds: Array) -> Estimate | None:
    """Return the median of `rounds` [rounds] with its interval; NaN: not measured; all NaN gives None.

    Infinite rounds (a crossing beyond the sweep) count as large or small. Where the median is infinite the estimate is
    None; where any round is, and for fewer than six rounds, there is no interval.
    """
    measured = rounds[~np.isnan(rounds)]
    if measured.size == 0 or not math.isfinite(median := float(np.median(measured))):
        return None
    interval = None
    if measured.size >= LEAST_VALUES and bool(np.isfinite(measured).all()):
        low, high = map(float, quantile_test(measured).confidence_interval(0.95))  # two of the values
        interval = low, high
    return Estimate(p50=median, n=int(measured.size), ci95=interval)


def crossing(sizes: Sequence[int], ratios: Sequence[float]) -> float:
    """Return the size at which `ratios` (positive, one for each of the ascending `sizes`) rise through 1 the last time.

    Both are interpolated in logarithms. The last time, because a library may switch to a slower kernel on the way: from
    there on no measured ratio is below 1 again. `-inf` when all are above 1, `inf` when the last is still below, NaN
    when one was not measured or is not positive.
    """
    if not all(ratio > 0 for ratio in ratios):
        return math.nan
    logs = np.log(ratios)
    below = np.flatnonzero(logs < 0)
    if not below.size:
        return -math.inf
    if (last := below[-1]) == len(sizes) - 1:
        return math.inf
    around = slice(last, last + 2)
    return float(np.exp(np.interp(0.0, logs[around], np.log(sizes[around]))))


def at_size(size: float, sizes: Sequence[int], values: Sequence[float]) -> float:
    """Return the value at `size`, interpolated on logarithmic axes between `values` at `sizes`; NaN outside them."""
    if not sizes[0] <= size <= sizes[-1]:
        return math.nan
    return float(np.exp(np.interp(math.log(size), np.log(sizes), np.log(values))))
