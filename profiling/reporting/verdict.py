"""One line a component: the fastest variant that is right, how much faster, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence

from profiling.reporting.facts import (
    baseline_name,
    by_component,
    claimed_speedup,
    interval_at,
    is_right,
    number_at,
    overlap,
    peak_memory,
    right_baseline,
    times_taken_away,
    wall_p50,
)
from profiling.reporting.format import MIB, MINUS, count_of, listed, mebibytes, one_line, significant, times_faster
from profiling.reporting.limits import bound_lines
from profiling.results.records import Record

#: The frame rates that real-time applications aim at.
FRAME_RATES = (24, 30, 60, 120)


def verdicts(records: Sequence[Record]) -> tuple[str, ...]:
    """Return one line of plain text for each component, and more where it is known what bounds it."""
    lines = []
    for name, group in by_component(records).items():
        lines += [f"{one_line(name)}: {said}." for said in (verdict(group), *bound_lines(group)) if said]
    return tuple(lines)


def verdict(group: Sequence[Record]) -> str:
    """Judge the records of one component: only right ones count, by the median of the wall clock."""
    ranked = sorted(
        ((time, record) for record in group if is_right(record) and (time := wall_p50(record)) is not None),
        key=lambda pair: pair[0],
    )
    if not ranked:
        return _nothing(group)
    time, fastest = ranked[0]
    runners_up = [record for _, record in ranked[1:]]
    parts = [f"{_lead(fastest, group, alone=not runners_up)}, {significant(time)} ms (wall p50)"]
    parts += [_gain(fastest, group, alone=not runners_up), _frame(fastest), _cost(fastest, group)]
    parts.append(_disturbed(fastest, runners_up))
    parts.append(_tie(fastest, runners_up))
    parts.append(_by_mean(fastest, runners_up))
    if fastest.parity is None:
        parts.append("its output was not checked (no parity)")
    parts.append(_left_out(group))
    return "; ".join(one_line(part) for part in parts if part)


def _frame(fastest: Record) -> str:
    """Say at which frame rates one call fits between two frames: by its p99, since a late frame is a lost one."""
    p99 = number_at(fastest.metrics, "wall_ms", "p99")
    if p99 is None or fastest.training:  # a training step shows nobody a frame
        return ""
    held = [str(rate) for rate in FRAME_RATES if p99 <= 1000 / rate]
    if not held:
        return f"its p99 of {significant(p99)} ms does not fit a frame even at {FRAME_RATES[0]} FPS"
    missed = [str(rate) for rate in FRAME_RATES if str(rate) not in held]
    return f"its p99 fits a frame at {listed(held)} FPS{f', not at {listed(missed)}' if missed else ''}"


def _disturbed(fastest: Record, runners_up: Sequence[Record]) -> str:
    """Say which times tell as much about other programs."""
    names = [record.variant for record in (fastest, *runners_up) if times_taken_away(record) is not None]
    return f"other programs ran while {listed(names)} {'was' if len(names) == 1 else 'were'} timed" if names else ""


def _by_mean(fastest: Record, runners_up: Sequence[Record]) -> str:
    """Say when the mean, which FPS comes from, ranks otherwise: a long tail is worth knowing."""
    means = [(mean, r.variant) for r in (fastest, *runners_up) if (mean := number_at(r.metrics, "wall_ms", "mean"))]
    mean, variant = min(means, default=(0.0, fastest.variant))
    return (
        "" if variant == fastest.variant else f"by the mean {variant} is faster, {significant(mean)} ms: mind the tails"
    )


def _nothing(group: Sequence[Record]) -> str:
    if any(is_right(record) for record in group):
        return "; ".join(part for part in ("no latency was measured", _left_out(group)) if part)
    if all(record.status == "skipped" for record in group):
        return f"nothing ran: {', '.join(record.variant for record in group)} skipped"
    return f"no variant is right, so none is fastest: {', '.join(_with_status(record) for record in group)}"


def _lead(fastest: Record, group: Sequence[Record], *, alone: bool) -> str:
    if len(group) == 1:
        return f"only {fastest.variant} ran"
    return f"only {fastest.variant} is right" if alone else f"{fastest.variant} is fastest"


def _gain(fastest: Record, group: Sequence[Record], *, alone: bool) -> str:
    name, baseline = baseline_name(group), right_baseline(group)
    if baseline is None:
        state = next((_with_status(record) for record in group if record.variant == name), f"{name} did not run")
        return f"no speedup is claimed without a right baseline: {state}"
    if baseline is fastest:
        return "no other variant to compare it with" if alone else "nothing beats the baseline"
    speedup = claimed_speedup(fastest, group)
    if speedup is None:
        return "its speedup was not measured"
    return f"{times_faster(speedup, interval_at(fastest.speedup, 'ci95'))} as fast as {name}"


def _cost(fastest: Record, group: Sequence[Record]) -> str:
    costs = []
    seconds = number_at(fastest.prepare, "seconds")
    if seconds is not None:
        calls = number_at(fastest.speedup, "break_even_calls")
        paid = "" if not calls else f" (paid back after {count_of(calls, 'call')})"
        costs.append(f"{significant(seconds, 3)} s to prepare{paid}")
    peak, baseline = peak_memory(fastest), right_baseline(group)
    before = peak_memory(baseline) if baseline else None
    if peak and baseline and before and baseline is not fastest and before[0] == peak[0]:
        costs.append(f"{_difference(peak[1] - before[1])} MiB {peak[0]} vs {baseline.variant}")
    elif peak:
        costs.append(f"{mebibytes(peak[1])} MiB {peak[0]}")
    return f"costs {' and '.join(costs)}" if costs else ""


def _difference(count: float) -> str:
    if abs(count) < MIB / 20:
        return "±0"
    return ("+" if count > 0 else MINUS) + mebibytes(abs(count))


def _tie(fastest: Record, runners_up: Sequence[Record]) -> str:
    """Name the variants whose medians may as well be the fastest one's."""
    ties = [record.variant for record in runners_up if overlap(fastest, record) is True]
    if ties:
        return f"{listed([fastest.variant, *ties])} can't be told apart (their 95% intervals overlap)"
    if runners_up and overlap(fastest, runners_up[0]) is None:
        return f"{listed([fastest.variant, runners_up[0].variant])} can't be told apart (too few samples)"
    return ""


def _left_out(group: Sequence[Record]) -> str:
    wrong = [_with_status(record) for record in group if not is_right(record)]
    return f"left out: {', '.join(wrong)}" if wrong else ""


def _with_status(record: Record) -> str:
    return f"{record.variant} ({'parity failed' if record.status == 'ok' else record.status})"
