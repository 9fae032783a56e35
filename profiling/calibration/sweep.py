"""The rounds: every series at every count, in an order that no drift can take for a slope."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from profiling.calibration.chains import SizeName
from profiling.calibration.fits import Array, Lines, fit_lines
from profiling.calibration.samplers import Timing

Mode = Literal["eager", "eager_queued", "graph", "graph_queued"]
Take = Callable[[int], Timing]


@dataclass(frozen=True)
class Series:
    """What is sampled at every count: a chain, at a size, in a mode.

    eager: calls on a free device. eager_queued: calls that wait behind a gate until all are there. graph: a graph of
    that many calls, replayed on a free device. graph_queued: the same behind a gate.
    """

    chain: str
    size_name: SizeName
    size: int
    mode: Mode


@dataclass(frozen=True)
class Times:
    """All samples of a series, microseconds, [rounds, counts] each; NaN where there was none."""

    counts: tuple[int, ...]
    host: Array
    device: Array

    def host_lines(self) -> Lines:
        """Return the host's time over the number of calls, a line a round."""
        return fit_lines(self.counts, self.host)

    def device_lines(self) -> Lines:
        """Return the device's time over the number of calls, a line a round."""
        return fit_lines(self.counts, self.device)


def take_rounds(
    takers: Mapping[Series, Take],
    counts: Sequence[int],
    rounds: int,
    seed: int,
    on_progress: Callable[[str], None],
) -> dict[Series, Times]:
    """Take each series at each of `counts`, `rounds` times and once before that for warm-up, which is thrown away.

    Series come in a new order each round, and so do the counts of each; a call of the least count goes before them,
    since the series before has had the caches.
    """
    shape = (rounds, len(counts))
    times = {key: Times(tuple(counts), np.full(shape, np.nan), np.full(shape, np.nan)) for key in takers}
    rng = random.Random(seed)
    for turn in range(rounds + 1):
        on_progress(f"round {turn} of {rounds}" if turn else "warm-up")
        for series in rng.sample(list(takers), len(takers)):
            takers[series](counts[0])
            for index in rng.sample(range(len(counts)), len(counts)):
                timing = takers[series](counts[index])
                if turn:
                    times[series].host[turn - 1, index] = _or_nan(timing.host_us)
                    times[series].device[turn - 1, index] = _or_nan(timing.device_us)
    return times


def points(times: Mapping[Series, Times]) -> list[dict[str, Any]]:
    """Return every measured point: {chain, elements or width, mode, count, host_us, device_us: medians, n: samples}."""
    return [
        {"chain": series.chain, series.size_name: series.size, "mode": series.mode, "count": count, **clocks}
        for series, measured in times.items()
        for index, count in enumerate(measured.counts)
        if (clocks := _medians(measured, index))
    ]


def _medians(measured: Times, index: int) -> dict[str, float]:
    clocks: dict[str, float] = {}
    for name, column in (("host_us", measured.host[:, index]), ("device_us", measured.device[:, index])):
        there = column[~np.isnan(column)]
        if there.size:
            clocks |= {name: float(np.median(there)), "n": int(there.size)}
    return clocks


def _or_nan(value: float | None) -> float:
    return np.nan if value is None else value
