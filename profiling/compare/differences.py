"""Finds what differs between two runs and could explain their times: environment and options, and inside each cell."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from profiling.errors import printable
from profiling.report.format import ABSENT, TIMES, Kind, count, estimate, number_of, show, significant
from profiling.report.run_data import RunData
from profiling.report.table import Column, columns
from profiling.results.environment import Git, encode_environment
from profiling.results.judge import ENERGY_SPREAD, compare_totals
from profiling.results.record import Record
from profiling.results.run_folder import FREE_KEYS, flat
from profiling.results.verdicts import judged_rates

#: What is compared of the environment, the likeliest explanations of a change first. The code comes before it.
_ENVIRONMENT = ("checkout", "device", "versions", "threads", "dtype", "scale", "tf32", "variables", "cpu", "seed")
#: Options that the environment or the record of each cell has as well, there as what `auto` was resolved to.
_RESOLVED = (*_ENVIRONMENT, "checkpoint")
#: A number changed where it differs by more than the fraction of itself that is asked for, and by more than this.
_LEAST: Mapping[Kind, float] = {"ms": 0.01, "s": 0.05, "percent": 0.05}
#: The time of a kernel changed where it differs by more than the first fraction of itself, and by more than the
#: second fraction of the time of all kernels.
_KERNEL_CHANGE, _KERNEL_SHARE = 0.1, 0.01
#: Rows of kernels in a cell, and characters of a name.
_MOST_KERNELS, _LONGEST_NAME = 8, 48


@dataclass(frozen=True)
class Difference:
    """A property that differs, and its value in either run."""

    name: str
    a: str
    b: str


def run_differences(a: RunData, b: RunData) -> tuple[Difference, ...]:
    """Return what differs in code, environment and options that both have, most likely explanations first."""
    before, after = _options(a), _options(b)
    rows = _unequal(before, after, [key for key in before if key in after])
    if a.environment.is_known and b.environment.is_known:
        before, after = _environment(a), _environment(b)
        rows = [*_unequal(before, after, dict.fromkeys((*before, *after))), *rows]
    return tuple(rows)


def _environment(run: RunData) -> dict[str, Any]:
    """Return the code and the environment of a run by dotted name; modules where they come from another checkout."""
    environment = run.environment
    modules = {name: git for name, git in environment.module_git.items() if git != environment.user_git}
    code = {"git, your code": environment.user_git, "git, this tool": environment.tool_git, **modules}
    content = encode_environment(environment)
    known = {name: content[name] for name in _ENVIRONMENT if name in content}
    return {name: _revision(git) for name, git in code.items()} | dict(flat(known))


def _revision(git: Git | None) -> str | None:
    """Return the first 12 digits of the revision, with those of the hash of uncommitted changes."""
    if git is None or not git.revision:
        return None
    return f"{git.revision[:12]}{f' with changes {(git.diff or ABSENT)[:8]}' if git.dirty else ''}"


def _options(run: RunData) -> dict[str, Any]:
    return {key: value for key, value in flat(run.config) if key not in (*FREE_KEYS, *_RESOLVED)}


def _unequal(before: Mapping[str, Any], after: Mapping[str, Any], names: Iterable[str]) -> list[Difference]:
    pairs = ((name, before.get(name), after.get(name)) for name in names)
    return [Difference(name, _text(one), _text(two)) for name, one, two in pairs if one != two]


def _text(value: object) -> str:
    """Return a value as it is written in YAML and on the command line: `false`, `[1, 2]`."""
    if value is None:
        return ABSENT
    return value if isinstance(value, str) else json.dumps(value, default=str)


def cell_changes(one: Record, two: Record) -> tuple[Difference, ...]:
    """Return what changed in a cell besides its time, of what both runs measured."""
    changed = (_changed(one, two, column, fraction) for fraction, column in _compared(one, two))
    return (*filter(None, (*changed, _energy(one, two))), *_changed_kernels(one, two))


def _energy(one: Record, two: Record) -> Difference | None:
    """Return the joules of a frame that both runs measured, with the judge's answer; None where one did not."""
    if one.energy is None or two.energy is None:
        return None
    try:
        pair = compare_totals(two.energy.totals, one.energy.totals, ENERGY_SPREAD)
    except ValueError:  # a run could not measure it
        return None
    answer = pair.answer()
    joules = [show(each.energy.joules_per_frame if each.energy else None, "number") for each in (one, two)]
    ratio = show(estimate(pair.ratio, pair.interval()), "ratio")
    words = {"faster": "less", "slower": "more"}.get(answer, answer)
    return Difference("J/frame", joules[0], f"{joules[1]} ({words}: {ratio})")


def _changed(one: Record, two: Record, column: Column[Record], fraction: float) -> Difference | None:
    before, after = column.read(one), column.read(two)
    if before is None or after is None or before == after:
        return None
    numbers = number_of(before), number_of(after)
    if numbers[0] is not None and numbers[1] is not None:
        allowed = max(_LEAST.get(column.kind, 0.0), fraction * max(map(abs, filter(None, numbers)), default=0.0))
        if abs(numbers[0] - numbers[1]) <= allowed:
            return None
    return Difference(column.header, show(before, column.kind), show(after, column.kind))


#: What is compared of every cell, with the fraction of a number by which single measurements of equal code may differ.
_QUANTITIES: Mapping[float, tuple[Column[Record], ...]] = {
    0.0: (
        *columns(Record, "dtype", "device", "weights", "parameters"),
        *columns(Record, "schedule", "gc", "target_fps", at="realtime"),
        Column("stages", lambda record: record.realtime and ", ".join(record.realtime.stages)),
        Column("parity", lambda record: "not checked" if record.parity is None else "checked"),
        Column("FX graphs", lambda record: record.prepare and record.prepare.graphs, "count"),
        *columns(Record, "graph_breaks", "recompiles", "cudagraph_captures", "cudagraph_skips", at="prepare"),
        *columns(Record, "trace_analysis.count"),
    ),
    0.01: (Column("peak memory", lambda record: record.peak_memory and record.peak_memory[1], "MiB"),),
    0.03: (
        Column("median SM clock", lambda r: r.conditions and r.conditions.sm_clock_median_mhz, "count", unit="MHz"),
    ),
    0.05: (
        *columns(Record, "metrics.device_ms.p50", "metrics.host_ms.p50"),
        Column("p99", lambda record: (times := record.summary) and times.percentile("p99"), "ms"),
        *columns(Record, "trace_analysis.idle.host_ms", "trace_analysis.idle.between_ms"),
    ),
    0.1: (Column("relative L2 error", lambda record: record.parity and record.parity.rel_l2, "error"),),
    0.2: (
        Column("preparation", lambda r: r.prepare.seconds if r.prepare and not r.prepare.is_warm else None, "s"),
        Column("cold start", lambda record: record.starts and record.starts.cold.seconds, "s"),
        Column("warm start", lambda record: record.starts and record.starts.warm and record.starts.warm.seconds, "s"),
    ),
}


def _compared(*records: Record) -> Iterator[tuple[float, Column[Record]]]:
    """Yield what is compared of these cells: all quantities, each frame rate, and what limited the clocks."""
    for fraction, some in _QUANTITIES.items():
        yield from ((fraction, column) for column in some)
    for fps in sorted({rate.fps for record in records for rate in record.deadlines}):
        yield 0.0, Column(f"holds {fps:g} FPS", lambda record, fps=fps: _holds(record, fps))
    shares = [share for record in records if (share := _limited_share(record)) is not None]
    if len(shares) == len(records):
        for why in dict.fromkeys(why for share in shares for why in share):
            name = f"clocks limited: {why}"
            yield 0.0, Column(name, lambda record, why=why: (_limited_share(record) or {}).get(why, 0.0), "percent")


def _holds(record: Record, fps: float) -> str | None:
    said = judged_rates(record).get(fps)
    return None if said is None or said.answer == "undecided" else said.answer


def _limited_share(record: Record) -> Mapping[str, float] | None:
    return None if record.conditions is None else record.conditions.limited_share


def _kernels(record: Record) -> dict[str, tuple[float, float]]:
    """Return (launches a call, milliseconds a call) of each kernel; names that were shortened may be equal."""
    kernels: dict[str, tuple[float, float]] = {}
    for kernel in record.trace_analysis.kernels if record.trace_analysis is not None else ():
        number, ms = kernels.get(kernel.name, (0.0, 0.0))
        kernels[kernel.name] = number + (kernel.count or 0.0), ms + kernel.ms
    return kernels


def _changed_kernels(one: Record, two: Record) -> list[Difference]:
    """Return the kernels whose time in a call changed most; none if a run recorded none."""
    before, after = _kernels(one), _kernels(two)
    if not before or not after:
        return []
    least = _KERNEL_SHARE * max(sum(ms for _, ms in kernels.values()) for kernels in (before, after))
    changes: list[tuple[float, Difference]] = []
    for name in dict.fromkeys((*before, *after)):
        old, new = before.get(name, (0.0, 0.0)), after.get(name, (0.0, 0.0))
        if (change := abs(old[1] - new[1])) > max(least, _KERNEL_CHANGE * max(old[1], new[1])):
            where = "only in B" if name not in before else "only in A" if name not in after else "changed"
            label = f"kernel {where}: {printable(name, _LONGEST_NAME)}"
            changes.append((change, Difference(label, _launches(*old), _launches(*new))))
    changes.sort(key=lambda item: -item[0])
    return [difference for _, difference in changes[:_MOST_KERNELS]]


def _launches(number: float, ms: float) -> str:
    return f"{count(number)} {TIMES} {significant(1e3 * ms / number)} µs" if number else ABSENT
