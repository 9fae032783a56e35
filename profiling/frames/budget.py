"""Where a frame's time goes: a part for each stage, and what none of them accounts for."""

from __future__ import annotations

from typing import Any

import numpy as np

from profiling.frames.series import Array, Series, stage_names

#: How the stages of a frame lie in time. One graph has a single stage beside `deliver`, so both sums agree.
SCHEDULES = ("sequential", "overlap", "one_graph")


def budget_section(series: Series, *, target_fps: float, schedule: str) -> dict[str, Any]:
    """Return the medians of every part in ms, their share of the target's frame time, and the overhead.

    A part's share is that of its device time, of its host time where the device has none. The overhead is what a frame
    took beyond the longest path through its stages.
    """
    target_ms = 1000 / target_fps
    parts = {}
    for stage in stage_names(series):
        times = {"host_ms": median(series[f"host_{stage}_ms"]), "device_ms": median(series[f"device_{stage}_ms"])}
        parts[stage] = _part(times, median(stage_ms(series, stage)), target_ms)
    for name in ("wait", "rest"):
        waited = median(series[f"{name}_ms"])
        on_device = any("device_ms" in part for part in parts.values())
        # What the host waits for is what the device works on: its share stands there already.
        parts[name] = _part({"host_ms": waited}, None if on_device and name == "wait" else waited, target_ms)
    section = {"target_ms": target_ms, "parts": parts}
    overhead = median(series["frame_ms"] - longest_path(series, schedule))
    if overhead is not None:
        section |= {"overhead_ms": overhead, "overhead_share": overhead / float(np.median(series["frame_ms"]))}
    return section


def stage_ms(series: Series, stage: str) -> Array:
    """Return what a stage took [n], in ms: on the device, and on the host where the device was not asked."""
    device = series[f"device_{stage}_ms"]
    return device if np.isfinite(device).any() else series[f"host_{stage}_ms"]


def longest_path(series: Series, schedule: str) -> Array:
    """Return the least [n], in ms, that each frame must take.

    One stage after the other: their sum. Overlapping ones share the frame's interval (the decoders work on the frame
    before), so only the longest of them counts; the delivery comes after all.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"no schedule {schedule!r}: known are {', '.join(SCHEDULES)}")
    stages = {stage: stage_ms(series, stage) for stage in stage_names(series)}
    if not stages:
        return np.full(series["frame_ms"].size, np.nan)
    if schedule != "overlap":
        return np.sum(list(stages.values()), axis=0)
    delivery = stages.pop("deliver", np.zeros(series["frame_ms"].size))
    return np.max(list(stages.values()), axis=0) + delivery


def median(values: Array) -> float | None:
    """Return the median of what was measured, None where nothing was."""
    measured = values[np.isfinite(values)]
    return float(np.median(measured)) if measured.size else None


def _part(times: dict[str, float | None], taken: float | None, target_ms: float) -> dict[str, float]:
    share = None if taken is None else taken / target_ms
    return {name: value for name, value in (*times.items(), ("share", share)) if value is not None}
