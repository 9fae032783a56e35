"""Statistics of samples: summaries, bootstrap intervals of medians and of their ratios. No sample is dropped."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from profiling.results.measured import Summary

Samples = Sequence[float] | NDArray[np.float64]

#: A sample is counted as an outlier beyond this many median absolute deviations from the median.
OUTLIER_MADS = 5.0
#: Most values that are drawn at once, a bound on the memory that a long run needs.
_PICKS_AT_ONCE = 2**22


def summarize(samples: Samples, *, seed: int = 0) -> Summary:
    """Summarize `samples` (milliseconds, at least one, all finite).

    Raises:
        ValueError: no samples, or one that is not finite.

    """
    values = np.asarray(samples, dtype=np.float64)
    if values.size == 0:
        raise ValueError("no samples to summarize")
    if not np.isfinite(values).all():
        raise ValueError("a sample is not finite")
    p50, p90, p95, p99 = (float(q) for q in np.percentile(values, [50, 90, 95, 99]))
    several = values.size > 1
    return Summary(
        n=int(values.size),
        mean=float(values.mean()),
        std=float(values.std(ddof=1)) if several else None,
        min=float(values.min()),
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99,
        max=float(values.max()),
        ci95=median_interval(values, seed=seed) if several else None,
        outliers=count_outliers(values),
        samples=tuple(float(v) for v in values),
    )


def median_interval(*rounds: Samples, resamples: int = 2000, seed: int = 0) -> tuple[float, float]:
    """Return the 95% bootstrap interval of the median, in the samples' unit; of several rounds with their drift."""
    low, high = np.quantile(_round_medians(rounds, resamples, seed), [0.025, 0.975])
    return float(low), float(high)


def ratio_interval(
    numerator: Sequence[Samples],
    denominator: Sequence[Samples],
    *,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[float, float, float]:
    """Return (ratio of medians, low, high); numerator and denominator are resampled independently.

    Each is a sequence of rounds, often one. Of several, rounds are resampled first and then the samples inside them, so
    that the interval contains the drift from round to round: roughly with two or three rounds, well with five.

    Raises:
        ValueError: numerator or denominator has no round, or a round no samples.

    """
    if not all(len(rounds) and all(map(len, rounds)) for rounds in (numerator, denominator)):
        raise ValueError("no samples: a ratio needs some in each round of numerator and denominator")
    ratio = float(np.median(np.concatenate(numerator)) / np.median(np.concatenate(denominator)))
    drawn = _round_medians(numerator, resamples, seed) / _round_medians(denominator, resamples, seed + 1)
    freedom = len(numerator) + len(denominator) - 2
    if freedom:  # few rounds estimate their spread poorly: Student's t in place of the normal distribution
        widening = np.sqrt(freedom / np.random.default_rng(seed + 2).chisquare(freedom, resamples))
        drawn = ratio * (drawn / ratio) ** widening
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return ratio, float(low), float(high)


def relative_half_width(samples: Samples) -> float:
    """Return half the width of the median's 95% interval over the median (no unit); infinite below six samples.

    The interval is the binomial one, between two order statistics: it is cheap enough for a measuring loop, while a
    bootstrap takes milliseconds in which the device would idle. Correlated neighbours widen it as they widen the
    bootstrap's; otherwise a loop would stop before it has reached the interval that it was asked for.
    """
    unsorted = np.asarray(samples, dtype=np.float64)
    values = np.sort(unsorted)
    reach = 0.98 * np.sqrt(values.size * _clustering(unsorted))  # 1.96 binomial standard deviations
    low, high = int(np.floor(values.size / 2 - reach)), int(np.ceil(values.size / 2 + reach))
    if low < 0 or high >= values.size:
        return float("inf")
    return float((values[high] - values[low]) / 2 / np.median(values))


def _clustering(values: NDArray[np.float64]) -> float:
    """Return the variance inflation by correlated neighbours; 1 for independent samples.

    It is the variance of the number of samples above the median in circular blocks of length n ** (1/3), over the
    variance that independent samples would have.
    """
    above = (values > np.median(values)) - 0.5
    length = _block_length(values.size)
    counts = np.convolve(np.concatenate([above, above[: length - 1]]), np.ones(length), "valid")
    return max(1.0, float(counts.var() / (length / 4)))


def count_outliers(samples: Samples) -> int:
    """Count the samples further than `OUTLIER_MADS` median absolute deviations from the median."""
    values = np.asarray(samples, dtype=np.float64)
    distance = np.abs(values - np.median(values))
    return int((distance > OUTLIER_MADS * np.median(distance)).sum())


def _bootstrap_medians(samples: Samples, resamples: int, seed: int) -> NDArray[np.float64]:
    """Return medians of circular-block bootstrap resamples, float64 [resamples]; blocks have n ** (1/3) samples.

    Neighbouring samples share clocks, temperature and other load of the machine; single draws would make the interval
    too narrow. Source: Politis and Romano, A circular block-resampling procedure for
    stationary data (1992).
    """
    values = np.asarray(samples, dtype=np.float64)
    length, starts = _block_starts(values.size, resamples, np.random.default_rng(seed))
    medians = [
        np.median(_resampled(values, part, length), axis=1)
        for part in np.array_split(starts, -(-starts.size * length // _PICKS_AT_ONCE))
    ]
    return np.concatenate(medians)


def _round_medians(rounds: Sequence[Samples], resamples: int, seed: int) -> NDArray[np.float64]:
    """Return medians of resamples of n - 1 of n rounds and of blocks inside them, float64 [resamples].

    Resampling n rounds would underestimate the spread between few rounds. Source: Rao and Wu, Resampling
    inference with complex survey data (1988).
    """
    if len(rounds) == 1:
        return _bootstrap_medians(rounds[0], resamples, seed)
    values = [np.asarray(samples, dtype=np.float64) for samples in rounds]
    rng = np.random.default_rng(seed)
    drawn = np.sort(rng.integers(0, len(values), size=(resamples, len(values) - 1)), axis=1)
    medians = []
    for chosen, count in zip(*np.unique(drawn, axis=0, return_counts=True), strict=True):
        most = max(1, _PICKS_AT_ONCE // sum(values[i].size for i in chosen))
        for done in range(0, count, most):
            parts = []
            for i in chosen:
                length, starts = _block_starts(values[i].size, min(most, count - done), rng)
                parts.append(_resampled(values[i], starts, length))
            medians.append(np.median(np.concatenate(parts, axis=1), axis=1))
    return rng.permutation(np.concatenate(medians))  # unsorted, so that a ratio does not pair equal choices of rounds


def _block_starts(size: int, resamples: int, rng: np.random.Generator) -> tuple[int, NDArray[np.int32]]:
    """Return (block length, first sample of each block, int32 [resamples, blocks])."""
    length = _block_length(size)
    return length, rng.integers(0, size, size=(resamples, -(-size // length)), dtype=np.int32)


def _block_length(size: int) -> int:
    return max(1, round(size ** (1 / 3)))


def _resampled(values: NDArray[np.float64], starts: NDArray[np.int32], length: int) -> NDArray[np.float64]:
    picks = (starts[:, :, None] + np.arange(length, dtype=np.int32)).reshape(len(starts), -1)[:, : values.size]
    return values[picks % values.size]
