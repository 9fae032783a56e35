"""Compares frame times with frame rates: late frames, playout-buffer underruns, the highest rate that is held."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from profiling.results.frames import TICK_MS, Array, Series
from profiling.results.judge import bursts, holds
from profiling.results.measured import LATE, Deadline
from profiling.results.stats import COMMON_FPS, deadline


def deadlines(
    series: Series, *, target_fps: float, pace: str, chunk: int = 1, rates: Collection[float] = COMMON_FPS
) -> dict[str, Deadline]:
    """Return the late frames of the target and of `rates`, keyed by the rate's text ("24", "59.94"), lowest first.

    A frame is late when it took longer than 1000 / fps ms. In a paced loop at its target rate, it is late when it was
    delivered more than 1000 / fps ms after it was due, so a stall also makes the frames after it late. Where frames
    come in chunks of several, a row of the series is a chunk, and its budget is that of all of them. What lies between
    two frames of a free loop is the work of the harness, and counts for nothing; where frames overlap, it lies in the
    time of the next frame if the host and not the device sets the pace.
    """
    taken_ms = _taken_ms(series)
    by_rate = {}
    for fps in sorted({*rates, target_fps}):
        due = series["due_ms"] if pace == "realtime" and fps == target_fps else None
        budget_ms = 1000 * chunk / fps
        excess_ms = (series["frame_ms"] if due is None else series["delivered_ms"] - due) - budget_ms
        by_rate[rate_key(fps)] = deadline(fps, budget_ms, excess_ms, taken_ms if due is None else None)
    return by_rate


def _taken_ms(series: Series) -> Array | None:
    """Return what others took of each frame [n] in ms, NaN where it was not read; None where none of it was."""
    read = [values for name in ("run_queue_ms", "steal_ms", "others_ms") if np.isfinite(values := series[name]).any()]
    if not read:
        return None
    # Where every reading is 0, the frames between two readings lost nothing either.
    return np.sum([values if np.nansum(values) else np.zeros_like(values) for values in read], axis=0)


def rate_key(fps: float) -> str:
    """Return a frame rate as the key of a record: "60", "59.94"."""
    return f"{fps:.10g}"


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


def held_ms(frame_ms: Array, allowed: float = LATE) -> float | None:
    """Return the shortest budget in ms that frames hold by the judge's upper 95% bound; None if they are too few.

    `allowed` is the share of frames that may be late (0 to 1): with 1%, this is the upper 95% bound of their p99.
    """
    budgets = np.unique(frame_ms)

    def holds_budget(place: int) -> bool:
        return _is_held(frame_ms > budgets[place] + TICK_MS, allowed)

    shortest = bisect_left(range(budgets.size), True, key=holds_budget)
    return None if shortest == budgets.size else float(budgets[shortest])


def sustained_fps(frame_ms: Array, allowed: float = LATE) -> float | None:
    """Return the highest rate, in steps of 0.1 FPS, that the judge says is held; None if the frames are too few.

    A frame is late that is not done before the next is due; `allowed` is a share (0 to 1).
    """
    met = int(10_000 / float(frame_ms.max()))  # at this rate every frame fits its period
    missed = int(10_000 / float(np.median(frame_ms)) + 1e-6) + 1  # at this rate half of the frames do not
    if not _is_held(np.zeros(frame_ms.size, dtype=bool), allowed):
        return None

    def is_missed(tenths: int) -> bool:
        next_due = _due_times(frame_ms.size, tenths / 10) + 10_000 / tenths
        return not _is_held(done_times(frame_ms, tenths / 10) > next_due + TICK_MS, allowed)

    return (bisect_left(range(missed), True, lo=met + 1, key=is_missed) - 1) / 10


def _is_held(late: NDArray[np.bool_], allowed: float) -> bool:
    return holds(int(late.sum()), bursts(late), late.size, allowed).answer == "yes"


def _due_times(frames: int, fps: float) -> Array:
    return np.arange(frames, dtype=np.float64) * (1000 / fps)
