"""Inside a call: busy and idle time of the GPU, kernels with their hardware counters, submodules, waits and copies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec.structs import replace

from profiling.report.format import ABSENT, named_once
from profiling.report.page import Section
from profiling.report.run_data import RunData, cell_table
from profiling.report.table import Column, columns
from profiling.results.explanations import CountedKernel, HostWait, Kernel, ModuleTime, TraceAnalysis
from profiling.results.record import Record

#: Least rows of kernels and of submodules for a cell, and rows that all traced cells share if that is more.
_KERNELS, _MODULES, _ROWS = 12, 20, 150
#: Class of what a trace on a CPU lists.
_OPERATOR = "operator"
_PROFILED = "The profiler slows down the host, and replays by up to 10%: idle time is longer here than when timed."
_OF_CEILINGS = (
    "Of the bandwidth: share of the ceiling for the bytes of a launch, which a cache may hold. Of the FLOP "
    "ceiling: share of that of the operands' dtype. Why a kernel is far below both, because of L2 for example, no "
    "trace shows: counters=true measures it."
)
_OPERATORS = (
    "On a CPU: operators, with their self time and its share of the call under the profiler. The self time of a "
    "compiled region is that of the code that the compiler generated."
)
_NEARLY_ALL = 0.9  # of a kernel's time
_MEANING = (
    "Measured by ncu (Nsight Compute), in shares of the peak of the device. Bound by counters: what reaches 60% of its "
    "peak; L2 alone where the kernel reads the same data several times, or little of each sector that it fetches. "
    "Bound by trace: 70% of a measured ceiling, for the bytes and FLOPs of its operators. Neither: it is short, waits, "
    "or is busy with other instructions."
)
_SELF = "Self: without submodules. *: sum over indexed submodules of the same structure, their number in brackets."


def trace_section(data: RunData) -> Section:
    """Return the tables of all cells with a trace."""
    traces = [(record, record.trace_analysis) for record in data.records if record.trace_analysis is not None]
    seen = [record for record, trace in traces if trace.span_ms is not None]
    waits = [(record, each) for record, trace in traces for each in (*trace.waits, *trace.copies)]
    measured = [(record, each) for record in data.records if (each := record.hardware_counters) is not None]
    counted = [(record, kernel) for record, counters in measured for kernel in counters.kernels]
    on_cpu = [any(kernel.kind == _OPERATOR for kernel in trace.kernels) for _, trace in traces]
    kernel_notes = (*([_OPERATORS] if any(on_cpu) else []), *([] if all(on_cpu) else [_OF_CEILINGS]))
    sources = named_once((record.name, trace.modules_from) for record, trace in traces if trace.modules_from)
    module_notes = (_SELF, *(f"Submodules: {how} ({', '.join(names)})" for how, names in sources.items()))
    tables = (
        cell_table("GPU time of a call, busy and idle", _BUSY, seen, (_PROFILED,)),
        cell_table("Kernels by total time", _kernel_columns(data), list(_kernels(traces)), kernel_notes, 3),
        cell_table("Hardware counters of the longest kernels", _COUNTED, counted, [_MEANING], 3),
        cell_table("Time by submodule", _MODULE, list(_modules(traces)), module_notes, 3),
        cell_table("Waits of the host, and copies between host and device", _WAITS, waits),
    )
    return Section("trace", "Inside a call", tables=tables, depth="report")


def folded(paths: Iterable[str]) -> dict[str, str]:
    """Return each path with `*` for an index (`layers.*.mlp`), where all its modules have the same submodules.

    Layers of an `nn.Sequential` that have no submodules may be of different types, and keep their indices.
    """
    parts = {path: path.split(".") for path in paths}
    below: dict[tuple[str, ...], dict[str, set[str]]] = {}
    for names in parts.values():
        for place, name in enumerate(names):
            if name.isdecimal():
                numbered = below.setdefault(tuple(names[:place]), {})
                numbered.setdefault(name, set()).add(".".join(names[place + 1 :]))
    groups = {prefix: list(numbered.values()) for prefix, numbered in below.items() if len(numbered) > 1}
    alike = {
        prefix for prefix, (first, *rest) in groups.items() if first != {""} and all(each == first for each in rest)
    }
    return {
        path: ".".join("*" if n.isdecimal() and tuple(names[:i]) in alike else n for i, n in enumerate(names))
        for path, names in parts.items()
    }


def _kernels(traces: Sequence[tuple[Record, TraceAnalysis]]) -> Iterator[tuple[Record, Kernel]]:
    """Yield the longest kernels of each cell, and the sum of its others."""
    most = max(_KERNELS, _ROWS // max(1, len(traces)))
    for record, trace in traces:
        kernels = sorted(trace.kernels, key=lambda kernel: -kernel.ms)
        yield from ((record, kernel) for kernel in kernels[:most])
        if rest := kernels[most:]:
            count, ms, share = (_added(rest, name) for name in ("count", "ms", "share"))
            yield record, Kernel(name=f"and {len(rest)} more", kind=ABSENT, count=count, ms=ms or 0.0, share=share)


def _added(items: Iterable[Kernel | ModuleTime], name: str) -> float | None:
    known = [value for item in items if (value := getattr(item, name)) is not None]
    return sum(known) if known else None


def _modules(traces: Sequence[tuple[Record, TraceAnalysis]]) -> Iterator[tuple[Record, ModuleTime]]:
    """Yield the longest submodules of each cell in the order of the tree, those that are built alike as one.

    Then the sum of its others, and what belongs to no submodule for certain.
    """
    most = max(_MODULES, _ROWS // max(1, len(traces)))
    for record, trace in traces:
        groups: dict[str, list[ModuleTime]] = {}
        names = folded(module.path for module in trace.modules)
        for module in trace.modules:
            groups.setdefault(names[module.path], []).append(module)
        kept = set(sorted(groups, key=lambda path: -(_added(groups[path], "ms") or 0.0))[:most])
        for path, group in groups.items():
            if path in kept:
                count, ms, share, own = (_added(group, name) for name in ("count", "ms", "share", "self_ms"))
                name = path or "(the whole component)"
                alike = f" ({len(group)})" if len(group) > 1 else ""
                yield record, ModuleTime(path=f"{name}{alike}", count=count, ms=ms or 0.0, share=share, self_ms=own)
        rest = [module for path, group in groups.items() if path not in kept for module in group]
        own = sum(module.self_ms or 0.0 for module in rest)
        if rest:
            yield record, ModuleTime(path=f"and {len(groups) - len(kept)} more", ms=own, self_ms=own)
        if unattributed_ms := trace.unattributed_ms:
            yield record, ModuleTime(path="not attributable", ms=unattributed_ms, self_ms=unattributed_ms)


def traffic(record: Record, kernel: CountedKernel, moved: float | None) -> float | None:
    """Return the bytes `moved` by DRAM or L2 in a launch over the kernel's mean bytes by trace; None if not known.

    The trace's bytes are of all launches, so they compare with those that counters saw where these cover nearly all.
    """
    named = () if record.trace_analysis is None else record.trace_analysis.kernels
    same = [each for each in named if each.name == kernel.name]
    known = len(same) == 1 and (kernel.covered or 0.0) >= _NEARLY_ALL
    own = same[0].gbps * same[0].mean_us * 1e3 if known and same[0].gbps and same[0].mean_us else None
    return moved / own if own and moved is not None else None


_BUSY = columns(Record, "count", "span_ms", "busy_ms", "idle.host_ms", "idle.between_ms", at="trace_analysis")
_COUNTED = (
    *columns(CountedKernel, "name", "ms", "share", "mean_us", "counted_us", "dram", "l2"),
    Column[tuple[Record, CountedKernel]]("L2 over bytes by trace", lambda row: traffic(*row, row[1].l2_bytes), "ratio"),
    *columns(CountedKernel, "tensor", "fma", "sm", "occupancy", "bound_by_counters", "bound_by_trace"),
)
_MODULE = columns(ModuleTime, "path", "count", "ms", "share", "self_ms")
_WAITS = columns(HostWait, "what", "line", "code", "count", "ms", "bytes")


def _kernel_columns(data: RunData) -> tuple[Column[tuple[Record, Kernel]], ...]:
    """Return the columns of kernels, against the ceilings of the dtype of their operands, or else of the run."""
    ceilings = data.environment.ceilings

    def of_ceiling(place: int) -> Callable[[tuple[Record, Kernel]], float | None]:
        def read(row: tuple[Record, Kernel]) -> float | None:
            record, kernel = row
            typed = kernel if kernel.dtype is not None else replace(kernel, dtype=record.dtype)
            return None if ceilings is None else ceilings.shares(typed)[place] or None

        return read

    return (
        *columns(Kernel, "name", "kind", "count", "mean_us", "ms", "share", "gbps"),
        Column("of the bandwidth", of_ceiling(0), "percent"),
        *columns(Kernel, "tflops"),
        Column("of the FLOP ceiling", of_ceiling(1), "percent"),
    )
