"""Memory over the frames, a kind at a time, and whether it leaks."""

from __future__ import annotations

from typing import Any

import numpy as np

from profiling.frames.series import MEMORY, Array, Series
from profiling.frames.trend import Steady, fit_slope

#: Growth over the run, in bytes, below which nothing is called a leak. The allocator counts its own bytes exactly; what
#: a device and a process hold changes with everything else that runs.
SMALLEST_LEAK = {"allocated": 4096, "reserved": 4096, "device_used": 8 * 2**20, "host_rss": 8 * 2**20}


def memory_section(series: Series, steady: Steady) -> dict[str, dict[str, Any]]:
    """Return first, last, min, max and growth in bytes of each kind that was sampled, and whether it leaks.

    Growth and leak are those of the steady part, and absent where fewer than eight samples tell them.
    """
    section = {}
    for kind in MEMORY:
        frames = np.flatnonzero(np.isfinite(series[kind]))
        if frames.size == 0:
            continue
        values = series[kind][frames]
        facts = {"first": values[0], "last": values[-1], "min": values.min(), "max": values.max()}
        late = frames >= steady.from_frame
        section[kind] = {
            **{name: int(value) for name, value in facts.items()},
            **_growth(frames[late].astype(np.float64), values[late], SMALLEST_LEAK[kind]),
        }
    return section


def _growth(frames: Array, values: Array, smallest: int) -> dict[str, Any]:
    slope = fit_slope(frames, values)
    if slope is None:
        return {}
    grown = slope.per_frame * (frames[-1] - frames[0])
    return {
        "bytes_per_frame": slope.per_frame + 0.0,  # -0.0 is 0
        "ci95": [bound + 0.0 for bound in slope.ci95],
        "leak": slope.rises and bool(grown >= smallest) and _goes_on(values),
    }


def _goes_on(values: Array) -> bool:
    """Whether each quarter lies above the one before: what was taken once, or twice, and kept is no leak."""
    levels = [np.percentile(part, 50, method="lower") for part in np.array_split(values, 4)]
    return bool((np.diff(levels) > 0).all())
