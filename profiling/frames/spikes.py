"""Slow frames that come back with a period, told apart from those that merely happen to be evenly spaced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

from scipy.stats import binom

#: Below this period a frame more or less is most of a period, and everything fits.
SHORTEST_PERIOD = 4
#: A spike may come a frame early or late.
JITTER = (0, -1, 1)
#: In a row, spikes that may fail to come before the chain is broken.
MISSES = 2
#: Different gaps that are tried as a period, the most frequent first.
CANDIDATES = 32
#: Chance may explain the spikes with this probability at most.
CHANCE = 0.05


@dataclass(frozen=True)
class Chain:
    """Slow frames whose gaps are multiples of one period, within a frame."""

    first: int
    last: int
    count: int
    slots: int  # how many would have been there had none been missed

    @property
    def period(self) -> int:
        """The mean distance of two spikes, in frames."""
        return round((self.last - self.first) / (self.slots - 1))


def find_period(slow: Sequence[int]) -> dict[str, int] | None:
    """Find at least three of the `slow` frames (ascending) that a period explains better than chance does.

    The others may lie anywhere. Returns {"period", "count", "first"}, in frames; None where there is no such period.
    """
    chains = [chain for period in _candidates(slow) if (chain := _longest_chain(slow, period)).count >= 3]
    best = min(chains, key=lambda chain: _chance(chain, slow), default=None)
    if best is None or _chance(best, slow) > CHANCE:
        return None
    return {"period": best.period, "count": best.count, "first": best.first}


def _candidates(slow: Sequence[int]) -> list[int]:
    """Return gaps between near slow frames, up to two others in between, within a frame; the most frequent first."""
    pairs = (pair for apart in (1, 2, 3) for pair in zip(slow, slow[apart:], strict=False))
    gaps = Counter(later - frame + jitter for frame, later in pairs for jitter in JITTER)
    return [gap for gap, _ in gaps.most_common() if gap >= SHORTEST_PERIOD][:CANDIDATES]


def _longest_chain(slow: Sequence[int], period: int) -> Chain:
    """Return the chain of `period` with the most slow frames."""
    ending: dict[int, Chain] = {}
    for frame in slow:
        best = Chain(frame, frame, 1, 1)
        for steps in range(1, MISSES + 2):
            for jitter in JITTER:
                before = ending.get(frame - steps * period + jitter)
                if before is not None and before.count + 1 > best.count:
                    best = Chain(before.first, frame, before.count + 1, before.slots + steps)
        ending[frame] = best
    return max(ending.values(), key=lambda chain: chain.count)


def _chance(chain: Chain, slow: Sequence[int]) -> float:
    """Bound how likely as many slow frames, scattered over the chain's own span, fill as many slots of some period.

    Any three slow frames could have been a chain's beginning, its period and its end; the other slots are up to chance.
    """
    within = sum(chain.first <= frame <= chain.last for frame in slow)
    density = (within - 2) / (chain.last - chain.first + 1)
    hit = 1 - (1 - density) ** 5  # a slot is three frames wide, and the period is free by one to either side
    return float(comb(len(slow), 3) * binom.sf(chain.count - 3, chain.slots - 2, hit))
