"""A loop on a fake clock: every time is set by hand, so what the analysis must find is known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from profiling.results.frames import NAMES, Array

GAP_MS = 0.25


def noise(frames: int, *, base_ms: float = 5.0, share: float = 0.01, seed: int = 0) -> Array:
    """Make frame times of `base_ms` with `share` of it as noise."""
    return base_ms * (1 + share * np.random.default_rng(seed).standard_normal(frames))


def loop(frame_ms: Array, **planted: Array) -> dict[str, Array]:
    """Run the fake loop: its frames take `frame_ms`, in stages of 60, 20, 10 and 5%, and what is planted happens.

    Memory stands still, and nothing else happens.
    """
    frame_ms = np.asarray(frame_ms, dtype=np.float64)
    series = {name: np.zeros(frame_ms.size) for name in NAMES}
    delivered = np.cumsum(frame_ms + GAP_MS) - GAP_MS
    series |= {"action_ms": delivered - frame_ms, "delivered_ms": delivered, "gap_ms": np.full(frame_ms.size, GAP_MS)}
    series |= {"frame_ms": frame_ms, "latency_ms": frame_ms.copy(), "due_ms": np.full(frame_ms.size, np.nan)}
    for stage, share in (("world", 0.6), ("picture", 0.2), ("sound", 0.1), ("deliver", 0.05)):
        series |= {f"host_{stage}_ms": 0.01 * frame_ms, f"device_{stage}_ms": share * frame_ms}
    series |= {"wait_ms": 0.9 * frame_ms, "rest_ms": 0.06 * frame_ms}
    series |= {name: np.full(frame_ms.size, 2.0**30) for name in ("allocated", "reserved", "device_used", "host_rss")}
    return series | planted


@pytest.fixture
def fake_noise() -> Callable[..., Array]:
    return noise


@pytest.fixture
def fake_loop() -> Callable[..., dict[str, Array]]:
    return loop
