"""Finds what differs between two runs and could explain their times: environment and options, and inside each cell."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from profiling.compare.loaded_run import LoadedRun
from profiling.errors import printable
from profiling.report.format import ABSENT, TIMES, Kind, count, count_of, show, significant
from profiling.results.environment import ENVIRONMENT_FILE, Git, encode_environment
from profiling.results.measured import ClockConditions
from profiling.results.record import Record
from profiling.results.run_folder import FREE_KEYS
from profiling.results.verdicts import holds_rate, sm_clock

#: Prefixes of names, the likeliest explanations of a change first. All other names come last.
_ORDER = (
    *("checkout", "device.name", "device.type", "device", "versions.driver", "versions.torch", "git"),
    *("threads", "dtype", "scale", "tf32", "variables", "versions.triton", "versions.cud", "cpu", "versions"),
)
#: Sections of the environment that are compared in another way, or explain nothing.
_NOT_COMPARED = ("captured_at", "command", "launch_calibration", "user_git", "tool_git", "tool_version", "ceilings")
_CEILINGS = (
    *("copy_bytes_per_s", "read_bytes_per_s", "matmul_flops_per_s", "conv_flops_per_s"),
    *("launch_us", "gap_us", "replay_us"),
)
#: Options that a run resolves, and keeps in its environment under the same name.
_RESOLVED = ("dtype", "scale", "threads", "seed", "tf32")
#: Measured ceilings differ where they differ by more than this fraction.
_CEILING_CHANGE = 0.1
_TINY = re.compile(r"component\.\w+\.tiny\.")

#: Change of the share of the time in which the clocks were held down that is shown.
_LIMITED_CHANGE = 0.05
#: The time of a kernel changed where it differs by more than the first fraction of itself, and by more than the
#: second fraction of the time of all kernels.
_KERNEL_CHANGE, _KERNEL_SHARE = 0.1, 0.01
#: Rows of kernels in a cell, and characters of a name.
_MOST_KERNELS, _LONGEST_NAME = 8, 48
#: Characters of the names of generated files, which are hashes of their content.
_LONGEST_FILE = 16


@dataclass(frozen=True)
class Difference:
    """A property that differs, and its value in either run."""

    name: str
    a: str
    b: str


def run_differences(a: LoadedRun, b: LoadedRun) -> tuple[Difference, ...]:
    """Return what differs in the environments, most likely explanations first, then in the ceilings and the configs."""
    environment = sorted(_changed(_environment(a), _environment(b)), key=lambda row: _rank(row.name))
    return (*environment, *_ceiling_differences(a, b), *_option_differences(a, b, {row.name for row in environment}))


def unknown_differences(a: LoadedRun, b: LoadedRun) -> tuple[str, ...]:
    """Return a line for each way in which the runs may differ that was not recorded."""
    lines = [
        f"{name} has no readable {ENVIRONMENT_FILE}: differences in machine, versions and code are unknown."
        for name, run in (("A", a), ("B", b))
        if not run.environment.is_known
    ]
    checkouts = {"your code": (a.environment.user_git, b.environment.user_git)}
    if a.environment.tool_git != a.environment.user_git:
        checkouts["this tool"] = (a.environment.tool_git, b.environment.tool_git)
    for code, (one, two) in checkouts.items():
        same = one and two and one.diff is not None and one.diff == two.diff
        if one and two and one.revision and one.revision == two.revision and two.dirty and not same:
            at = f"{code} at git {one.revision[:12]}"
            lines.append(f"Both runs used {at}, B with uncommitted changes: the code may differ.")
    return tuple(lines)


def cell_changes(one: Record, two: Record) -> tuple[Difference, ...]:
    """Return what changed in a cell besides its time, from its record in either run.

    Quantities that one run alone measured are left out.
    """
    kernels = [*_changed_kernels(_kernels(one), _kernels(two)), *_changed_code(one, two)]
    if len(kernels) > _MOST_KERNELS:
        rest = Difference(f"and {count_of(len(kernels) - _MOST_KERNELS, 'kernel')} more", ABSENT, ABSENT)
        kernels = [*kernels[:_MOST_KERNELS], rest]
    return (*_changed(_properties(one), _properties(two)), *_changed_quantities(one, two), *kernels)


def _environment(run: LoadedRun) -> dict[str, Any]:
    """Return what is known of the environment by dotted name, with the revisions."""
    environment = run.environment
    content = {key: value for key, value in encode_environment(environment).items() if key not in _NOT_COMPARED}
    known = {name: value for name, value in _flat(content) if not name.endswith("_reason")}
    known["git, your code"] = _revision(environment.user_git)
    known["git, this tool"] = _revision(environment.tool_git) or environment.tool_version
    return known


def _revision(git: Git | None) -> str | None:
    """Return the first 12 digits of the revision, marked where the checkout had uncommitted changes."""
    if git is None or not git.revision:
        return None
    return f"{git.revision[:12]}{' (dirty)' if git.dirty else ''}"


def _rank(name: str) -> int:
    return next((rank for rank, beginning in enumerate(_ORDER) if name.startswith(beginning)), len(_ORDER))


def _ceiling_differences(a: LoadedRun, b: LoadedRun) -> Iterator[Difference]:
    one, two = a.environment.ceilings, b.environment.ceilings
    if one is None or two is None:
        return
    for name in _CEILINGS:
        before, after = getattr(one, name), getattr(two, name)
        if None not in (before, after) and abs(before - after) > _CEILING_CHANGE * max(abs(before), abs(after)):
            yield Difference(f"ceilings.{name}", *(f"{value:.4g}" for value in (before, after)))
    if one.disturbed != two.disturbed:
        words = {True: "measured while other processes ran", False: "measured undisturbed"}
        yield Difference("ceilings", words[bool(one.disturbed)], words[bool(two.disturbed)])


def _option_differences(a: LoadedRun, b: LoadedRun, known: Iterable[str]) -> Iterator[Difference]:
    """Yield the keys of both configs whose values differ, without the tiny sizes of runs at full scale."""
    before, after = _options(a), _options(b)
    full = a.environment.scale == b.environment.scale == "full"
    for key, value in before.items():
        skipped = key in FREE_KEYS or key in known or (full and _TINY.match(key))
        if key in after and value != after[key] and not skipped:
            yield Difference(key, _yaml(value), _yaml(after[key]))


def _options(run: LoadedRun) -> dict[str, Any]:
    """Return the options of a run by dotted key; `auto` is replaced by the value that was recorded."""
    options = dict(_flat(run.config))
    resolved = {name: getattr(run.environment, name) for name in _RESOLVED}
    resolved["device"] = _common_value(record.device for record in run.records.values())
    resolved["checkpoint"] = _common_value(record.weights for record in run.records.values())
    return options | {key: value for key, value in resolved.items() if key in options and value is not None}


def _common_value(values: Iterable[str | None]) -> str | None:
    """Return the value that all cells have; None where there are several, or none."""
    known = {value for value in values if value is not None}
    return known.pop() if len(known) == 1 else None


def _flat(content: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        name = f"{path}.{key}" if path else str(key)
        if isinstance(value, Mapping):
            yield from _flat(value, name)
        else:
            yield name, value


def _yaml(value: object) -> str:
    """Return a value as it is written in YAML and on the command line: `false`, `null`, `[1, 2]`."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _changed(before: Mapping[str, object], after: Mapping[str, object]) -> list[Difference]:
    """Return what differs by name; a name that is missing is a dash."""
    names = [name for name in dict.fromkeys((*before, *after)) if before.get(name) != after.get(name)]
    return [Difference(name, _text(before.get(name)), _text(after.get(name))) for name in names]


def _text(value: object) -> str:
    return ABSENT if value is None else str(value)


def _properties(record: Record) -> dict[str, object]:
    """Return the settings and outcomes of a cell that are no quantities."""
    loop, parity = record.realtime, record.parity
    known: dict[str, object] = {name: getattr(record, name) for name in ("dtype", "device", "weights", "parameters")}
    if loop is not None:
        names = ("schedule", "pace", "deliver", "gc", "frames", "late")
        known |= {name: getattr(loop, name) for name in names} | loop.settings
        answers = {rate.fps: said.answer for rate in record.deadlines if (said := holds_rate(record, rate)) is not None}
        known |= {f"holds {fps:g} FPS": answer for fps, answer in answers.items()}
    known["parity"] = "not checked" if parity is None else "checked"
    return known


def _conditions_of(record: Record) -> ClockConditions | None:
    return record.metrics.latency if record.realtime is None else record.realtime


def _changed_quantities(one: Record, two: Record) -> Iterator[Difference]:
    before, after = _quantities(one), _quantities(two)
    for name, (value, kind, fraction, least) in before.items():
        other = after[name][0] if name in after else None
        if value is None or other is None:
            continue
        if abs(value - other) > max(least, fraction * max(abs(value), abs(other))):
            yield Difference(name, show(value, kind), show(other, kind))
    shares = [conditions.limited_share if (conditions := _conditions_of(record)) else None for record in (one, two)]
    if shares[0] is not None and shares[1] is not None:
        for why in dict.fromkeys((*shares[0], *shares[1])):
            limited = [share.get(why, 0.0) for share in shares if share is not None]
            if abs(limited[0] - limited[1]) > _LIMITED_CHANGE:
                yield Difference(f"clocks limited: {printable(why)}", *(show(share, "percent") for share in limited))


def _quantities(record: Record) -> dict[str, tuple[float | None, Kind, float, float]]:
    """Return what was measured: (value, kind, the change that is shown as a fraction of it, and the least such change).

    A single measurement is noisy, so that small changes are not shown.
    """
    metrics, loop, parity, trace = record.metrics, record.realtime, record.parity, record.trace
    frame_ms, prepare, starts, conditions = (
        loop and loop.frame_ms,
        record.prepare,
        record.starts,
        _conditions_of(record),
    )
    idle, (peak, size) = record.trace_analysis and record.trace_analysis.idle, record.peak_memory or ("peak", None)
    return {
        "device time p50 (ms)": (metrics.device_ms and metrics.device_ms.p50, "ms", 0.02, 0),
        "host time p50 (ms)": (metrics.host_ms and metrics.host_ms.p50, "ms", 0.1, 0),
        "wall time p99 (ms)": (metrics.wall_ms and metrics.wall_ms.percentile("p99"), "ms", 0.1, 0),
        "frame time p99 (ms)": (frame_ms and frame_ms.percentile("p99"), "ms", 0.1, 0),
        "SM clock, median (MHz)": (sm_clock(record), "count", 0.03, 0),
        # Cold and warm preparations have different names, so that they are never compared.
        f"{'warm ' * bool(prepare and prepare.is_warm)}preparation (s)": (prepare and prepare.seconds, "s", 0.2, 0.05),
        "cold start (s)": (starts and starts.cold.seconds, "s", 0.1, 0.5),
        "warm start (s)": (starts and starts.warm and starts.warm.seconds, "s", 0.1, 0.5),
        "parity error (relative L2)": (parity and parity.rel_l2, "error", 0.1, 0),
        "parity tolerance": (parity and parity.tolerance, "error", 0.1, 0),
        "compiled frames": (prepare and prepare.compiles, "count", 0, 0),
        "FX graphs": (prepare and prepare.graphs, "count", 0, 0),
        "graph breaks": (prepare and prepare.graph_breaks, "count", 0, 0),
        "recompiles": (prepare and prepare.recompiles, "count", 0, 0),
        "CUDA-graph captures by inductor": (prepare and prepare.cudagraph_captures, "count", 0, 0),
        "CUDA-graph skips by inductor": (prepare and prepare.cudagraph_skips, "count", 0, 0),
        "GPU kernels, copies and fills per call": (trace and trace.device_launches, "count", 0, 0),
        "GPU work per call (ms)": (trace and trace.device_ms, "ms", 0.02, 0),
        "GPU idle before launches per call (ms)": (idle and idle.host_ms, "ms", 0.1, 0.01),
        "GPU idle between kernels per call (ms)": (idle and idle.between_ms, "ms", 0.1, 0.01),
        "CPU taken by other processes": (conditions and conditions.cpu_lost_share, "percent", 0, 0.02),
        "GPU taken by other processes": (conditions and conditions.gpu_lost_share, "percent", 0, 0.02),
        f"{peak} (MiB)": (size, "MiB", 0.01, 0),
    }


@dataclass(frozen=True)
class _Launches:
    """All launches of one kernel in a call."""

    number: float
    microseconds: float

    def __str__(self) -> str:
        return f"{count(self.number)} {TIMES} {significant(self.microseconds / self.number)} µs"


def _kernels(record: Record) -> dict[str, _Launches]:
    kernels: dict[str, _Launches] = {}
    for kernel in record.trace_analysis.kernels if record.trace_analysis is not None else ():
        if kernel.count:
            same = kernels.get(kernel.name, _Launches(0, 0))  # names that were shortened may be equal
            kernels[kernel.name] = _Launches(same.number + kernel.count, same.microseconds + 1e3 * kernel.ms)
    return kernels


def _changed_kernels(before: Mapping[str, _Launches], after: Mapping[str, _Launches]) -> list[Difference]:
    """Return the kernels that differ, those with the largest change of time first; none if a run recorded none."""
    if not before or not after:
        return []
    total = max(sum(kernel.microseconds for kernel in kernels.values()) for kernels in (before, after))
    changes: list[tuple[float, Difference]] = []
    for name in dict.fromkeys((*before, *after)):
        one, two = before.get(name), after.get(name)
        times = [kernel.microseconds if kernel else 0.0 for kernel in (one, two)]
        change = abs(times[0] - times[1])
        longer = change > _KERNEL_CHANGE * max(times) and change > _KERNEL_SHARE * total
        if one is None or two is None or one.number != two.number or longer:
            label = f"{_where(one, two)}: {printable(name, _LONGEST_NAME)}"
            changes.append((change, Difference(f"kernel {label}", _text(one), _text(two))))
    return [difference for _, difference in sorted(changes, key=lambda item: -item[0])]


def _changed_code(one: Record, two: Record) -> list[Difference]:
    """Compare generated kernels by name and by file: inductor names a file after a hash of its content."""
    before, after = _generated_files(one), _generated_files(two)
    if not before or not after:
        return []
    return [
        Difference(
            f"code {_where(before.get(row.name), after.get(row.name))}: {printable(row.name, _LONGEST_NAME)}",
            printable(row.a, _LONGEST_FILE),
            printable(row.b, _LONGEST_FILE),
        )
        for row in _changed(before, after)
    ]


def _generated_files(record: Record) -> dict[str, str]:
    """Return the files of each generated kernel; those of whole graphs contain paths, and differ in every run."""
    files: dict[str, set[str]] = {}
    for kernel in record.kernels or ():
        if kernel.kind != "graph":
            files.setdefault(kernel.name, set()).add(PurePosixPath(kernel.file).name)
    return {name: ", ".join(sorted(names)) for name, names in files.items()}


def _where(one: object, two: object) -> str:
    return "changed" if one and two else "only in A" if one else "only in B"
