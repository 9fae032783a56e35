"""Statistics of samples: summaries, bootstrap intervals of medians and of their ratios. No sample is dropped."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from profiling.results.measured import Summary

Samples = Sequence[float] | NDArray[np.float64]

#: A sample is counted as an outlier beyond this many median absolute deviations from the median.
OUTLIER_MADS = 5.0


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


def median_interval(
    samples: Samples, *, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Return the percentile-bootstrap interval of the median, in the samples' unit."""
    return rounds_interval((samples,), level=level, resamples=resamples, seed=seed)


def rounds_interval(
    rounds: Sequence[Samples], *, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Return the interval of the median of all `rounds`, with the drift from one round to the next inside it."""
    low, high = np.quantile(_round_medians(rounds, resamples, seed), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def ratio_interval(
    numerator: Sequence[Samples],
    denominator: Sequence[Samples],
    *,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[float, float, float]:
    """Return (ratio of medians, low, high), each side resampled on its own: the two were measured apart.

    Samples come in rounds, mostly one. Of several, rounds are resampled first and then the samples inside them, so that
    what drifts from one round to the next is inside the interval; two or three make a rough one, five or more a good
    one.

    Raises:
        ValueError: a side has no round, or a round no samples.

    """
    if not all(len(side) and all(len(samples) for samples in side) for side in (numerator, denominator)):
        raise ValueError("a side has no samples")
    ratio = float(np.median(np.concatenate(numerator)) / np.median(np.concatenate(denominator)))
    drawn = _round_medians(numerator, resamples, seed) / _round_medians(denominator, resamples, seed + 1)
    freedom = len(numerator) + len(denominator) - 2
    if freedom:  # so few rounds know their own spread only roughly: Student's t in place of the normal distribution
        doubt = np.sqrt(freedom / np.random.default_rng(seed + 2).chisquare(freedom, resamples))
        drawn = ratio * (drawn / ratio) ** doubt
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return ratio, float(low), float(high)


def relative_half_width(samples: Samples) -> float:
    """Return half the width of the median's 95% interval over the median (no unit); infinite below six samples.

    The interval is that between two order statistics (the binomial one), which a loop can afford to ask for often: the
    bootstrap of 2000 samples takes milliseconds, in which the device would idle. Neighbours that go together widen it
    as they widen the bootstrap's, or a loop would stop before it has the interval that it was asked for.
    """
    taken = np.asarray(samples, dtype=np.float64)
    values = np.sort(taken)
    reach = 0.98 * np.sqrt(values.size * _clustering(taken))  # 1.96 standard deviations of a binomial of n and one half
    low, high = int(np.floor(values.size / 2 - reach)), int(np.ceil(values.size / 2 + reach))
    if low < 0 or high >= values.size:
        return float("inf")
    return float((values[high] - values[low]) / 2 / np.median(values))


def _clustering(values: NDArray[np.float64]) -> float:
    """Return by how much blocks of neighbours spread the count of samples above the median, 1 where they are strangers.

    The variance of that count over blocks of length n ** (1/3), in a circle, over what independent samples would have.
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
    """Resample blocks of neighbours, of length n ** (1/3), from the samples laid in a circle.

    Neighbouring samples share a clock, a temperature and what else runs on the machine; drawn one by one they would
    promise an interval that is too narrow. Source: Politis and Romano, A circular block-resampling procedure for
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
    """Draw one round less than there are, then blocks in each of them, and take the median of all.

    As many rounds as there are would make the spread between few rounds too small. Source: Rao and Wu, Resampling
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
    return rng.permutation(np.concatenate(medians))  # in the order of the draws again: the other side's is its own


def _block_starts(size: int, resamples: int, rng: np.random.Generator) -> tuple[int, NDArray[np.int32]]:
    """Return (block length, where the blocks of each resample start)."""
    length = _block_length(size)
    return length, rng.integers(0, size, size=(resamples, -(-size // length)), dtype=np.int32)


def _block_length(size: int) -> int:
    return max(1, round(size ** (1 / 3)))


#: Values drawn at a time, so that the samples of a long run do not need gigabytes.
_PICKS_AT_ONCE = 2**22


def _resampled(values: NDArray[np.float64], starts: NDArray[np.int32], length: int) -> NDArray[np.float64]:
    picks = (starts[:, :, None] + np.arange(length, dtype=np.int32)).reshape(len(starts), -1)[:, : values.size]
    return values[picks % values.size]
