"""Which frames were late, at the frame rates that players ask for."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from profiling.frames.series import TICK_MS, Array, Series

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
