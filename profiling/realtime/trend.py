"""The steady part of a loop: where frame times settle, and whether they grow from there on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.ndimage import median_filter
from scipy.stats import theilslopes

from profiling.results.frames import Array, Series, stage_names
from profiling.results.judge import Cell, Spread, Windows, compare, trend
from profiling.results.loop import Slope, StageGrowth, Steady
from profiling.results.measured import LEAST_VALUES
from profiling.results.stats import batch_medians

#: Frames of a rolling median; up to 7 stalled frames in a row do not move it.
WINDOW = 15
#: Settled times stay within this share of the median of the last half, in at least `NEAR_SHARE` of the frames: a
#: disturbance in the middle of the steady part is no ramp.
NEAR, NEAR_SHARE = 0.03, 0.9
#: Most and fewest blocks that a line is fitted to. With fewer than 8, random noise gives a false verdict more often
#: than the accepted 0.1%.
BLOCKS, FEWEST_BLOCKS = 64, 8
#: A stage is named as growing where it has at least this share of the growth of the frame.
STAGE_SHARE = 0.1


def find_steady(frame_ms: Array) -> Steady:
    """Find the first frame from which on the rolling median stays near the median of the last half.

    If that frame is not in the first half, or there are fewer than 30 frames, times count as never settled and the
    steady part is the whole series. `frame_ms` is [n] in ms, n at least 1.
    """
    from_frame, settled = _settled_from(frame_ms)
    p50, p99 = np.percentile(frame_ms[from_frame:], [50, 99])
    return Steady(from_frame=from_frame, settled=settled, p50=float(p50), p99=float(p99))


def _settled_from(frame_ms: Array) -> tuple[int, bool]:
    frames = frame_ms.size
    if frames < 2 * WINDOW:
        return 0, False
    rolling = rolling_median(frame_ms)
    level = np.median(frame_ms[frames // 2 :])
    # If samples have the standard deviation s, medians of WINDOW have 1.25 s / sqrt(WINDOW); noise never reaches 5
    # times that.
    near = np.abs(rolling - level) <= max(NEAR * level, 5 * 1.25 * _noise(frame_ms) / np.sqrt(WINDOW))
    for start in np.flatnonzero(near[: frames // 2 + 1]):
        if near[start : start + WINDOW].all() and near[start:].mean() >= NEAR_SHARE:
            return int(start), True
    return 0, False


def rolling_median(values: Array) -> Array:
    """Return the median [n] of the 15 values around each one; the series is mirrored at its ends."""
    return median_filter(values, size=WINDOW, mode="reflect")


def _noise(values: Array) -> float:
    """Return the standard deviation of `values` from differences, which neither drift nor single spikes change."""
    steps = np.diff(values)
    return float(1.4826 * np.median(np.abs(steps - np.median(steps))) / np.sqrt(2))


@dataclass(frozen=True)
class LineFit:
    """Slope per frame with its 95% interval, and whether it `rises`: its 99.9% interval is above 0."""

    per_frame: float
    ci95: tuple[float, float]
    rises: bool


def fit_line(frames: Array, values: Array) -> LineFit | None:
    """Fit a line to `values` [n] over `frames` [n] (ascending, all finite); None for fewer than 8.

    Theil-Sen on the medians of blocks of neighbours. The intervals are widened by the autocorrelation of the blocks:
    otherwise some seconds in which the machine is slower would appear as a slope. Where a block keeps 0.6 of its
    neighbour's noise, the 95% interval contains the slope in 87 of 100 series (71 without widening). Sources: Theil, A
    rank-invariant method of linear and polynomial regression analysis (1950); Sen, Estimates of the regression
    coefficient based on Kendall's tau (1968).
    """
    if values.size < FEWEST_BLOCKS:
        return None
    blocks = min(BLOCKS, values.size)
    x = [np.median(part) for part in np.array_split(frames, blocks)]
    y = [np.median(part) for part in np.array_split(values, blocks)]
    usual: Any = theilslopes(y, x, alpha=0.95)
    strict: Any = theilslopes(y, x, alpha=0.999)
    slope = float(usual.slope)
    factor = _variance_inflation(y - (slope * np.asarray(x) + float(usual.intercept))) ** 0.5
    low, high = slope - factor * (slope - float(usual.low_slope)), slope + factor * (float(usual.high_slope) - slope)
    return LineFit(slope, (low, high), rises=slope > factor * (slope - float(strict.low_slope)))


def _variance_inflation(values: Array) -> float:
    """Return the factor by which autocorrelation widens the variance of the mean of `values`: 1 for independent ones.

    Sums autocorrelations in pairs up to the first pair that is not positive; those after it are noise. Source: Geyer,
    Practical Markov chain Monte Carlo (1992), the initial positive sequence.
    """
    centred = values - values.mean()
    products = np.correlate(centred, centred, "full")[values.size - 1 :]
    if products[0] <= 0:
        return 1.0
    pairs = (products[:-1:2] + products[1::2])[: values.size // 2] / products[0]
    negative = np.flatnonzero(pairs <= 0)
    return max(1.0, float(2 * pairs[: negative[0] if negative.size else pairs.size].sum() - 1))


def slope_section(series: Series, from_frame: int) -> Slope | None:
    """Return the slope of the frame times from `from_frame` on; None for fewer than 8 frames.

    Where they grow, `stages` holds the stages that grow too; `rest` is the host time outside of all stages.
    """
    part = series["frame_ms"][from_frame:]
    line = fit_line(np.arange(part.size, dtype=np.float64), part)
    if line is None:
        return None
    growing = line.per_frame > 0 and direction(part) > 0
    return Slope(
        us_per_frame=1000 * line.per_frame,
        ci95=(1000 * line.ci95[0], 1000 * line.ci95[1]),
        growing=growing,
        stages=_growing_stages(series, from_frame, line.per_frame) if growing else {},
    )


def unsteady_times(frame_ms: Array, steady: Steady, warmup: int | None, option: str) -> list[str]:
    """Return in words how frame times still change at the begin of the series; nothing where they do not.

    `warmup` is the number of ticks before the series, None where the loop has no such option, and `option` how to set
    it: "loop.warmup_frames={}".
    """
    signs = []
    if steady.settled and _differ(frame_ms[: steady.from_frame], frame_ms[steady.from_frame :]):
        longer = "" if warmup is None else f": use {option.format(warmup + steady.from_frame)}"
        signs.append(f"frame times settle only at timed frame {steady.from_frame}{longer}")
    part = frame_ms[steady.from_frame :]
    line = fit_line(np.arange(part.size, dtype=np.float64), part)
    fall = 0.0 if line is None else -line.per_frame * (part.size - 1) / float(np.median(part))
    if line is not None and fall > 0 and direction(part) < 0:
        longer = "" if warmup is None else f": use a longer warm-up, {option.format(warmup + frame_ms.size)}"
        signs.append(f"frame times still fall, by {fall:.1%} over the timed frames{longer}")
    return signs


def _differ(before: Array, after: Array) -> bool:
    """Return whether frames before and after a moment take different times, by more than chance."""
    if before.size < LEAST_VALUES:
        return False
    parts = [Cell((Windows.of(batch_medians(part)),), Spread(0.0)) for part in (before, after)]
    return compare(*parts).answer() in ("faster", "slower")


def direction(values: Array) -> int:
    """Return 1 where values above 0, float64 [n], grow, -1 where they fall, and 0 where neither can be claimed."""
    medians = np.array(batch_medians(values))
    moved = trend(medians) if (medians > 0).all() else None
    return 0 if moved is None else 1 if moved.end > moved.begin else -1


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
            line = fit_line(measured.astype(np.float64), values[measured])
            if line is not None and line.rises and line.per_frame >= STAGE_SHARE * frame_slope:
                slopes[clock] = 1000 * line.per_frame
        if slopes:
            growing[stage] = StageGrowth(**slopes)
    return growing
