"""Which frames were slow, and what happened in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from typing import Any

import numpy as np
from scipy.stats import binom

from profiling.realtime.trend import Steady, rolling_median
from profiling.results.frames import Array, Series

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


#: A frame is slow beyond this many median absolute deviations, and beyond this multiple, of the steady median.
SLOW_MADS, SLOW_FACTOR = 5.0, 1.2
#: A garbage collection explains a frame when it is at least this part of what the frame took too long.
COLLECTION_SHARE = 0.2
#: So many slow frames are listed, the slowest first; all are counted.
LISTED = 50

#: Counts that name a cause wherever they are above zero.
COUNTED = {
    "CUDA graph captured": ("captures", "graphs_recorded"),
    "allocator retry": ("alloc_retries",),
    "cudaMalloc": ("device_allocs",),
    "clocks held down": ("throttled",),
    "host descheduled": ("switches", "steal_ms"),
    "another process on the GPU": ("others",),
}
UNKNOWN = "not attributed"


def slow_threshold(frame_ms: Array, steady: Steady) -> float:
    """Return the time in ms above which a frame is slow."""
    part = frame_ms[steady.from_frame :]
    middle = np.median(part)
    return float(max(middle + SLOW_MADS * np.median(np.abs(part - middle)), SLOW_FACTOR * middle))


def slow_frames(frame_ms: Array, steady: Steady) -> list[int]:
    """Return the indices of the slow frames.

    Where nothing settles a frame must stand out from its neighbours too: what a drift has come to is no slow frame.
    """
    slow = frame_ms > slow_threshold(frame_ms, steady)
    if not steady.settled:
        slow &= frame_ms > SLOW_FACTOR * rolling_median(frame_ms)
    return [int(frame) for frame in np.flatnonzero(slow)]


def causes_of(series: Series, frame: int, excess_ms: float, recompiles: Sequence[str]) -> list[str]:
    """Return what happened in a frame that took `excess_ms` too long; `recompiles` are the compile ids seen in it."""
    found = [f"recompile {compile_id}" for compile_id in recompiles]
    if not found and series["compiles"][frame] > 0:
        found.append("compile")
    found += [cause for cause, names in COUNTED.items() if any(series[name][frame] > 0 for name in names)]
    if series["collection_ms"][frame] >= COLLECTION_SHARE * excess_ms:
        found.append("garbage collection")
    return found or [UNKNOWN]


def slow_section(
    series: Series, steady: Steady, slow: Sequence[int], events: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the threshold, how many frames were `slow`, and their causes; a frame may have several."""
    frame_ms = series["frame_ms"]
    usual = float(np.median(frame_ms[steady.from_frame :]))
    causes = {}
    for frame in slow:
        recompiles = [str(e["id"]) for e in events if e["frame"] == frame and e["kind"] == "recompile"]
        causes[frame] = causes_of(series, frame, float(frame_ms[frame]) - usual, recompiles)
    slowest = sorted(causes, key=lambda frame: -frame_ms[frame])[:LISTED]
    return {
        "threshold_ms": slow_threshold(frame_ms, steady),
        "count": len(causes),
        "causes": dict(Counter(cause for names in causes.values() for cause in names).most_common()),
        "frames": [{"frame": frame, "ms": float(frame_ms[frame]), "causes": causes[frame]} for frame in slowest],
    }
