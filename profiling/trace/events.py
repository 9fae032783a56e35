"""Reads a Chrome trace of the torch profiler into typed events and finds how they nest; times are in microseconds."""

from __future__ import annotations

import gzip
import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, nan, prod
from operator import attrgetter
from pathlib import Path
from typing import Any

#: Categories of work on the GPU: kernels, copies, fills.
GPU_WORK = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
#: Categories of calls into the CUDA runtime and driver.
CUDA_CALLS = frozenset({"cuda_runtime", "cuda_driver"})
#: Copies between host and device, as CUPTI names them: "Memcpy DtoH (Device -> Pageable)".
TRANSFERS = re.compile(r"Memcpy (HtoD|DtoH)")
#: Calls in which the host waits for the GPU.
WAITS = re.compile(r"(cuda|cu)(Stream|Event|Device|Ctx)Synchronize|cudaFree(Host)?$|(cuda|cu)Memcpy$")
#: Prefixes of the spans around a submodule and around what a line of code calls; only `TracePasses` opens such spans.
MODULE, LINE = "module: ", "line: "
_TRACED_CALL = re.compile(r"[^/]+/[^/]+/trace/\d+")


def read_events(path: Path) -> list[dict[str, Any]]:
    """Return the events of a trace file, gzipped or not, in the order of the file.

    Raises:
        ValueError: the file is no Chrome trace, or is cut off.

    """
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8", errors="replace")
    try:
        return json.loads(text)["traceEvents"]
    except (ValueError, KeyError) as error:
        raise ValueError(f"{path} is no whole Chrome trace ({error}). Trace the cell again (trace=true).") from error


@dataclass(frozen=True, slots=True)
class Span:
    """A named interval on a row of the trace; `row` is (process, thread)."""

    name: str
    begin: float
    end: float
    row: tuple[Any, Any]


@dataclass(frozen=True, slots=True)
class HostCall(Span):
    """A call of the CUDA runtime or driver."""

    correlation: int | None


@dataclass(frozen=True, slots=True)
class Operator(Span):
    """An operator on the host. `id` links GPU work to it; `arguments` hold its shapes where they were recorded."""

    id: int | None
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class GpuWork:
    """A kernel, copy or fill.

    `kind` is its category in the trace. `launch` is the CUDA call that launched it, None where the trace lacks it, and
    `correlation` the id that they share; all nodes of a replayed graph have the same one. `operator` is the id of the
    innermost operator at its launch, `bytes` the size of a copy or fill, `grid` the thread blocks and `block` the
    threads of a block along x, y and z, `occupancy` CUPTI's estimate (0 to 1). `node` is the id of a replayed graph's
    node, which rises in the order of the capture; torch 2.11 does not record it.
    """

    name: str
    kind: str
    begin: float
    end: float
    correlation: int | None
    operator: int | None
    bytes: int | None
    stream: Any = None
    grid: tuple[int, ...] | None = None
    block: tuple[int, ...] | None = None
    occupancy: float | None = None
    node: int | None = None
    launch: HostCall | None = field(default=None, compare=False)

    @property
    def launched(self) -> float:
        """The moment of its launch, or of its begin where the trace lacks the launch."""
        return self.begin if self.launch is None else self.launch.begin

    @property
    def length(self) -> float:
        """The duration on the GPU in microseconds."""
        return self.end - self.begin

    @property
    def blocks(self) -> int | None:
        """The number of thread blocks."""
        return None if self.grid is None else prod(self.grid)


@dataclass(frozen=True)
class Timeline:
    """The events of a trace, each kind sorted by begin; `calls` are the spans of the traced calls."""

    calls: tuple[Span, ...]
    work: tuple[GpuWork, ...]
    host: tuple[HostCall, ...]
    operators: tuple[Operator, ...]
    modules: tuple[Span, ...]
    lines: tuple[Span, ...]


@dataclass(frozen=True)
class TracedCall:
    """A traced call: its span on the host, the GPU work that it launched, and its calls into CUDA."""

    span: Span
    work: tuple[GpuWork, ...]
    host: tuple[HostCall, ...]


def timeline(events: Iterable[Mapping[str, Any]]) -> Timeline:
    """Return the events sorted into a `Timeline`; an event without a valid duration is ignored."""
    spans, gpu, host, operators = [], [], [], []
    for event in events:
        if not 0 <= event.get("dur", nan) < inf:
            continue
        category, arguments = event.get("cat"), event.get("args") or {}
        if category in GPU_WORK:
            gpu.append(event)
        elif category in CUDA_CALLS:
            host.append(HostCall(*_span(event), arguments.get("correlation")))
        elif category == "cpu_op":
            operators.append(Operator(*_span(event), arguments.get("External id"), arguments))
        elif category == "user_annotation":
            spans.append(Span(*_span(event)))
    by_begin = attrgetter("begin")
    launches: dict[int | None, HostCall] = {call.correlation: call for call in host if call.correlation is not None}
    spans.sort(key=lambda span: (span.begin, -span.end))
    return Timeline(
        calls=tuple(span for span in spans if _TRACED_CALL.fullmatch(span.name)),
        work=tuple(sorted((_gpu_work(event, launches) for event in gpu), key=by_begin)),
        host=tuple(sorted(host, key=by_begin)),
        operators=tuple(sorted(operators, key=lambda operator: (operator.begin, -operator.end))),
        modules=tuple(span for span in spans if span.name.startswith(MODULE)),
        lines=tuple(span for span in spans if span.name.startswith(LINE)),
    )


def _span(event: Mapping[str, Any]) -> tuple[str, float, float, tuple[Any, Any]]:
    begin = float(event["ts"])
    return str(event.get("name")), begin, begin + float(event["dur"]), (event.get("pid"), event.get("tid"))


def _gpu_work(event: Mapping[str, Any], launches: Mapping[int | None, HostCall]) -> GpuWork:
    name, begin, end, (_, stream) = _span(event)
    arguments = event.get("args") or {}
    grid, block = (None if (sizes := arguments.get(key)) is None else tuple(sizes) for key in ("grid", "block"))
    return GpuWork(
        *(name, str(event["cat"]), begin, end),
        correlation=arguments.get("correlation"),
        operator=arguments.get("External id"),
        bytes=arguments.get("bytes"),
        stream=stream,
        grid=grid,
        block=block,
        # The profiler writes 0 where it cannot estimate it, as for kernels with much dynamic shared memory.
        occupancy=(arguments.get("est. achieved occupancy %") or 0) / 100 or None,
        node=arguments.get("graph node id") or None,  # 0 outside of a graph
        launch=launches.get(arguments.get("correlation")),
    )


def traced_calls(trace: Timeline) -> tuple[TracedCall, ...]:
    """Return the traced calls that launched GPU work; work that was launched outside of them is ignored.

    Work whose launch is missing in the trace belongs to the last call that began before it.
    """
    starts = [call.begin for call in trace.calls]
    work: list[list[GpuWork]] = [[] for _ in starts]
    host: list[list[HostCall]] = [[] for _ in starts]
    for item in trace.work:
        index = bisect_right(starts, item.launched) - 1
        if index >= 0 and (item.launch is None or item.launched <= trace.calls[index].end):
            work[index].append(item)
    for call in trace.host:
        index = bisect_right(starts, call.begin) - 1
        if index >= 0 and call.begin <= trace.calls[index].end:
            host[index].append(call)
    calls = zip(trace.calls, work, host, strict=True)
    return tuple(TracedCall(span, tuple(items), tuple(cuda)) for span, items, cuda in calls if items)


def innermost(spans: Sequence[Span], moments: Sequence[tuple[float, Any]]) -> list[Span | None]:
    """Return for each (moment, row) the innermost of `spans` on that row that contains it.

    `spans` are sorted by begin. Of two with equal begin and end, the later one is the inner one. A span may outlast
    the one in which it begins: that of a line begins inside the operator that opens it.
    """
    result: list[Span | None] = [None] * len(moments)
    open_spans: dict[Any, list[Span]] = {}
    index = 0
    for place in sorted(range(len(moments)), key=lambda place: moments[place][0]):
        moment, row = moments[place]
        while index < len(spans) and spans[index].begin <= moment:
            stack = open_spans.setdefault(spans[index].row, [])
            while stack and stack[-1].end < spans[index].begin:
                stack.pop()
            stack.append(spans[index])
            index += 1
        stack = open_spans.get(row, [])
        while stack and stack[-1].end < moment:
            stack.pop()
        result[place] = stack[-1] if stack else None
    return result


def nested(spans: Iterable[Span]) -> Iterator[tuple[int | None, float]]:
    """Yield for each span (the place of the span around it, its end); `spans` are sorted by begin, outer ones first.

    A span that begins when another ends is beside it, spans of different rows are never inside each other, and one that
    outlasts the span around it ends with that.
    """
    open_spans: dict[Any, list[tuple[int, float]]] = {}
    for place, span in enumerate(spans):
        around = open_spans.setdefault(span.row, [])
        while around and around[-1][1] <= span.begin:
            around.pop()
        outer, end = around[-1] if around else (None, span.end)
        around.append((place, min(span.end, end)))
        yield outer, around[-1][1]
