"""The steady part of a loop: where frame times settle, and whether they grow from there on."""

from __future__ import annotations

import numpy as np
from scipy.ndimage import median_filter

from profiling.results.frames import Array, Series, stage_names
from profiling.results.judge import ONE_PROCESS, Cell, Line, Windows, compare, drift, fit_line
from profiling.results.loop import Slope, StageGrowth, Steady
from profiling.results.measured import LEAST_VALUES
from profiling.results.stats import batch_medians

#: Frames of a rolling median; up to 7 stalled frames in a row do not move it.
WINDOW = 15
#: Settled times stay within this share of the median of the last half, in at least `NEAR_SHARE` of the frames: a
#: disturbance in the middle of the steady part is no ramp.
NEAR, NEAR_SHARE = 0.03, 0.9
#: A stage is named as growing where it has at least this share of the growth of the frame.
STAGE_SHARE = 0.1


def find_steady(frame_ms: Array) -> Steady:
    """Find the first frame from which on the rolling median stays near the median of the last half.

    If that frame is not in the first half, or there are fewer than 30 frames, times count as never settled and the
    steady part is the whole series. `frame_ms` is [n] in ms, n at least 1.
    """
    from_frame, settled = _settled_from(frame_ms)
    return Steady(from_frame=from_frame, settled=settled, p50=float(np.median(frame_ms[from_frame:])))


def _settled_from(frame_ms: Array) -> tuple[int, bool]:
    frames = frame_ms.size
    if frames < 2 * WINDOW:
        return 0, False
    rolling = rolling_median(frame_ms)
    level = np.median(frame_ms[frames // 2 :])
    # The standard deviation, from differences, which neither drift nor single spikes change.
    steps = np.diff(frame_ms)
    noise = 1.4826 * np.median(np.abs(steps - np.median(steps))) / np.sqrt(2)
    # If samples have the standard deviation s, medians of WINDOW have 1.25 s / sqrt(WINDOW); noise never reaches 5
    # times that.
    near = np.abs(rolling - level) <= max(NEAR * level, 5 * 1.25 * noise / np.sqrt(WINDOW))
    for start in np.flatnonzero(near[: frames // 2 + 1]):
        if near[start : start + WINDOW].all() and near[start:].mean() >= NEAR_SHARE:
            return int(start), True
    return 0, False


def rolling_median(values: Array) -> Array:
    """Return the median [n] of the 15 values around each one; the series is mirrored at its ends."""
    return median_filter(values, size=WINDOW, mode="reflect")


def slope_section(series: Series, from_frame: int) -> Slope | None:
    """Return the slope of the frame times from `from_frame` on; None for fewer than 8 frames.

    Where they grow, `stages` holds the stages that grow too; `rest` is the host time outside of all stages.
    """
    line = line_of(series["frame_ms"][from_frame:])
    if line is None:
        return None
    growing = line.slope > 0 and line.is_claimed()
    return Slope(
        us_per_frame=1000 * line.slope,
        ci95=(1000 * line.interval[0], 1000 * line.interval[1]),
        growing=growing,
        stages=_growing_stages(series, from_frame, line.slope) if growing else {},
    )


def line_of(values: Array, frames: Array | None = None) -> Line | None:
    """Return the line through a series of frames, float64 [n]; None for fewer than 8 above 0.

    It is fitted to medians of up to 24 parts, which stalls do not move. `frames` [n]: their numbers, if some lack.
    """
    if values.size == 0:
        return None
    places = np.arange(values.size, dtype=np.float64) if frames is None else frames
    return fit_line(np.array(batch_medians(values)), np.array(batch_medians(places)))


def unsteady_times(frame_ms: Array, steady: Steady, warmup: int, option: str) -> list[str]:
    """Return in words how frame times still change at the begin of the series; nothing where they do not.

    `warmup` is the number of ticks before the series, and `option` how to set it: "loop.warmup_frames={}".
    """
    signs = []
    if steady.settled and _differ(frame_ms[: steady.from_frame], frame_ms[steady.from_frame :]):
        longer = option.format(warmup + steady.from_frame)
        signs.append(f"frame times settle only at timed frame {steady.from_frame}: use {longer}")
    part = frame_ms[steady.from_frame :]
    moved = drift(Windows.of(batch_medians(part))) if part.size else None
    if moved is not None and moved.slope < 0:
        longer = option.format(warmup + frame_ms.size)
        falls = f"from {moved.begin:.4g} to {moved.end:.4g} ms"
        signs.append(f"frame times still fall, {falls} over the timed frames: use a longer warm-up, {longer}")
    return signs


def _differ(before: Array, after: Array) -> bool:
    """Return whether frames before and after a moment take different times, by more than chance."""
    if before.size < LEAST_VALUES:
        return False
    parts = [Cell((Windows.of(batch_medians(part)),), ONE_PROCESS) for part in (before, after)]
    return compare(*parts).answer() in ("faster", "slower")


def _growing_stages(series: Series, from_frame: int, frame_slope: float) -> dict[str, StageGrowth]:
    """Return the stages whose host or device time makes up a large part of `frame_slope` (ms a frame).

    The device time of a stage that waits for its launches grows with its host time.
    """
    growing = {}
    for stage in (*stage_names(series), "rest"):
        clocks = {"host": "rest_ms"} if stage == "rest" else {c: f"{c}_{stage}_ms" for c in ("host", "device")}
        slopes = {}
        for clock, name in clocks.items():
            values = series.get(name, np.zeros(0))[from_frame:]
            measured = np.flatnonzero(np.isfinite(values))
            line = line_of(values[measured], measured.astype(np.float64))
            if line is not None and line.is_claimed() and line.slope >= STAGE_SHARE * frame_slope:
                slopes[clock] = 1000 * line.slope
        if slopes:
            growing[stage] = StageGrowth(**slopes)
    return growing
