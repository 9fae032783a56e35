"""A player that shows the measured frames at a fixed rate: where it runs dry, and which rate it can keep."""

from __future__ import annotations

import numpy as np

from profiling.frames.deadlines import holds
from profiling.frames.series import TICK_MS, Array


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
