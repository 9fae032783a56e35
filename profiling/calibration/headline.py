"""From samples to the handful of numbers that other reports use: each a median over rounds with its interval."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from profiling.calibration.chains import Chain
from profiling.calibration.fits import Array, at_size, crossing, estimate
from profiling.calibration.sweep import Mode, Series, Times

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
