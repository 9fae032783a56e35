"""Measures hardware counters of a cell's longest kernels with ncu, after the cell was timed and traced.

ncu launches each kernel several times and saves memory in between, so it runs in a process of its own, which loads and
prepares the cell once more. What fails becomes a line for the record: the cell keeps what it measured.
"""

from __future__ import annotations

import subprocess
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from profiling.results.environment import Ceilings, read_environment
from profiling.results.explanations import CountedKernel, HardwareCounters, Kernel, TraceAnalysis, TraceFiles
from profiling.results.record import decode_section
from profiling.roofline.rules import bound_by_counters, bound_by_trace
from profiling.run.child import started
from profiling.run.session import NotMeasuredError, worker_command
from profiling.run.task import Counters, write_task
from profiling.trace import nsight_compute
from profiling.trace.events import GpuWork, TracedCall, read_events, timeline, traced_calls
from profiling.trace.nsight_compute import Launch, demangled, function_of

#: Most kernels of a cell that are measured, and the least share of all kernel time (0 to 1) of each.
MOST_KERNELS, LEAST_SHARE = 10, 0.01
#: Launches that are measured of each kernel with each grid and block, and the most of a cell in all: about 0.3 s each.
LAUNCHES, MOST_LAUNCHES = 2, 200
#: Share of the time of the chosen kernels (0 to 1) that the measured launches must represent; more would cost too much.
ENOUGH = 0.95
#: Least share of a kernel's time with measured launches for which these say what bounds it.
_KNOWN = 0.5
#: Timeout of ncu with the process that it measures, in seconds.
COUNTER_SECONDS = 300.0
#: Copies and fills by the driver, which are no kernels.
_NO_KERNELS = ("Memcpy", "Memset")
_NAME_LENGTH = 200  # of kernels in a record
_metrics_on = cache(nsight_compute.metrics_on)  # ncu takes seconds for the answer


class Group(NamedTuple):
    """The launches of a kernel with one grid and block."""

    name: str
    grid: tuple[int, ...] | None
    block: tuple[int, ...] | None


def measure_counters(
    run: Path, task: Counters, sections: Mapping[str, Any], environment: Mapping[str, str]
) -> HardwareCounters:
    """Return the section for a cell of the run in the folder `run`; `sections` are those that the cell has sent.

    Raises:
        NotMeasuredError: nothing was measured.
        OSError: a file cannot be read or written, or ncu not started.
        ValueError: ncu printed what cannot be read.

    """
    job = task.job
    analysis: TraceAnalysis | None = decode_section("trace_analysis", sections.get("trace_analysis"))
    kernels = () if analysis is None else longest(analysis.kernels)
    if not kernels:
        raise NotMeasuredError("no trace names the kernels")
    ncu = nsight_compute.available()
    if ncu is None:
        raise NotMeasuredError("ncu is no longer on the PATH")
    began, output = perf_counter(), run / "counters" / f"{job.name}.csv"
    output.parent.mkdir(exist_ok=True)
    output.unlink(missing_ok=True)
    metrics = _metrics_on(ncu)
    files: TraceFiles | None = decode_section("trace", sections.get("trace"))
    calls = () if files is None else traced_calls(timeline(read_events(run / files.trace)))
    file = run / "cells" / f"{job.name}.counters.json"
    functions, count = _wanted(kernels, calls)
    command = nsight_compute.command(ncu, metrics, functions, count, output, worker_command(file))
    write_task(task, file)
    killed = _killed(command, file, environment)
    text = output.read_text(errors="replace") if output.is_file() else ""
    launches = nsight_compute.read_launches(text, metrics)
    if not launches:
        hung = f"ncu was killed after {COUNTER_SECONDS:.0f} s"
        unknown = f"ncu printed no rows; see cells/{job.name}.counters.log"
        raise NotMeasuredError(hung if killed else nsight_compute.failure_in(text) or unknown)
    if not any(launch.has_counters for launch in launches):
        raise NotMeasuredError(f"ncu printed none of the metrics that it was asked for; see counters/{output.name}")
    ceilings = read_environment(run).ceilings
    times = _times(calls)
    groups = grouped(launches, times or [Group(kernel.name, None, None) for kernel in kernels])
    passes = [launch.passes for launch in launches if launch.passes is not None]
    return HardwareCounters(
        file=output.relative_to(run).as_posix(),
        kernels=tuple(counted(kernel, groups, times, ceilings) for kernel in kernels),
        seconds=perf_counter() - began,
        passes=sum(passes) / len(passes) if passes else None,
    )


def _wanted(kernels: Sequence[Kernel], calls: Sequence[TracedCall]) -> tuple[tuple[str, ...], int]:
    """Return the functions of the kernels, and how many launches of each, with each grid and block, to measure."""
    names = {kernel.name for kernel in kernels}
    work = [each for call in calls[-1:] for each in call.work]
    full = [each.name for each in work if each.name[:_NAME_LENGTH] in names]
    functions = tuple(dict.fromkeys(function_of(name) for name in (*full, *sorted(names))))
    return functions, launches_to_measure(work, names, functions)


def _killed(command: Sequence[str], task_file: Path, environment: Mapping[str, str]) -> bool:
    """Run ncu with the process that performs the task; return whether it was killed at the timeout."""
    try:
        with task_file.with_suffix(".log").open("wb") as log, started(command, log, env=environment) as process:
            process.wait(COUNTER_SECONDS)
        return False
    except subprocess.TimeoutExpired:
        return True
    finally:
        task_file.unlink(missing_ok=True)


def _times(calls: Sequence[TracedCall]) -> dict[Group, tuple[float, int]]:
    """Return {group: (microseconds, launches)} of the traced calls: the weights of measured launches."""
    lengths = defaultdict[Group, list[float]](list)
    for call in calls:
        for work in call.work:
            lengths[Group(work.name, work.grid, work.block)].append(work.length)
    return {group: (sum(each), len(each)) for group, each in lengths.items()}


def launches_to_measure(work: Sequence[GpuWork], names: Collection[str], functions: Collection[str]) -> int:
    """Return how many launches of each function, grid and block ncu must measure of a traced call's `work`.

    ncu counts launches by function, and other kernels of that function may come first (`elementwise_kernel`). The
    result is large enough to measure each kernel of `names`, with each grid and block, LAUNCHES times or as often as
    the call launches it, leaving out those that together take less than 1 - ENOUGH of the time. It is limited to
    MOST_LAUNCHES.
    """
    shapes: Counter[Group] = Counter()  # launches of each function, grid and block
    needs: dict[Group, tuple[int, float]] = {}  # launches of the shape until the last one to measure, time of the group
    counts: Counter[Group] = Counter()
    for each in work:
        if each.kind == "kernel" and (function := function_of(each.name)) in functions:
            shape = Group(function, each.grid, each.block)
            shapes[shape] += 1
            group = Group(each.name, each.grid, each.block)
            counts[group] += 1
            if each.name[:_NAME_LENGTH] in names:
                need, spent = needs.get(group, (0, 0.0))
                needs[group] = shapes[shape] if counts[group] <= LAUNCHES else need, spent + each.length
    whole, met, needed = sum(spent for _, spent in needs.values()), 0.0, 1
    for need, spent in sorted(needs.values()):
        if met >= ENOUGH * whole:
            break
        met, needed = met + spent, need
    while needed > 1 and sum(min(needed, launched) for launched in shapes.values()) > MOST_LAUNCHES:
        needed -= 1
    return needed


def grouped(launches: Sequence[Launch], traced: Collection[Group]) -> dict[Group, list[Launch]]:
    """Return the launches by their group of the trace; those of kernels that it does not have are left out.

    A launch with a grid or block that the trace does not have is a group of its own.
    """
    names = {demangled(group.name): group.name for group in traced}
    groups: dict[Group, list[Launch]] = {}
    for launch in launches:
        name = names.get(launch.name, names.get(launch.name[:_NAME_LENGTH]))
        if name is not None:
            groups.setdefault(Group(name, launch.grid, launch.block), []).append(launch)
    return groups


def longest(kernels: Sequence[Kernel]) -> tuple[Kernel, ...]:
    """Return the kernels that are worth measuring, of those of a trace, the longest first."""
    worth = (each for each in kernels if not each.name.startswith(_NO_KERNELS) and (each.share or 0.0) >= LEAST_SHARE)
    return tuple(worth)[:MOST_KERNELS]


def counted(
    kernel: Kernel,
    launches: Mapping[Group, Sequence[Launch]],
    times: Mapping[Group, tuple[float, int]],
    ceilings: Ceilings | None,
) -> CountedKernel:
    """Return the counters of a kernel; `times` are the microseconds and launches of each group in the trace.

    Groups whose launches were not measured are left out of all but the rates by trace, which no record has by group.
    """
    of_trace = [spent for group, spent in times.items() if group.name[:_NAME_LENGTH] == kernel.name]
    whole = sum(microseconds for microseconds, _ in of_trace)
    met = [
        (times.get(group, (0.0, 0)), measured)
        for group, measured in launches.items()
        if group.name[:_NAME_LENGTH] == kernel.name
    ]
    traced = sum(count for (_, count), _ in met)
    spent = sum(us for (us, _), _ in met)
    if traced:
        by_time = [(us / len(measured), each) for (us, _), measured in met for each in measured]
        by_number = [(count / len(measured), each) for (_, count), measured in met for each in measured]
    else:  # the grid of no measured launch is in the trace
        by_time = [(each.seconds or 1.0, each) for _, measured in met for each in measured]
        by_number = [(1.0, each) for _, measured in met for each in measured]
    rates = {name: _mean(by_time, name) for name in ("dram", "l2", "tensor", "fma")}
    seconds = _mean(by_number, "seconds")
    covered = spent / whole if whole and met else None
    return CountedKernel(
        name=kernel.name,
        ms=kernel.ms,
        share=kernel.share,
        launches=len(by_time),
        covered=covered,
        counted_us=None if seconds is None else 1e6 * seconds,
        mean_us=spent / traced if traced else None,
        dram_bytes=_mean(by_number, "dram_bytes"),
        l2_bytes=_mean(by_number, "l2_bytes"),
        sm=_mean(by_time, "sm"),
        occupancy=_mean(by_time, "occupancy"),
        bound_by_counters=None if covered is not None and covered < _KNOWN else bound_by_counters(**rates),
        bound_by_trace=bound_by_trace(kernel, ceilings),
        **rates,
    )


def _mean(weighted: Sequence[tuple[float, Launch]], name: str) -> float | None:
    known = [(weight, value) for weight, each in weighted if (value := getattr(each, name)) is not None]
    total = sum(weight for weight, _ in known)
    return sum(weight * value for weight, value in known) / total if total else None
