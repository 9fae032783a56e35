"""Finds the slow frames of a loop, and whether they are periodic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np
from scipy.stats import binom

from profiling.metrics.slow_samples import SLOW_FACTOR, threshold_ms
from profiling.realtime.trend import rolling_median
from profiling.results.frames import Array
from profiling.results.loop import Spikes, Steady

#: Shortest period that is reported, in frames: a shorter one would fit almost any spikes, each a frame early or late.
SHORTEST_PERIOD = 4
#: Frames by which a spike may be early or late.
JITTER = (0, -1, 1)
#: Spikes in a row that may be missing in a chain.
MISSES = 2
#: Distances that are tried as a period, the most frequent first.
CANDIDATES = 32
#: Largest probability that chance explains a reported period.
CHANCE = 0.05


def find_slow_frames(frame_ms: Array, steady: Steady) -> list[int]:
    """Return the slow frames, ascending.

    Where times never settle, a frame must also stand out from its neighbours, so that a drift does not make its last
    frames slow.
    """
    slow = frame_ms > threshold_ms(frame_ms, steady)
    if not steady.settled:
        slow &= frame_ms > SLOW_FACTOR * rolling_median(frame_ms)
    return [int(frame) for frame in np.flatnonzero(slow)]


def find_period(slow: Sequence[int]) -> Spikes | None:
    """Find a period that explains at least three of the `slow` frames (ascending) better than chance does.

    The other slow frames may be anywhere. Return None without such a period.
    """
    chains = [chain for period in _candidate_periods(slow) if (chain := _longest_chain(slow, period)).count >= 3]
    best = min(chains, key=lambda chain: _chance(chain, slow), default=None)
    if best is None or _chance(best, slow) > CHANCE:
        return None
    return Spikes(period=best.period, count=best.count, first=best.first)


@dataclass(frozen=True)
class _Chain:
    """Slow frames whose distances are multiples of one period, within a frame."""

    first: int
    last: int
    count: int
    slots: int  # the count without misses

    @property
    def period(self) -> int:
        """The mean distance of two spikes, in frames."""
        return round((self.last - self.first) / (self.slots - 1))


def _candidate_periods(slow: Sequence[int]) -> list[int]:
    """Return distances of slow frames with up to two others between them, most frequent first, each ±1."""
    pairs = (pair for apart in (1, 2, 3) for pair in zip(slow, slow[apart:], strict=False))
    distances = Counter(later - frame + jitter for frame, later in pairs for jitter in JITTER)
    return [distance for distance, _ in distances.most_common() if distance >= SHORTEST_PERIOD][:CANDIDATES]


def _longest_chain(slow: Sequence[int], period: int) -> _Chain:
    """Return the chain of `period` with the most slow frames."""
    ending: dict[int, _Chain] = {}  # by last frame
    for frame in slow:
        best = _Chain(frame, frame, 1, 1)
        for steps in range(1, MISSES + 2):
            for jitter in JITTER:
                before = ending.get(frame - steps * period + jitter)
                if before is not None and before.count + 1 > best.count:
                    best = _Chain(before.first, frame, before.count + 1, before.slots + steps)
        ending[frame] = best
    return max(ending.values(), key=lambda chain: chain.count)


def _chance(chain: _Chain, slow: Sequence[int]) -> float:
    """Bound the probability that slow frames scattered over the chain's span fill as many slots of some period.

    Any three slow frames could be the beginning, the period and the end of a chain; only the other slots count.
    """
    within = sum(chain.first <= frame <= chain.last for frame in slow)
    density = (within - 2) / (chain.last - chain.first + 1)
    hit = 1 - (1 - density) ** 5  # a slot is three frames wide, and the period may be off by one to either side
    return float(comb(len(slow), 3) * binom.sf(chain.count - 3, chain.slots - 2, hit))
