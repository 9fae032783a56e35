"""Which frames were slow, and what happened in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from profiling.frames.series import Array, Series
from profiling.frames.trend import Steady, rolling_median

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
