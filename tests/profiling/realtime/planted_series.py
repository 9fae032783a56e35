"""Series of a loop whose every time is planted, so that what an analysis must find is known."""

import numpy as np

from profiling.results.frames import NAMES
from profiling.results.loop import Realtime

GAP_MS = 0.25


def noise(frames, *, base_ms=5.0, share=0.01, seed=0):
    """Return frame times [frames] around `base_ms` with a standard deviation of `share` of it."""
    return base_ms * (1 + share * np.random.default_rng(seed).standard_normal(frames))


def series_of(frame_ms, **planted):
    """Return the series of frames that take `frame_ms`, in stages of 60, 20, 10 and 5%; memory stays the same."""
    frame_ms = np.asarray(frame_ms, dtype=np.float64)
    series = {name: np.zeros(frame_ms.size) for name in NAMES}
    delivered = np.cumsum(frame_ms + GAP_MS) - GAP_MS
    series |= {"action_ms": delivered - frame_ms, "delivered_ms": delivered, "gap_ms": np.full(frame_ms.size, GAP_MS)}
    series |= {"frame_ms": frame_ms, "latency_ms": frame_ms.copy(), "due_ms": np.full(frame_ms.size, np.nan)}
    for stage, share in (("world", 0.6), ("picture", 0.2), ("sound", 0.1), ("deliver", 0.05)):
        series |= {f"host_{stage}_ms": 0.01 * frame_ms, f"device_{stage}_ms": share * frame_ms}
    series |= {name: np.full(frame_ms.size, np.nan) for name in ("sm_clock_mhz", "energy_j")}
    series |= {"wait_ms": 0.9 * frame_ms, "rest_ms": 0.06 * frame_ms}
    series |= {name: np.full(frame_ms.size, 2.0**30) for name in ("allocated", "reserved", "device_used", "host_rss")}
    return series | planted


def loop(*, fps=60.0, pace="free", schedule="sequential", **fields):
    """Return the section of a loop before its first frame."""
    planned = {"target_fps": fps, "pace": pace, "schedule": schedule, "work": {"steps": 1}, "warmup_frames": 60}
    return Realtime(frames=0, **planned, **fields)
