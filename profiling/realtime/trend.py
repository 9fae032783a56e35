"""Where a series of frame times settles, and whether it grows from there on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.ndimage import median_filter
from scipy.optimize import isotonic_regression
from scipy.stats import theilslopes

from profiling.results.frames import Array, Series, stage_names

#: Frames of a rolling median: up to seven stalled ones in a row do not move it.
WINDOW = 15
#: Settled is what stays this near to the median of the last half (no unit).
NEAR = 0.03
#: So much of the steady part must be near: a disturbance in its middle is no ramp.
NEAR_SHARE = 0.9
#: A slope is fitted to the medians of at most so many blocks, and of no fewer than the second: with fewer blocks an
#: order of pure chance excludes 0 more often than the 0.1% that a verdict allows itself.
BLOCKS, FEWEST_BLOCKS = 64, 8
#: Frame times that grow by less of their median than this over the run (no unit) are not said to grow.
GROWTH = 0.01
#: A stage that grows by less than this share of the frame's growth is not named beside it.
PART = 0.1


@dataclass(frozen=True)
class Steady:
    """Where the ramp ends; a series that never settles has no ramp, and all of it is looked at."""

    from_frame: int
    settled: bool


@dataclass(frozen=True)
class Slope:
    """A slope per frame, with the interval to print and the one to judge by."""

    per_frame: float
    ci95: tuple[float, float]
    ci999: tuple[float, float]

    @property
    def rises(self) -> bool:
        """Whether chance alone would hardly make it rise so."""
        return self.ci999[0] > 0


def find_steady(frame_ms: Array) -> Steady:
    """Find the first frame from which on the rolling median stays near the median of the last half.

    It must lie in the first half, or the series drifts all the way. Fewer than two windows of frames settle nothing.
    """
    frames = frame_ms.size
    if frames < 2 * WINDOW:
        return Steady(0, False)
    rolling = rolling_median(frame_ms)
    level = np.median(frame_ms[frames // 2 :])
    # A median of WINDOW samples of deviation s deviates by 1.25 s / sqrt(WINDOW); five of these happen to nobody.
    near = np.abs(rolling - level) <= max(NEAR * level, 5 * 1.25 * _noise(frame_ms) / np.sqrt(WINDOW))
    for start in np.flatnonzero(near[: frames // 2 + 1]):
        if near[start : start + WINDOW].all() and near[start:].mean() >= NEAR_SHARE:
            return Steady(int(start), True)
    return Steady(0, False)


def rolling_median(values: Array) -> Array:
    """Return the median [n] of the `WINDOW` frames around each one, the series mirrored at its ends."""
    return median_filter(values, size=WINDOW, mode="reflect")


def _noise(values: Array) -> float:
    """Return the standard deviation from frame to frame, which neither a drift nor single spikes change."""
    steps = np.diff(values)
    return float(1.4826 * np.median(np.abs(steps - np.median(steps))) / np.sqrt(2))


def fit_slope(frames: Array, values: Array) -> Slope | None:
    """Fit a line to `values` [n] over `frames` [n] (ascending, all finite); None where they are too few.

    Theil-Sen on the medians of blocks of neighbours, the intervals widened by how the blocks go together: a machine
    that is a little slower for some seconds would else be a slope. Of blocks that keep 0.6 of their neighbour's noise
    the 95% interval holds the slope in 89 of 100 series (62 without). Sources: Theil, A rank-invariant method of
    linear and polynomial regression analysis (1950); Sen, Estimates of the regression coefficient based on Kendall's
    tau (1968).
    """
    if values.size < FEWEST_BLOCKS:
        return None
    blocks = min(BLOCKS, values.size)
    x = [np.median(part) for part in np.array_split(frames, blocks)]
    y = [np.median(part) for part in np.array_split(values, blocks)]
    usual: Any = theilslopes(y, x, alpha=0.95)
    strict: Any = theilslopes(y, x, alpha=0.999)
    slope = float(usual.slope)
    wider = _persistence(_unordered(np.asarray(y), rising=slope >= 0)) ** 0.5
    interval, wide = (
        (slope - wider * (slope - float(fit.low_slope)), slope + wider * (float(fit.high_slope) - slope))
        for fit in (usual, strict)
    )
    return Slope(slope, interval, wide)


def _unordered(values: Array, *, rising: bool) -> Array:
    """Return what the nearest series that only rises (or falls) leaves of `values` [n]: growth of any shape is gone."""
    fitted: Any = isotonic_regression(values, increasing=rising)
    return values - fitted.x


def _persistence(values: Array) -> float:
    """Return by how much neighbours that go together widen the variance of a mean: 1 where they are strangers.

    The sum of the autocorrelations up to the first pair of them that is not positive: beyond it they are noise. Source:
    Geyer, Practical Markov chain Monte Carlo (1992), the initial positive sequence.
    """
    centred = values - values.mean()
    products = np.correlate(centred, centred, "full")[values.size - 1 :]
    if products[0] <= 0:
        return 1.0
    pairs = (products[:-1:2] + products[1::2])[: values.size // 2] / products[0]
    below = np.flatnonzero(pairs <= 0)
    return max(1.0, float(2 * pairs[: below[0] if below.size else pairs.size].sum() - 1))


def slope_section(series: Series, steady: Steady) -> dict[str, Any] | None:
    """Return the slope of the steady part in µs a frame, and whether it grows; None where too few frames tell it.

    Where it does, `stages` has what grows along, `rest` (the host's time in no stage) among them: stage → {"host",
    "device"} → µs a frame.
    """
    part = series["frame_ms"][steady.from_frame :]
    slope = fit_slope(np.arange(part.size, dtype=np.float64), part)
    if slope is None:
        return None
    growing = slope.rises and slope.per_frame * (part.size - 1) > GROWTH * float(np.median(part))
    section = {
        "us_per_frame": 1000 * slope.per_frame,
        "ci95": [1000 * bound for bound in slope.ci95],
        "growing": growing,
    }
    return section | ({"stages": _growing_stages(series, steady, slope.per_frame)} if growing else {})


def _growing_stages(series: Series, steady: Steady, frame_slope: float) -> dict[str, dict[str, float]]:
    """Return the stages that rise by a good part of `frame_slope` (ms a frame): a host's drift and a GPU's differ."""
    found: dict[str, dict[str, float]] = {}
    unmeasured = np.full(series["frame_ms"].size, np.nan)
    for stage in (*stage_names(series), "rest"):
        host, device = (
            series.get(name, unmeasured)[steady.from_frame :]
            for name in ("rest_ms" if stage == "rest" else f"host_{stage}_ms", f"device_{stage}_ms")
        )
        for side, values in (("host", host), ("device", _of_its_own(device, host))):
            measured = np.flatnonzero(np.isfinite(values))
            slope = fit_slope(measured.astype(np.float64), values[measured])
            if slope is not None and slope.rises and slope.per_frame >= PART * frame_slope:
                found.setdefault(stage, {})[side] = 1000 * slope.per_frame
    return found


def _of_its_own(device_ms: Array, host_ms: Array) -> Array:
    """Return a stage's device time [n] without what follows the host's [n].

    Of a stage that an idle device waits for, its events hold the wait for being launched: they follow the host from
    frame to frame. How closely is taken from neighbouring frames, in whose difference no growth is.
    """
    both = np.isfinite(device_ms) & np.isfinite(host_ms)
    if both.sum() < FEWEST_BLOCKS:
        return device_ms
    host, device = np.diff(host_ms[both]), np.diff(device_ms[both])
    moved = float(np.dot(host, host))
    share = 0.0 if moved == 0 else min(1.0, max(0.0, float(np.dot(host, device)) / moved))
    return device_ms - share * (host_ms - np.median(host_ms[both]))
