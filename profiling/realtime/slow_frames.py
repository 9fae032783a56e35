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
#: A cause explains a slow frame if it took at least this share of the time beyond the steady median.
LEAST_SHARE = 0.5
#: Most slow frames listed in a record; all are counted.
LISTED = 50
COMPILE, LOWER_CLOCK = "compile", "lower SM clock"
#: Causes, by the series of the milliseconds that each took in a frame.
CAUSES = {
    COMPILE: "compile_ms",
    "CUDA graph captured": "capture_ms",
    "cudaMalloc": "malloc_ms",
    "garbage collection": "collection_ms",
    "run-queue wait": "run_queue_ms",
    "CPU stolen by another virtual machine": "steal_ms",
    "another process on the GPU": "others_ms",
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
    """Return the threshold, the number of `slow` frames, and what explains them; a frame may have several causes.

    `events` are recompiles: {"frame", "kind": "recompile", "id"}.
    """
    frame_ms, took_ms = series["frame_ms"], cause_ms(series, steady)
    frames, total_ms = {}, dict[str, float]()
    for frame in slow:
        excess_ms = float(frame_ms[frame]) - steady.p50
        took = {cause: float(values[frame]) for cause, values in took_ms.items()}
        explained = {cause: ms for cause, ms in took.items() if ms >= LEAST_SHARE * excess_ms}
        recompiles = [str(event["id"]) for event in events if (event["frame"], event["kind"]) == (frame, "recompile")]
        if COMPILE in explained and recompiles:
            explained[f"recompile {', '.join(recompiles)}"] = explained.pop(COMPILE)
        frames[frame] = SlowFrame(
            frame=frame, ms=float(frame_ms[frame]), causes=tuple(explained) or (UNKNOWN,), cause_ms=explained
        )
        left_ms = excess_ms
        for cause, ms in sorted(explained.items(), key=lambda item: -item[1]):
            total_ms[cause] = total_ms.get(cause, 0.0) + min(ms, left_ms)
            left_ms -= min(ms, left_ms)
        total_ms[UNKNOWN] = total_ms.get(UNKNOWN, 0.0) + left_ms
    slowest = sorted(frames.values(), key=lambda each: -each.ms)[:LISTED]
    return SlowFrames(
        threshold_ms=_threshold_ms(frame_ms, steady),
        count=len(frames),
        causes=dict(Counter(cause for each in frames.values() for cause in each.causes).most_common()),
        cause_ms={cause: ms for cause, ms in sorted(total_ms.items(), key=lambda item: -item[1]) if ms > 0},
        frames=tuple(slowest),
    )


def cause_ms(series: Series, steady: Steady) -> dict[str, Array]:
    """Return the milliseconds, float64 [n], that each cause took in each frame beyond its median in steady frames.

    What a cause takes in every frame makes none of them slow. A lower SM clock lengthens the work of the device, in
    inverse proportion at most; it is known in the frames in which it was read, which a long frame is.
    """
    took = {cause: _beyond_median(series[name], steady) for cause, name in CAUSES.items()}
    clock, work = series["sm_clock_mhz"], np.zeros_like(series["frame_ms"])
    for name, values in series.items():
        if name.startswith("device_") and name.endswith("_ms"):
            work += np.nan_to_num(values)
    known = np.isfinite(clock)
    if known.any():
        usual = float(np.median(clock[known]))
        lower = np.where(known & (clock < usual), 1 - np.nan_to_num(clock, nan=usual) / usual, 0.0)
        took[LOWER_CLOCK] = lower * work
    return took


def _beyond_median(values: Array, steady: Steady) -> Array:
    known = values[steady.from_frame :][np.isfinite(values[steady.from_frame :])]
    usual = float(np.median(known)) if known.size else 0.0
    return np.maximum(np.nan_to_num(values) - usual, 0.0)


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
