"""A player that shows the measured frames at a fixed rate: where it runs dry, and which rate it can keep."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from profiling.results.frames import TICK_MS, Array, Series

#: Frame rates that every series is held against, beside its own target.
COMMON_FPS = (24.0, 30.0, 60.0, 120.0)


def deadlines(series: Series, *, target_fps: float, pace: str) -> dict[str, dict[str, Any]]:
    """Return what became of each deadline, by its rate as text ("24", "59.94"), the slowest first.

    A frame is late when it took longer than 1000 / fps. A paced loop has moments at which its frames were due: at its
    target a frame is late when it was delivered more than 1000 / fps after that, also because of a stall before it.
    """
    found = {}
    for fps in sorted({*COMMON_FPS, target_fps}):
        begun = series["due_ms"] if pace == "realtime" and fps == target_fps else None
        taken = series["frame_ms"] if begun is None else series["delivered_ms"] - begun
        found[rate_key(fps)] = deadline(taken - 1000 / fps, fps)
        if pace == "free" and delivered_fps(series) < fps:  # time lost between the frames is lost to the player too
            found[rate_key(fps)]["holds"] = False
    return found


def delivered_fps(series: Series) -> float:
    """Return how many frames a second were delivered, infinite for fewer than two."""
    delivered = series["delivered_ms"]
    return 1000 * (delivered.size - 1) / float(delivered[-1] - delivered[0]) if delivered.size > 1 else float("inf")


def rate_key(fps: float) -> str:
    """Return a frame rate as the key of a record: "60", "59.94"."""
    return f"{fps:.10g}"


def deadline(excess_ms: Array, fps: float) -> dict[str, Any]:
    """Return what became of one deadline; `excess_ms` [n] is how much longer than its budget a frame took."""
    late = excess_ms > TICK_MS
    misses = int(late.sum())
    return {
        "fps": fps,
        "budget_ms": 1000 / fps,
        "holds": holds(misses, late.size),
        "misses": misses,
        "longest_run": longest_run(late),
        "longest_stall_ms": max(0.0, float(excess_ms.max())),
    }


def holds(misses: int, frames: int) -> bool:
    """Return whether 99.9% of the frames were in time; below 1000 frames that is all of them."""
    return misses * 1000 <= frames


def longest_run(late: NDArray[np.bool_]) -> int:
    """Return the most frames in a row that were late."""
    edges = np.flatnonzero(np.diff(late, prepend=False, append=False))
    return int((edges[1::2] - edges[::2]).max(initial=0))


def done_times(frame_ms: Array, fps: float) -> Array:
    """Return when each frame is done [n], in ms, if frame i begins at i × 1000 / fps or when the one before is done.

    done_i = max(done_(i-1), i × T) + frame_i, which is the largest over j <= i of j × T + frame_j + … + frame_i.
    """
    made = np.cumsum(frame_ms)
    return made + np.maximum.accumulate(_ticks(frame_ms.size, fps) - (made - frame_ms))


def underruns(frame_ms: Array, fps: float, buffer: int) -> int:
    """Count the frames that a player finds not yet done when it is to show them.

    It starts when `buffer` + 1 frames are done (or all, where there are fewer), but not before their time is over, and
    shows one each 1000 / fps; one that is not done is shown when it is, and all behind it that much later.
    """
    done = done_times(frame_ms, fps)
    behind = done - _ticks(done.size, fps)
    behind[0] = max(done[min(buffer, done.size - 1)], (buffer + 1) * 1000 / fps)
    shown = np.maximum.accumulate(behind)
    return int((behind[1:] > shown[:-1] + TICK_MS).sum())


def sustained_fps(frame_ms: Array) -> float:
    """Return the highest rate, in steps of 0.1 FPS, at which 99.9% of the frames are done before the next is due."""
    keeps = int(10_000 / float(frame_ms.max()))  # no frame is ever behind
    fails = int(10_000 / float(np.median(frame_ms)) + 1e-6) + 1  # half of the frames take longer than a period
    while fails - keeps > 1:
        middle = (keeps + fails) // 2
        if _in_time(frame_ms, middle / 10):
            keeps = middle
        else:
            fails = middle
    return keeps / 10


def _in_time(frame_ms: Array, fps: float) -> bool:
    next_due = _ticks(frame_ms.size, fps) + 1000 / fps
    return holds(int((done_times(frame_ms, fps) > next_due + TICK_MS).sum()), frame_ms.size)


def _ticks(frames: int, fps: float) -> Array:
    return np.arange(frames, dtype=np.float64) * (1000 / fps)
