"""Statistics of samples: summaries, bootstrap intervals of medians and of their ratios. No sample is dropped."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from profiling.results.measured import LEAST_VALUES, Summary

Samples = Sequence[float] | NDArray[np.float64]

#: A sample is counted as an outlier beyond this many median absolute deviations from the median.
OUTLIER_MADS = 5.0
#: Level of the interval that settles the order of two cells while they are measured.
SETTLED_LEVEL = 0.999
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
    return Summary(
        n=int(values.size),
        mean=float(values.mean()),
        std=float(values.std(ddof=1)) if values.size > 1 else None,
        min=float(values.min()),
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99,
        max=float(values.max()),
        ci95=median_interval(values, seed=seed),
        outliers=count_outliers(values),
        samples=tuple(float(v) for v in values),
    )


def median_interval(*rounds: Samples, resamples: int = 2000, seed: int = 0) -> tuple[float, float] | None:
    """Return the 95% bootstrap interval of the median, in the samples' unit; of several rounds with their drift.

    Of one round it is at least the interval that independent samples have by the binomial distribution, since a
    bootstrap of few samples is too narrow.
    None where the values cannot carry one: fewer than six samples, two rounds, or a few rounds that differ so much that
    the interval would end beyond twice the largest value or half the smallest. Three to five rounds estimate their
    spread poorly: the interval is that of Student's t in place of the normal distribution, on the logarithms, so that
    an interval of times has no negative end.
    """
    count = len(rounds)
    if count == 2 or sum(map(len, rounds)) < LEAST_VALUES:
        return None
    drawn = _round_medians(rounds, resamples, seed)
    if count == 1 or count >= LEAST_VALUES:
        low, high = (float(end) for end in np.quantile(drawn, [0.025, 0.975]))
        if count > 1:
            return low, high
        least, most = _binomial_interval(np.sort(np.asarray(rounds[0], dtype=np.float64)))
        return min(low, least), max(high, most)
    values = np.concatenate([np.asarray(each, dtype=np.float64) for each in rounds])
    low, high = np.quantile(_widened(drawn, float(np.median(values)), count - 1, seed + 2), [0.025, 0.975])
    carried = low >= values.min() / 2 and high <= 2 * values.max()
    return (float(low), float(high)) if carried else None


def _binomial_interval(ordered: NDArray[np.float64]) -> tuple[float, float]:
    """Return the two of the ordered samples, six or more, between which the median of independent ones lies (95%)."""
    from scipy.special import bdtrik  # takes a moment to import, and a reader of records needs none of it

    cut = int(bdtrik(0.025, ordered.size, 0.5))  # at most so many of the samples are below the median, in 2.5%
    return float(ordered[cut]), float(ordered[-1 - cut])


def paired_ratio(
    numerator: Samples, denominator: Samples, *, level: float = 0.95
) -> tuple[float, tuple[float, float] | None]:
    """Return (ratio, its interval) of two cells that were measured in turns; values at equal places were neighbours.

    The values, usually medians of windows, are above 0 and float64 [windows]. What slows the machine for longer than
    two neighbouring windows slows both, and cancels out in their ratio. The ratio is the 20% trimmed mean of the
    logarithms, so that a few disturbed windows do not move it. The interval is Student's t on winsorised deviations,
    widened where the ratios of consecutive pairs are correlated (drift between the two cells); below `LEAST_VALUES`
    pairs there is none. Source: Tukey and McLaughlin, Less vulnerable confidence procedures for location (1963).

    Raises:
        ValueError: no pair, other lengths, or a value that is not above 0.

    """
    from scipy.special import stdtrit  # takes a moment to import, and a reader of records needs none of it

    one, other = np.asarray(numerator, dtype=np.float64), np.asarray(denominator, dtype=np.float64)
    if one.size == 0 or one.size != other.size or not (one > 0).all() or not (other > 0).all():
        raise ValueError("a paired ratio needs pairs of values above 0")
    logs = np.log(one / other)
    ordered, cut = np.sort(logs), int(0.2 * logs.size)
    centre = float(ordered[cut : logs.size - cut].mean())
    if logs.size < LEAST_VALUES:
        return float(np.exp(centre)), None
    spread = float(np.clip(logs, ordered[cut], ordered[-1 - cut]).std(ddof=1))
    kept = logs.size - 2 * cut
    reach = stdtrit(kept - 1, (1 + level) / 2) * spread * np.sqrt(logs.size * _drift(logs)) / kept
    return float(np.exp(centre)), (float(np.exp(centre - reach)), float(np.exp(centre + reach)))


def _drift(logs: NDArray[np.float64]) -> float:
    """Return the variance inflation of a mean by the correlation of consecutive values; 1 where there is none."""
    ranks = np.argsort(np.argsort(logs)) - (logs.size - 1) / 2  # a disturbed window must not hide the drift
    correlation = float((ranks[1:] * ranks[:-1]).sum() / (ranks**2).sum())
    bounded = min(max(correlation, 0.0), 0.8)
    return (1 + bounded) / (1 - bounded)


def total_ratio(parts: Samples, wholes: Samples, *, level: float = 0.95) -> tuple[float, tuple[float, float] | None]:
    """Return (sum of the parts over sum of the wholes, its interval): joules a call, of windows of unequal length.

    Both are above 0, one value a window. The interval is Student's t on the residuals of the windows (ratio estimator),
    widened where consecutive ones are correlated; below `LEAST_VALUES` windows there is none. Source: Cochran, Sampling
    Techniques (1977), chapter 6.

    Raises:
        ValueError: no window, other lengths, or a sum that is not above 0.

    """
    ratio, spread = _total_and_spread(parts, wholes)
    if spread is None:
        return ratio, None
    reach = _student(level, len(parts) - 1) * spread
    return ratio, (ratio * (1 - reach), ratio * (1 + reach))


def ratio_of_totals(
    one: tuple[Samples, Samples], other: tuple[Samples, Samples], *, level: float = 0.95
) -> tuple[float, tuple[float, float] | None]:
    """Return (total ratio of `one` over that of `other`, its interval), each given as (parts, wholes).

    The two were measured independently: the interval is Welch's, on the logarithm.

    Raises:
        ValueError: as in `total_ratio`.

    """
    (first, spread), (second, others) = _total_and_spread(*one), _total_and_spread(*other)
    ratio = first / second
    if spread is None or others is None:
        return ratio, None
    variances = np.array([spread, others]) ** 2
    if not variances.any():
        return ratio, (ratio, ratio)
    freedom = variances.sum() ** 2 / (variances**2 / (np.array([len(one[0]), len(other[0])]) - 1)).sum()
    reach = np.exp(_student(level, freedom) * np.sqrt(variances.sum()))
    return ratio, (float(ratio / reach), float(ratio * reach))


def _total_and_spread(parts: Samples, wholes: Samples) -> tuple[float, float | None]:
    """Return (ratio of the sums, its relative standard error); None for the latter below `LEAST_VALUES` windows."""
    part, whole = np.asarray(parts, dtype=np.float64), np.asarray(wholes, dtype=np.float64)
    if part.size == 0 or part.size != whole.size or not part.sum() > 0 or not whole.sum() > 0:
        raise ValueError("a ratio of totals needs windows whose sums are above 0")
    ratio = float(part.sum() / whole.sum())
    if part.size < LEAST_VALUES:
        return ratio, None
    residuals = part - ratio * whole
    if not residuals.any():
        return ratio, 0.0
    variance = part.size / (part.size - 1) * float((residuals**2).sum()) * _drift(residuals)
    return ratio, float(np.sqrt(variance) / part.sum())


def _student(level: float, freedom: float) -> float:
    from scipy.special import stdtrit  # takes a moment to import, and a reader of records needs none of it

    return float(stdtrit(freedom, (1 + level) / 2))


def is_decided(medians: Sequence[Samples], *, width: float = 0.01) -> bool:
    """Return whether cells that took turns were measured long enough to compare them.

    `medians` holds the window medians of each cell, [cells][blocks], the baseline's first; NaN for a window that does
    not count. Each cell must have been compared with the baseline, and the fastest two with each other: the 95%
    interval of their ratio is within ± `width` (relative), or their order is beyond doubt, because an interval at
    `SETTLED_LEVEL` is further than `width` from 1. That level is high since the question is asked after every block.
    """
    values = [np.asarray(each, dtype=np.float64) for each in medians]
    if any(np.isfinite(each).sum() < min(len(each), LEAST_VALUES) for each in values):
        return False
    fastest = sorted(range(len(values)), key=lambda cell: float(np.nanmedian(values[cell])))[:2]
    pairs = {(0, cell) for cell in range(1, len(values))} | {(min(fastest), max(fastest))}
    return all(_is_settled(values[one], values[other], width) for one, other in pairs if one != other)


def _is_settled(one: NDArray[np.float64], other: NDArray[np.float64], width: float) -> bool:
    both = np.isfinite(one) & np.isfinite(other)
    one, other = one[both], other[both]
    ratio, interval = paired_ratio(one, other) if one.size else (1.0, None)
    if interval is None:
        return False
    if interval[1] - interval[0] <= 2 * width * ratio:
        return True
    _, wide = paired_ratio(one, other, level=SETTLED_LEVEL)
    return wide is not None and (wide[0] > 1 + width or wide[1] < 1 - width)


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
    that the interval contains the drift from round to round: roughly with two or three rounds, well with five. Beyond
    the level at which ten resamples lie beyond either end, the interval grows as Student's t (one round: as the normal
    distribution).

    Raises:
        ValueError: numerator or denominator has no round, or a round no samples.

    """
    if not all(len(rounds) and all(map(len, rounds)) for rounds in (numerator, denominator)):
        raise ValueError("no samples: a ratio needs some in each round of numerator and denominator")
    ratio = float(np.median(np.concatenate(numerator)) / np.median(np.concatenate(denominator)))
    drawn = _round_medians(numerator, resamples, seed) / _round_medians(denominator, resamples, seed + 1)
    freedom = len(numerator) + len(denominator) - 2
    if freedom:  # few rounds estimate their spread poorly
        drawn = _widened(drawn, ratio, freedom, seed + 2)
    held = min(level, 1 - 20 / resamples)
    low, high = np.quantile(drawn, [(1 - held) / 2, (1 + held) / 2])
    if level > held:
        wider = _quantile(level, freedom) / _quantile(held, freedom)
        low, high = ratio * (low / ratio) ** wider, ratio * (high / ratio) ** wider
    return ratio, float(low), float(high)


def _quantile(level: float, freedom: int) -> float:
    """Return how many standard errors an interval at `level` reaches, by Student's t; without freedom, the normal."""
    from scipy.special import ndtri, stdtrit  # takes a moment to import, and a reader of records needs none of it

    return float(stdtrit(freedom, (1 + level) / 2) if freedom else ndtri((1 + level) / 2))


def _widened(drawn: NDArray[np.float64], centre: float, freedom: int, seed: int) -> NDArray[np.float64]:
    """Return draws of a bootstrap around `centre` with the tails of Student's t; linear where `centre` is 0."""
    widening = np.sqrt(freedom / np.random.default_rng(seed).chisquare(freedom, drawn.size))
    return centre * (drawn / centre) ** widening if centre else drawn * widening


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

    It is the variance of the number of samples above the median in circular blocks, over the variance that independent
    samples would have.
    """
    above = (values > np.median(values)) - 0.5
    length = _block_length(values)
    counts = np.convolve(np.concatenate([above, above[: length - 1]]), np.ones(length), "valid")
    return max(1.0, float(counts.var() / (length / 4)))


def count_outliers(samples: Samples) -> int:
    """Count the samples further than `OUTLIER_MADS` median absolute deviations from the median."""
    values = np.asarray(samples, dtype=np.float64)
    distance = np.abs(values - np.median(values))
    return int((distance > OUTLIER_MADS * np.median(distance)).sum())


def _bootstrap_medians(samples: Samples, resamples: int, seed: int) -> NDArray[np.float64]:
    """Return medians of circular-block bootstrap resamples, float64 [resamples].

    Neighbouring samples share clocks, temperature and other load of the machine; single draws would make the interval
    too narrow. Source: Politis and Romano, A circular block-resampling procedure for
    stationary data (1992).
    """
    values = np.asarray(samples, dtype=np.float64)
    length, starts = _block_starts(values, resamples, np.random.default_rng(seed))
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
    if len(rounds) >= LEAST_VALUES:
        return _cluster_medians(rounds, resamples, seed)
    values = [np.asarray(samples, dtype=np.float64) for samples in rounds]
    rng = np.random.default_rng(seed)
    drawn = np.sort(rng.integers(0, len(values), size=(resamples, len(values) - 1)), axis=1)
    medians = []
    for chosen, count in zip(*np.unique(drawn, axis=0, return_counts=True), strict=True):
        most = max(1, _PICKS_AT_ONCE // sum(values[i].size for i in chosen))
        for done in range(0, count, most):
            parts = []
            for i in chosen:
                length, starts = _block_starts(values[i], min(most, count - done), rng)
                parts.append(_resampled(values[i], starts, length))
            medians.append(np.median(np.concatenate(parts, axis=1), axis=1))
    return rng.permutation(np.concatenate(medians))  # unsorted, so that a ratio does not pair equal choices of rounds


def _cluster_medians(rounds: Sequence[Samples], resamples: int, seed: int) -> NDArray[np.float64]:
    """Return medians of resamples of n - 1 of n rounds, float64 [resamples]; they hold the noise inside rounds, too."""
    values = np.concatenate([np.asarray(samples, dtype=np.float64) for samples in rounds])
    order = np.argsort(values, kind="stable")
    of_round = np.repeat(np.arange(len(rounds)), [len(samples) for samples in rounds])[order]
    share = np.full(len(rounds), 1 / len(rounds))
    counts = np.random.default_rng(seed).multinomial(len(rounds) - 1, share, size=resamples)
    medians = []
    for part in np.array_split(counts, -(-resamples * values.size // _PICKS_AT_ONCE)):
        below = np.cumsum(part[:, of_round], axis=1)
        middle = [(over(2 * below, below[:, -1:])).argmax(axis=1) for over in (np.greater_equal, np.greater)]
        medians.append(values[order][middle].mean(axis=0))  # of an even number, the mean of the two in the middle
    return np.concatenate(medians)


def _block_starts(
    values: NDArray[np.float64], resamples: int, rng: np.random.Generator
) -> tuple[int, NDArray[np.int32]]:
    """Return (block length, first sample of each block, int32 [resamples, blocks])."""
    length = _block_length(values)
    return length, rng.integers(0, values.size, size=(resamples, -(-values.size // length)), dtype=np.int32)


def _block_length(values: NDArray[np.float64]) -> int:
    """Return n ** (1/3), times (2r / (1 - r²)) ** (2/3) where neighbours correlate by r, at most a quarter of n.

    r is that of a normal autoregression whose neighbours are on the same side of the median as often. Source:
    Carlstein, The use of subseries values for estimating the variance of a general statistic (1986).
    """
    above = (values > np.median(values)) - 0.5
    together = 4 * float((above[1:] * above[:-1]).mean()) if values.size > 1 else 0.0
    correlation = min(max(np.sin(np.pi / 2 * together), 0.0), 0.97)
    shortest, factor = values.size ** (1 / 3), (2 * correlation / (1 - correlation**2)) ** (2 / 3)
    return max(1, round(max(shortest, min(shortest * factor, values.size / 4))))


def _resampled(values: NDArray[np.float64], starts: NDArray[np.int32], length: int) -> NDArray[np.float64]:
    picks = (starts[:, :, None] + np.arange(length, dtype=np.int32)).reshape(len(starts), -1)[:, : values.size]
    return values[picks % values.size]
