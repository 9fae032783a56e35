"""From the series of a loop to the section `realtime` of its record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import to_builtins

from profiling.realtime.deadlines import deadlines, delivered_fps, rate_key, sustained_fps, underruns
from profiling.realtime.slow_frames import find_period, slow_frames, slow_section
from profiling.realtime.trend import Steady, find_steady, fit_slope, slope_section
from profiling.results.frames import MEMORY, Array, Series, check_series, frame_count, stage_names
from profiling.results.stats import summarize

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


def compiled_or_captured(series: Series, events: Sequence[Mapping[str, Any]]) -> str | None:
    """Return what was compiled or captured in the timed frames, and when first, or None."""
    told = []
    names = ("compiles", "compile"), ("captures", "CUDA graph captured"), ("graphs_recorded", "CUDA graph captured")
    for name, word in names:
        frames = [int(frame) for frame in (series[name] > 0).nonzero()[0]] if name in series else []
        if frames:
            ids = ", ".join(event["id"] for event in events) if name == "compiles" else ""
            told.append(f"{word} in {len(frames)} frames, first in {frames[0]}" + f" ({ids})" * bool(ids))
    return "; ".join(told) or None


PACES = ("free", "realtime")
#: Frames that the simulated players hold back before they start.
BUFFERS = (0, 1, 2, 3)


def summarize_frames(
    series: Series,
    *,
    target_fps: float,
    pace: str,
    facts: Mapping[str, Any],
    events: Sequence[Mapping[str, Any]] = (),
    sound_seconds_per_frame: float | None = None,
) -> dict[str, Any]:
    """Return the section `realtime` of a record: times in ms, memory in bytes, rates in frames a second.

    `series` may be cut off anywhere, also before its first frame: then only `frames`, the rates asked for and `facts`
    are there. `facts` are what the loop knows of itself and stand in the section as they are; `schedule` is one of
    them. `events` are {"frame", "kind": "recompile", "id"}. What was not measured, or what too few frames tell, is
    absent.

    Raises:
        ValueError: a series is missing or uneven, a frame has no time, or the pace or the schedule is unknown.

    """
    if pace not in PACES:
        raise ValueError(f"no pace {pace!r}: known are {', '.join(PACES)}")
    if not target_fps > 0:
        raise ValueError(f"a target of {target_fps} frames a second")
    frames = frame_count(series)
    section: dict[str, Any] = {"frames": frames, "target_fps": target_fps, "pace": pace, **facts}
    if frames == 0:
        return section
    check_series(series, paced=pace == "realtime")
    steady = find_steady(series["frame_ms"])
    section |= {"stages": list(stage_names(series))}
    section |= _times(series, sound_seconds_per_frame)
    section |= {"budget": budget_section(series, target_fps=target_fps, schedule=facts["schedule"])}
    section |= _promises(series, target_fps, pace)
    slow = slow_frames(series["frame_ms"], steady)
    section |= _steadiness(series, steady, slow)
    section |= {"slow": slow_section(series, steady, slow, events)}
    memory = memory_section(series, steady)
    return section | ({"memory": memory} if memory else {})


def _times(series: Series, sound_seconds: float | None) -> dict[str, Any]:
    section: dict[str, Any] = {}
    for name in ("frame_ms", "latency_ms"):
        summary = to_builtins(summarize(series[name]))
        section[name] = {key: value for key, value in summary.items() if key != "samples"}
    gaps = series["gap_ms"][np.isfinite(series["gap_ms"])]
    if gaps.size:
        section["gap_ms"] = {"p50": float(np.median(gaps)), "max": float(gaps.max())}
    if series["delivered_ms"].size > 1:
        section["wall_fps"] = delivered_fps(series)
        if sound_seconds is not None:
            section["audio_rtf"] = sound_seconds * section["wall_fps"]
    return section


def _promises(series: Series, target_fps: float, pace: str) -> dict[str, Any]:
    kept = deadlines(series, target_fps=target_fps, pace=pace)
    target = kept[rate_key(target_fps)]
    frame_ms = series["frame_ms"]
    return {
        "deadlines": kept,
        "late": target["misses"],
        "holds": target["holds"],
        "underruns": {str(buffer): underruns(frame_ms, target_fps, buffer) for buffer in BUFFERS},
        "sustained_fps": sustained_fps(frame_ms),
    }


def _steadiness(series: Series, steady: Steady, slow: Sequence[int]) -> dict[str, Any]:
    p50, p99 = np.percentile(series["frame_ms"][steady.from_frame :], [50, 99])
    after_ramp = [frame for frame in slow if frame >= steady.from_frame]
    found = {"slope": slope_section(series, steady), "spikes": find_period(after_ramp)}
    return {
        "steady": {"from_frame": steady.from_frame, "settled": steady.settled, "p50": float(p50), "p99": float(p99)},
        **{name: section for name, section in found.items() if section is not None},
    }
