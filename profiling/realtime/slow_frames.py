"""Finds the slow frames of a loop, their causes, and whether they are periodic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from typing import Any

import numpy as np
from scipy.stats import binom

from profiling.realtime.trend import rolling_median
from profiling.results.frames import Array, Series
from profiling.results.record import SlowFrame, SlowFrames, Spikes, Steady

#: A frame is slow above the steady median plus this many median absolute deviations, and above this multiple of it.
SLOW_MADS, SLOW_FACTOR = 5.0, 1.2
#: A garbage collection is a cause where it took at least this share of a slow frame's excess time.
COLLECTION_SHARE = 0.2
#: Most slow frames listed in a record; all are counted.
LISTED = 50
#: Causes, by the series that are above 0 in the frame.
CAUSES = {
    "CUDA graph captured": ("captures", "graphs_recorded"),
    "allocator retry": ("alloc_retries",),
    "cudaMalloc": ("device_allocs",),
    "clocks held down": ("throttled",),
    "host descheduled": ("switches", "steal_ms"),
    "another process on the GPU": ("others",),
    "exception": ("exceptions",),
}
UNKNOWN = "not attributed"

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
    slow = frame_ms > _threshold_ms(frame_ms, steady)
    if not steady.settled:
        slow &= frame_ms > SLOW_FACTOR * rolling_median(frame_ms)
    return [int(frame) for frame in np.flatnonzero(slow)]


def _threshold_ms(frame_ms: Array, steady: Steady) -> float:
    deviation = float(np.median(np.abs(frame_ms[steady.from_frame :] - steady.p50)))
    return max(steady.p50 + SLOW_MADS * deviation, SLOW_FACTOR * steady.p50)


def slow_section(
    series: Series, steady: Steady, slow: Sequence[int], events: Sequence[Mapping[str, Any]]
) -> SlowFrames:
    """Return the threshold, the number of `slow` frames, and their causes; a frame may have several.

    `events` are recompiles: {"frame", "kind": "recompile", "id"}.
    """
    frame_ms = series["frame_ms"]
    causes = {}
    for frame in slow:
        recompiles = [str(event["id"]) for event in events if (event["frame"], event["kind"]) == (frame, "recompile")]
        causes[frame] = _causes(series, frame, float(frame_ms[frame]) - steady.p50, recompiles)
    slowest = sorted(causes, key=lambda frame: -frame_ms[frame])[:LISTED]
    return SlowFrames(
        threshold_ms=_threshold_ms(frame_ms, steady),
        count=len(causes),
        causes=dict(Counter(cause for names in causes.values() for cause in names).most_common()),
        frames=tuple(SlowFrame(frame=frame, ms=float(frame_ms[frame]), causes=causes[frame]) for frame in slowest),
    )


def _causes(series: Series, frame: int, excess_ms: float, recompiles: Sequence[str]) -> tuple[str, ...]:
    causes = [f"recompile {compile_id}" for compile_id in recompiles]
    if not causes and series["compiles"][frame] > 0:
        causes.append("compile")
    causes += [cause for cause, names in CAUSES.items() if any(series[name][frame] > 0 for name in names)]
    if series["collection_ms"][frame] >= COLLECTION_SHARE * excess_ms:
        causes.append("garbage collection")
    return tuple(causes) or (UNKNOWN,)


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
