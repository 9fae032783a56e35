"""Conclusions from records: which are correct, what the baseline is, what speed may be claimed.

Tables, summaries and charts all use these functions, so that they agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from statistics import median

from profiling.results.measured import ClockConditions
from profiling.results.record import BASELINE, Record

#: A cell counts as disturbed by other programs from this many interruptions per timed call.
DISTURBED_SHARE = 0.1
#: Two processes with the same code may differ by this share, because their memory lies elsewhere.
PROCESS_SHARE = 0.003
#: SM clocks differ where their medians do by more than this fraction.
CLOCK_CHANGE = 0.03


def by_component(records: Iterable[Record]) -> dict[str, tuple[Record, ...]]:
    """Group records by component; components and records keep their order."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.component, []).append(record)
    return {component: tuple(group) for component, group in groups.items()}


def baseline_name(group: Sequence[Record]) -> str:
    """Return the variant that a component's speedups refer to."""
    return next((record.speedup.vs for record in group if record.speedup is not None), BASELINE)


def correct_baseline(group: Sequence[Record]) -> Record | None:
    """Return the component's baseline if it ran and is correct; without one no speedup may be claimed."""
    name = baseline_name(group)
    return next((record for record in group if record.variant == name and record.is_correct), None)


def fastest_correct(group: Iterable[Record]) -> Record | None:
    """Return the correct record with the lowest median frame or wall time; None where none was timed."""
    timed = [(time, record) for record in group if record.is_correct and (time := record.median_ms) is not None]
    return min(timed, key=lambda pair: pair[0])[1] if timed else None


def claimed_speedup(record: Record, group: Sequence[Record]) -> float | None:
    """Return the speedup that may be shown: of a correct record against a correct baseline, beyond that of clocks."""
    baseline = correct_baseline(group)
    if baseline is None or not record.is_correct or baseline.cell == record.cell or record.speedup is None:
        return None
    return None if clocks_explain(baseline, record, record.speedup.wall) else record.speedup.wall


def sm_clock(record: Record) -> float | None:
    """Return the median SM clock in MHz while the calls or frames of a record were timed."""
    conditions: ClockConditions | None = record.realtime if record.is_realtime else record.metrics.latency
    return None if conditions is None else conditions.sm_clock_median_mhz


def clock_ratio(one: Record, other: Record) -> float | None:
    """Return the SM clock of `other` over that of `one` where they differ by more than 3%, else None."""
    before, after = sm_clock(one), sm_clock(other)
    if not before or not after or abs(after - before) <= CLOCK_CHANGE * max(before, after):
        return None
    return after / before


def clocks_differ(one: Record, other: Record) -> str:
    """Return `SM clock 1755 against 1980 MHz` where those of two records differ by more than 3%, else nothing."""
    differ = clock_ratio(one, other) is not None
    return f"SM clock {sm_clock(one):.0f} against {sm_clock(other):.0f} MHz" if differ else ""


def clocks_explain(one: Record, other: Record, speedup: float) -> bool:
    """Return whether different SM clocks alone could make `other` faster than `one` by this factor, or slower."""
    ratio = clock_ratio(one, other)
    return ratio is not None and min(1.0, ratio) <= speedup <= max(1.0, ratio)


def intervals_overlap(first: Record, second: Record) -> bool | None:
    """Return whether two wall medians may be equal at 95%; None where that is not known.

    Where both took turns, their neighbouring windows are compared, with a margin for what two processes with the same
    code may differ by; else the intervals of the two medians.
    """
    if (paired := paired_speedup(first, second)) is not None:
        interval = paired[1]
        return None if interval is None else interval[0] <= 1 + PROCESS_SHARE and interval[1] >= 1 - PROCESS_SHARE
    one, other = first.metrics.wall_ms, second.metrics.wall_ms
    if one is None or other is None or one.ci95 is None or other.ci95 is None:
        return None
    return one.ci95[0] <= other.ci95[1] and other.ci95[0] <= one.ci95[1]


def paired_speedup(record: Record, other: Record) -> tuple[float, tuple[float, float] | None] | None:
    """Return (wall time of `other` over that of `record`, its 95% interval) by the windows of the same blocks.

    None where they did not take turns with each other.
    """
    from profiling.results.stats import paired_ratio  # numpy, without which most of a report is made

    if record.turns is None or other.turns is None or record.turns.began != other.turns.began:
        return None
    medians, others = _window_medians(record), _window_medians(other)
    blocks = [block for block in medians if block in others]
    if not blocks or min(*medians.values(), *others.values()) <= 0:
        return None
    return paired_ratio([others[block] for block in blocks], [medians[block] for block in blocks])


def _window_medians(record: Record) -> dict[int, float]:
    """Return the median wall time in milliseconds of each window, by its block."""
    windows, samples = record.turns.windows if record.turns is not None else (), samples_by_round(record)
    if len(windows) != len(samples):
        return {}
    return {window.block: median(part) for window, part in zip(windows, samples, strict=True)}


def is_disturbed(record: Record) -> bool:
    """Return whether other programs interrupted so many calls that no ranking may be claimed for this record."""
    wall, conditions = record.metrics.wall_ms, record.metrics.latency
    if wall is None or conditions is None or conditions.descheduled is None:
        return False
    return wall.n > 0 and conditions.descheduled / wall.n >= DISTURBED_SHARE


def samples_by_round(record: Record, clock: str = "wall_ms") -> tuple[tuple[float, ...], ...]:
    """Return the samples of `clock` (wall_ms, device_ms or host_ms) in milliseconds, a tuple a round or window.

    Empty where there are none; one round where the rounds do not say how many samples each took.
    """
    summary = getattr(record.metrics, clock)
    samples: tuple[float, ...] = () if summary is None else summary.samples
    if not samples:
        return ()
    sizes = [part.n for each in record.rounds or () if (part := getattr(each, clock)) is not None]
    if record.turns is not None:
        sizes = [window.n for window in record.turns.windows]
    if not sizes or min(sizes) <= 0 or sum(sizes) != len(samples):
        return (samples,)
    ends = list(accumulate(sizes))
    return tuple(samples[end - size : end] for end, size in zip(ends, sizes, strict=True))
