"""Cell by cell: is B faster or slower than A, are they the same, or can nobody tell from these samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from profiling.comparison.side import Rounds, Side, median_ms, no_times, read_samples
from profiling.comparison.work import other_work
from profiling.errors import InputError
from profiling.reporting.facts import is_right, times_taken_away
from profiling.results.records import Record
from profiling.results.stats import ratio_interval

Verdict = Literal["same", "faster", "slower", "can't tell", "not compared"]

#: Chance that a whole comparison of equal cells calls any of them different; Bonferroni shares it out among the cells.
FALSE_ALARM = 0.05
#: Below this no interval of a median is worth its name.
LEAST_SAMPLES = 6
SLOWER, UNKNOWN, PASSED = 1, InputError.exit_code, 0


@dataclass(frozen=True)
class Judged:
    """A cell of either side. Medians in milliseconds of all samples; `ratio` is B / A, above 1 is slower."""

    component: str
    variant: str
    verdict: Verdict
    reason: str = ""  # where the numbers do not say it themselves
    a_ms: float | None = None
    b_ms: float | None = None
    ratio: float | None = None
    interval: tuple[float, float] | None = None  # at the level that many cells need
    rounds: int = 1  # of the side that has fewer
    blocks: bool = False  # A was measured and B cannot be held against it

    @property
    def cell(self) -> tuple[str, str]:
        """(component, variant)."""
        return self.component, self.variant


@dataclass(frozen=True)
class _Pair:
    judged: Judged
    a: Rounds = ()
    b: Rounds = ()
    disturbed: str = ""  # which sides were timed while other programs took the processor away


def judge(a: Side, b: Side, threshold: float) -> tuple[Judged, ...]:
    """Judge every cell of either side, in the order of A.

    `same`: the whole interval of the ratio is within 1 ± `threshold`; `faster` and `slower`: the ratio is beyond it,
    and the whole interval on that side of 1. With m cells the intervals are at the level 1 - 0.05 / m (Bonferroni).
    """
    pairs = [_pair(a, b, cell) for cell in dict.fromkeys((*a.records, *b.records))]
    level = 1 - FALSE_ALARM / max(1, sum(1 for pair in pairs if pair.a))
    return tuple(_judged(pair, threshold, level) if pair.a else pair.judged for pair in pairs)


def exit_code(cells: Sequence[Judged], threshold: float) -> int:
    """Return 1: a cell is slower and its ratio beyond the threshold; 2: can't compare; 0: same or faster.

    What cannot be told is 0 while its ratio is within the threshold, since noise alone must not stop a CI job, and 2
    beyond it or without an interval. So is a cell that A has and B has not, or not right.
    """
    limit = 1 + threshold
    if any(cell.verdict == "slower" and cell.ratio is not None and cell.ratio > limit for cell in cells):
        return SLOWER
    compared = [cell for cell in cells if cell.verdict != "not compared"]
    # Not `> limit`: that of numbers which are none is beyond it too.
    open_ones = [c for c in compared if c.interval is None or c.ratio is None or not c.ratio <= limit]
    return UNKNOWN if open_ones or not compared or any(cell.blocks for cell in cells) else PASSED


def _pair(a: Side, b: Side, cell: tuple[str, str]) -> _Pair:
    one, two = a.records.get(cell), b.records.get(cell)
    judged = Judged(*cell, "not compared")
    if one is None or two is None:
        return _Pair(replace(judged, reason=f"only in {'A' if two is None else 'B'}", blocks=two is None))
    wrong = [f"{name} is {_state(record)}" for name, record in (("A", one), ("B", two)) if not is_right(record)]
    judged = replace(judged, a_ms=median_ms(one), b_ms=median_ms(two))
    if wrong:
        return _Pair(replace(judged, reason="; ".join(wrong), blocks=is_right(one)))
    if judged.a_ms is None or judged.b_ms is None:
        lacking = " and ".join(name for name, ms in (("A", judged.a_ms), ("B", judged.b_ms)) if ms is None)
        return _Pair(replace(judged, reason=f"no times in {lacking}", blocks=judged.a_ms is not None))
    if other := other_work(one, two):
        return _Pair(replace(judged, reason=f"not the same work: {other}", blocks=True))
    untold = replace(judged, verdict="can't tell", ratio=judged.b_ms / judged.a_ms)
    try:
        pair = _sampled(judged, untold, read_samples(a, one), read_samples(b, two))
        taken = [name for name, record in (("A", one), ("B", two)) if times_taken_away(record) is not None]
        return replace(pair, disturbed=" and ".join(taken))
    except InputError as error:  # the frames of one cell: the others are judged all the same
        return _Pair(replace(untold, reason=str(error)))


def _sampled(judged: Judged, untold: Judged, *samples: Rounds) -> _Pair:
    """Add the samples of A and B to a cell, or say why they cannot be used; `untold` is the cell by its medians."""
    wrong = [no_times(side) for side in samples]
    if any(wrong):
        reasons = [f"the samples of {name} are no times: {why}" for name, why in zip("AB", wrong, strict=True) if why]
        known = [None if why else ms for why, ms in zip(wrong, (judged.a_ms, judged.b_ms), strict=True)]
        return _Pair(replace(judged, reason="; ".join(reasons), a_ms=known[0], b_ms=known[1], blocks=not wrong[0]))
    if min(sum(map(len, side)) for side in samples) < LEAST_SAMPLES:
        return _Pair(replace(untold, reason=f"fewer than {LEAST_SAMPLES} samples were kept"))
    return _Pair(replace(judged, rounds=min(map(len, samples))), samples[0], samples[1])


def _judged(pair: _Pair, threshold: float, level: float) -> Judged:
    a_ms, b_ms = (float(np.median(np.concatenate(side))) for side in (pair.a, pair.b))
    if np.array_equal(np.concatenate(pair.a), np.concatenate(pair.b)):  # one measurement, not two that agree
        return replace(
            pair.judged, verdict="same", reason="the same samples", a_ms=a_ms, b_ms=b_ms, ratio=1.0, interval=(1.0, 1.0)
        )
    resamples = max(2000, round(20 / (1 - level)))  # ten beyond either end of the interval
    with np.errstate(all="ignore"):  # resampled, a median may be 0: then the interval has no end, which is told
        ratio, low, high = ratio_interval(pair.b, pair.a, level=level, resamples=resamples)
    if not np.isfinite((ratio, low, high)).all():
        reason = "so many times are 0 or near it that the ratio has no interval"
        return replace(pair.judged, verdict="can't tell", reason=reason, a_ms=a_ms, b_ms=b_ms)
    verdict: Verdict = "can't tell"
    if 1 - threshold <= low and high <= 1 + threshold:
        verdict = "same"
    elif low > 1 and ratio > 1 + threshold:
        verdict = "slower"
    elif high < 1 and ratio < 1 - threshold:
        verdict = "faster"
    held = "1" if low <= 1 <= high else "less"  # of a ratio within the threshold, whose interval reaches beyond it
    reasons = [f"the interval holds {held} and more than the threshold"] if verdict == "can't tell" else []
    if pair.disturbed and verdict != "same":  # not in the interval of one round, and hardly in that of a few
        reasons.append(f"other programs ran while {pair.disturbed} was timed")
    reason = "; ".join(reasons)
    return replace(pair.judged, verdict=verdict, reason=reason, a_ms=a_ms, b_ms=b_ms, ratio=ratio, interval=(low, high))


def _state(record: Record) -> str:
    return "not right (parity)" if record.status == "ok" else f"{record.status} ({record.reason})"
