"""Compares frame times with frame rates: late frames, playout-buffer underruns, the highest rate that is met."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from profiling.results.frames import TICK_MS, Array, Series
from profiling.results.loop import Deadline

#: Frame rates that a loop is compared with, in addition to its target, where its pipeline names no others.
COMMON_FPS = (24.0, 30.0, 60.0, 120.0)


def deadlines(
    series: Series, *, target_fps: float, pace: str, chunk: int = 1, rates: Collection[float] = COMMON_FPS
) -> dict[str, Deadline]:
    """Return the late frames of the target and of `rates`, keyed by the rate's text ("24", "59.94"), lowest first.

    A frame is late when it took longer than 1000 / fps ms. In a paced loop at its target rate, it is late when it was
    delivered more than 1000 / fps ms after it was due, so a stall also makes the frames after it late. Where frames
    come in chunks of several, a row of the series is a chunk, and its budget is that of all of them.
    """
    by_rate = {}
    for fps in sorted({*rates, target_fps}):
        due = series["due_ms"] if pace == "realtime" and fps == target_fps else None
        budget_ms = 1000 * chunk / fps
        excess_ms = (series["frame_ms"] if due is None else series["delivered_ms"] - due) - budget_ms
        late = excess_ms > TICK_MS
        misses = int(late.sum())
        # Time lost between the frames of a free loop counts too.
        too_slow = pace == "free" and chunk * delivered_fps(series) < fps
        by_rate[rate_key(fps)] = Deadline(
            fps=fps,
            budget_ms=budget_ms,
            holds=holds(misses, late.size) and not too_slow,
            misses=misses,
            longest_run=longest_run(late),
            longest_stall_ms=max(0.0, float(excess_ms.max())),
        )
    return by_rate


def delivered_fps(series: Series) -> float:
    """Return the delivered frames a second, infinite for fewer than two frames."""
    delivered = series["delivered_ms"]
    return 1000 * (delivered.size - 1) / float(delivered[-1] - delivered[0]) if delivered.size > 1 else float("inf")


def rate_key(fps: float) -> str:
    """Return a frame rate as the key of a record: "60", "59.94"."""
    return f"{fps:.10g}"


def holds(misses: int, frames: int) -> bool:
    """Return whether at least 99.9% of the frames were in time: all of them, for fewer than 1000 frames."""
    return misses * 1000 <= frames


def longest_run(late: NDArray[np.bool_]) -> int:
    """Return the most frames in a row that were late."""
    edges = np.flatnonzero(np.diff(late, prepend=False, append=False))
    return int((edges[1::2] - edges[::2]).max(initial=0))


def done_times(frame_ms: Array, fps: float) -> Array:
    """Return when each frame is done [n], in ms, if frame i begins at i × 1000 / fps or when the one before is done.

    done_i = max(done_(i-1), i × T) + frame_i, which is the maximum over j <= i of j × T + frame_j + … + frame_i.
    """
    total = np.cumsum(frame_ms)
    return total + np.maximum.accumulate(_due_times(frame_ms.size, fps) - (total - frame_ms))


def underruns(frame_ms: Array, fps: float, buffer: int) -> int:
    """Count the frames that are not done when they are due for display from a playout buffer.

    Display starts when `buffer` + 1 frames are done (all of them, if there are fewer) and at least `buffer` + 1 periods
    have passed. It then shows a frame every 1000 / fps ms. A frame that is not done is shown as soon as it is, and
    delays all after it.
    """
    done = done_times(frame_ms, fps)
    behind = done - _due_times(done.size, fps)
    behind[0] = max(done[min(buffer, done.size - 1)], (buffer + 1) * 1000 / fps)
    delay = np.maximum.accumulate(behind)
    return int((behind[1:] > delay[:-1] + TICK_MS).sum())


def sustained_fps(frame_ms: Array) -> float:
    """Return the highest rate, in steps of 0.1 FPS, at which 99.9% of the frames are done before the next is due."""
    met = int(10_000 / float(frame_ms.max()))  # at this rate every frame fits its period
    missed = int(10_000 / float(np.median(frame_ms)) + 1e-6) + 1  # at this rate half of the frames do not

    def misses(tenths: int) -> bool:
        next_due = _due_times(frame_ms.size, tenths / 10) + 10_000 / tenths
        return not holds(int((done_times(frame_ms, tenths / 10) > next_due + TICK_MS).sum()), frame_ms.size)

    return (bisect_left(range(missed), True, lo=met + 1, key=misses) - 1) / 10


def _due_times(frames: int, fps: float) -> Array:
    return np.arange(frames, dtype=np.float64) * (1000 / fps)
