"""Compares cells: B is faster, slower or the same as A, or the samples cannot tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from profiling.compare.host import HostChange, host_change
from profiling.compare.loaded_run import LoadedRun, Rounds, median_ms, read_samples
from profiling.errors import InputError
from profiling.report.format import percent
from profiling.results.judgement import (
    clock_ratio,
    clocks_differ,
    disturbance,
    disturbance_explains,
    paired_speedup,
    same_code_share,
    took_turns,
    work_of,
)
from profiling.results.measured import LEAST_VALUES
from profiling.results.record import Record
from profiling.results.stats import ratio_interval

Verdict = Literal["slower", "faster", "same", "cannot tell", "not compared"]

#: Probability that any cell of two equal runs is called faster or slower; divided among the cells (Bonferroni).
FALSE_ALARM = 0.05
#: Most resamples of all cells together, from which each has 2,000 at least.
_MOST_RESAMPLES = 1_000_000
#: Exit codes: no cell is slower, one is, cannot tell of all.
PASSED, SLOWER, UNKNOWN = 0, 1, InputError.exit_code


@dataclass(frozen=True)
class CellComparison:
    """The verdict on a cell. Times are medians of all samples in milliseconds; `ratio` is B / A, above 1 is slower."""

    component: str
    variant: str
    verdict: Verdict
    reason: str = ""  # what the numbers do not show
    a_ms: float | None = None
    b_ms: float | None = None
    ratio: float | None = None
    interval: tuple[float, float] | None = None  # of the ratio, at `confidence_level`
    rounds: int = 1  # of the run that has fewer
    in_turns: bool = False  # whether both took turns, so that the ratio is that of neighbouring windows
    unmatched: bool = False  # A was measured and B has nothing to compare with it: exit code 2
    job: str = ""  # of two sweeps: the swept overrides of the runs that hold the cell

    @property
    def cell(self) -> tuple[str, str]:
        """(component, variant)."""
        return self.component, self.variant


@dataclass(frozen=True)
class _Sampled:
    """A cell with enough samples in both runs; its verdict is still open."""

    cell: CellComparison
    a: Rounds
    b: Rounds
    records: tuple[Record, Record]
    clocks: str  # SM clocks that differ by more than 3%, else empty
    clock_ratio: float | None  # B's SM clock over A's where they differ


def compare_cells(a: LoadedRun, b: LoadedRun, threshold: float, compared: int = 0) -> tuple[CellComparison, ...]:
    """Compare every cell of either run, in the order of A, as `compared` cells in all, of other runs too.

    `same`: the whole interval of the ratio is within 1 ± `threshold`. `faster`, `slower`: the ratio is beyond the
    threshold and the whole interval is on that side of 1. Anything else is `cannot tell`.
    """
    cells = _all_sampled(a, b)
    number = max(compared, sum(isinstance(cell, _Sampled) for cell in cells))
    judged = [_judged(cell, threshold, number) if isinstance(cell, _Sampled) else cell for cell in cells]
    host = host_change(a, b)
    return tuple(judged) if host is None else tuple(_without_host(cell, host, a, b) for cell in judged)


def count_compared(a: LoadedRun, b: LoadedRun) -> int:
    """Return how many cells of two runs have samples that can be compared."""
    return sum(isinstance(cell, _Sampled) for cell in _all_sampled(a, b))


def _all_sampled(a: LoadedRun, b: LoadedRun) -> list[CellComparison | _Sampled]:
    return [_sampled(a, b, name) for name in dict.fromkeys((*a.records, *b.records))]


def _without_host(cell: CellComparison, host: HostChange, a: LoadedRun, b: LoadedRun) -> CellComparison:
    """Withdraw the verdict where the hosts of the two runs alone can make the difference."""
    if cell.in_turns or cell.verdict not in ("faster", "slower") or not host.explains(a, b, cell.cell):
        return cell
    return replace(cell, verdict="cannot tell", reason="; ".join(filter(None, (host.words, cell.reason))))


def confidence_level(cells: int) -> float:
    """Return the level of each interval when `cells` are compared: all of them together hold 95% (Bonferroni)."""
    return 1 - FALSE_ALARM / max(1, cells)


def exit_code(cells: Sequence[CellComparison], threshold: float) -> int:
    """Return 1 where a cell is slower by more than the threshold, 2 where some cells are undecided, else 0.

    A cell passes where the whole interval of its ratio is below 1 + `threshold`: it is the same, faster, or cannot be
    told which of these. Without an interval, or with one that reaches further, it counts as 2, and so does a cell that
    is correct in A and missing or wrong in B. A cell that is faster for a reason that could hide slower code, such as
    the host, counts as 2 too.
    """
    limit = 1 + threshold
    if any(cell.verdict == "slower" and cell.ratio is not None and cell.ratio > limit for cell in cells):
        return SLOWER
    compared = any(cell.verdict != "not compared" for cell in cells)
    return UNKNOWN if undecided(cells, threshold) or not compared else PASSED


def undecided(cells: Sequence[CellComparison], threshold: float) -> list[CellComparison]:
    """Return the cells that do not show whether B is slower, and those that are missing in B."""
    return [
        cell
        for cell in cells
        if cell.unmatched or (cell.verdict != "not compared" and _could_be_slower(cell, threshold))
    ]


def _could_be_slower(cell: CellComparison, threshold: float) -> bool:
    if cell.ratio is None or cell.interval is None or cell.interval[1] > 1 + threshold:
        return True
    is_withdrawn = verdict_on(cell.ratio, *cell.interval, threshold)[0] == "faster" and cell.verdict == "cannot tell"
    return is_withdrawn  # hosts, clocks or memory addresses made it faster by as much, which says nothing of the code


def different_work(a: Record, b: Record) -> str:
    """Return the differences that make two times incomparable (`steps 4 → 1`); empty if there are none.

    Variant, schedule and dtype do not count: they are how the work is run, which is what runs are compared for. A value
    that one of the records lacks is no difference: older records have fewer.
    """
    before, after = work_of(a), work_of(b)
    names = [name for name in before if name in after and before[name] != after[name]]
    return ", ".join(f"{name} {before[name]} → {after[name]}" for name in names)


def _sampled(a: LoadedRun, b: LoadedRun, name: tuple[str, str]) -> CellComparison | _Sampled:
    """Return the samples of a cell in both runs, or the verdict where they cannot be compared."""
    cell = CellComparison(*name, "not compared")
    one, two = a.records.get(name), b.records.get(name)
    if one is None or two is None:
        return replace(cell, reason=f"only in {'A' if two is None else 'B'}", unmatched=two is None)
    cell = replace(cell, a_ms=median_ms(one), b_ms=median_ms(two))
    if wrong := [f"{run} {_fault(record)}" for run, record in (("A", one), ("B", two)) if not record.is_correct]:
        return replace(cell, reason="; ".join(wrong), unmatched=one.is_correct)
    if cell.a_ms is None or cell.b_ms is None:
        return replace(
            cell, reason=f"no times in {_runs(cell.a_ms is None, cell.b_ms is None)}", unmatched=bool(cell.a_ms)
        )
    if difference := different_work(one, two):
        return replace(cell, reason=f"different work: {difference}", unmatched=True)
    by_medians = replace(cell, verdict="cannot tell", ratio=cell.b_ms / cell.a_ms)
    try:
        samples = read_samples(a, one), read_samples(b, two)
    except InputError as error:  # the frames of this cell; all other cells can still be compared
        return replace(by_medians, reason=str(error))
    if min(sum(map(len, rounds)) for rounds in samples) < LEAST_VALUES:
        return replace(by_medians, reason=f"fewer than {LEAST_VALUES} samples were kept")
    a_ms, b_ms = map(_median, samples)
    if a_ms is None or b_ms is None:
        reason = f"the median of the samples is not above 0 in {_runs(a_ms is None, b_ms is None)}"
        return replace(cell, reason=reason, a_ms=a_ms, b_ms=b_ms, unmatched=a_ms is not None)
    cell = replace(cell, a_ms=a_ms, b_ms=b_ms, rounds=min(map(len, samples)))
    return _Sampled(cell, *samples, (one, two), clocks_differ(one, two), clock_ratio(one, two))


def _judged(sampled: _Sampled, threshold: float, compared: int) -> CellComparison:
    cell, a, b, level = sampled.cell, sampled.a, sampled.b, confidence_level(compared)
    if np.array_equal(np.concatenate(a), np.concatenate(b)):  # one measurement, not two that agree
        return replace(cell, verdict="same", reason="both runs hold the same samples", ratio=1.0, interval=(1.0, 1.0))
    paired = paired_speedup(*sampled.records, level=level)
    if paired is not None and paired[1] is not None:
        cell, ratio, (low, high) = replace(cell, in_turns=True), paired[0], paired[1]
    else:
        # Ten beyond either end of the interval, as long as all cells together do not take minutes.
        resamples = max(2000, min(round(20 / (1 - level)), _MOST_RESAMPLES // max(1, compared)))
        with np.errstate(all="ignore"):  # a resampled median may be 0
            ratio, low, high = ratio_interval(b, a, level=level, resamples=resamples)
    if not np.isfinite((ratio, low, high)).all():
        return replace(cell, verdict="cannot tell", reason="too many samples are 0 for an interval of the ratio")
    verdict, reasons = verdict_on(ratio, low, high, threshold)
    if sampled.clock_ratio is not None and verdict in ("faster", "slower"):
        explained = min(1.0, sampled.clock_ratio) <= 1 / ratio <= max(1.0, sampled.clock_ratio)
        verdict = "cannot tell" if explained else verdict
        reasons = [*reasons, sampled.clocks + " could explain the difference" * explained]
    share = same_code_share(*sampled.records)
    if verdict in ("faster", "slower") and max(ratio, 1 / ratio) <= 1 + share and share > threshold:
        verdict = "cannot tell"
        reasons = [*reasons, f"runs of equal code differ by up to {percent(share)} on this device"]
    if disturbed := _disturbed(*sampled.records, verdict):
        return replace(cell, verdict="cannot tell", reason=disturbed, ratio=ratio)
    return replace(cell, verdict=verdict, reason="; ".join(reasons), ratio=ratio, interval=(low, high))


def _disturbed(a: Record, b: Record, verdict: Verdict) -> str:
    """Return what others took, where it could be the reason for the verdict; empty where it could not."""
    faster, slower = (b, a) if verdict == "faster" else (a, b)
    taken = disturbance_explains(faster, slower)
    if taken is None and (verdict in ("faster", "slower") or took_turns(a, b)):
        return ""
    disturbed = [(run, taken) for run, record in (("A", a), ("B", b)) if (taken := disturbance(record)) is not None]
    return "; ".join(f"{taken.words} in {run}" for run, taken in disturbed) or (taken.words if taken else "")


def verdict_on(ratio: float, low: float, high: float, threshold: float) -> tuple[Verdict, list[str]]:
    """Return the verdict on a ratio B / A of times with the ends of its interval, and why it cannot tell."""
    if 1 - threshold <= low and high <= 1 + threshold:
        return "same", []
    if low > 1 and ratio > 1 + threshold:
        return "slower", []
    if high < 1 and ratio < 1 - threshold:
        return "faster", []
    if low <= 1 <= high:
        return "cannot tell", ["the interval contains 1 and reaches beyond the threshold"]
    return "cannot tell", ["the ratio is within the threshold and its interval reaches beyond it"]


def _median(rounds: Rounds) -> float | None:
    with np.errstate(over="ignore"):  # the mean of the middle two may overflow
        median = float(np.median(np.concatenate(rounds)))
    return median if 0 < median < np.inf else None


def _fault(record: Record) -> str:
    return "fails its parity check" if record.status == "ok" else f"is {record.status} ({record.reason})"


def _runs(a: bool, b: bool) -> str:
    return " and ".join(name for name, applies in (("A", a), ("B", b)) if applies)
