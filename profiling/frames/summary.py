"""From the series of a loop to the section `realtime` of its record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from profiling.core.stats import summarize
from profiling.frames.budget import budget_section
from profiling.frames.causes import slow_frames, slow_section
from profiling.frames.deadlines import deadlines, delivered_fps, rate_key
from profiling.frames.memory import memory_section
from profiling.frames.player import sustained_fps, underruns
from profiling.frames.series import Series, check_series, frame_count, stage_names
from profiling.frames.spikes import find_period
from profiling.frames.trend import Steady, find_steady, slope_section

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
        summary = summarize(series[name]).to_json()
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
