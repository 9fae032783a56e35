"""What lies in what: spans and operators of one row of a trace nest or follow one another, so a stack walks them."""

from __future__ import annotations

import gzip
import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from operator import attrgetter
from pathlib import Path
from typing import Any

#: Chrome-trace categories of work on the device; spans drawn on its rows are not among them.
WORK = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
#: Categories of calls into the CUDA runtime and driver.
RUNTIME = frozenset({"cuda_runtime", "cuda_driver"})
#: What crosses the bus, as CUPTI names it: "Memcpy DtoH (Device -> Pageable)".
CROSSES = re.compile(r"Memcpy (HtoD|DtoH)")
#: Calls in which the host waits for the device.
WAITS = re.compile(r"(cuda|cu)(Stream|Event|Device|Ctx)Synchronize|cudaFree(Host)?$|(cuda|cu)Memcpy$")
_EVENTS = re.compile(r'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(r"[\s,]*")


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a trace file, gzipped or not, in the order of the file; times are microseconds.

    Raises:
        ValueError: the file is no Chrome trace, or was cut off.

    """
    text = _text(path)
    found = _EVENTS.search(text)
    if found is None:
        raise ValueError(f"{path} is no Chrome trace: it has no traceEvents. Trace the cell again (trace=true).")
    decoder, at = json.JSONDecoder(), found.end()
    while True:
        between = _BETWEEN.match(text, at)
        at = at if between is None else between.end()
        if text.startswith("]", at):
            return
        try:
            event, at = decoder.raw_decode(text, at)
        except ValueError:
            raise ValueError(f"{path} ends within an event. Trace the cell again (trace=true).") from None
        yield event


def _text(path: Path) -> str:
    raw = path.read_bytes()
    return (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8", errors="replace")


#: What this harness writes around a submodule and around a line of code in passes of its own.
MODULE, LINE = "module: ", "line: "
#: What inductor writes around a graph of its own, in which Python stands at no line of the network's.
_GRAPH = "## Call CompiledFxGraph"
_TRACED_CALL = re.compile(r"[^/]+/[^/]+/trace/\d+")


@dataclass(frozen=True, slots=True)
class Stretch:
    """Something with a name on a row of the trace: `begin` and `end` in microseconds, `row` is (process, thread)."""

    name: str
    begin: float
    end: float
    row: tuple[Any, Any]


@dataclass(frozen=True, slots=True)
class Work:
    """A kernel, copy or fill on the device; times in microseconds.

    `kind` is its category in the trace, `correlation` that of the call which handed it over (all nodes of a replayed
    graph share one), `operator` the id of the innermost operator that ran then, `bytes` what a copy or fill moved,
    `stream` the row of the device that it ran on.
    """

    name: str
    kind: str
    begin: float
    end: float
    correlation: int | None
    operator: int | None
    bytes: int | None
    stream: Any = None

    @property
    def length(self) -> float:
        """Microseconds on the device."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class HostCall(Stretch):
    """A call of the CUDA runtime or driver."""

    correlation: int | None


@dataclass(frozen=True, slots=True)
class Operator(Stretch):
    """An operator on the host, with the shapes that `record_shapes` kept; `id` links work to it."""

    id: int | None
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Timeline:
    """A trace, every row sorted by begin. `calls` are the traced calls of the step.

    Among `lines` are the calls of compiled graphs too: what runs in one has no line.
    """

    calls: tuple[Stretch, ...]
    work: tuple[Work, ...]
    host: tuple[HostCall, ...]
    operators: tuple[Operator, ...]
    modules: tuple[Stretch, ...]
    lines: tuple[Stretch, ...]


@dataclass(frozen=True)
class TracedCall:
    """One traced call: its span on the host, the work that it handed over, by begin, and its calls into CUDA."""

    span: Stretch
    work: tuple[Work, ...]
    host: tuple[HostCall, ...]


def timeline(events: Iterable[Mapping[str, Any]]) -> Timeline:
    """Sort the events of a trace by what they are; those without a length, or with an impossible one, say nothing."""
    spans, work, host, operators = [], [], [], []
    for event in events:
        length = event.get("dur")
        if not isinstance(length, int | float) or not 0 <= length < inf:
            continue
        kind = event.get("cat")
        if kind in WORK:
            work.append(_work(event))
        elif kind in RUNTIME:
            host.append(HostCall(*_stretch(event), _whole((event.get("args") or {}).get("correlation"))))
        elif kind == "cpu_op":
            arguments = event.get("args") or {}
            operators.append(Operator(*_stretch(event), _whole(arguments.get("External id")), arguments))
        elif kind == "user_annotation":
            spans.append(Stretch(*_stretch(event)))
    by_begin = attrgetter("begin")
    spans.sort(key=lambda span: (span.begin, -span.end))
    return Timeline(
        calls=_outermost(span for span in spans if _TRACED_CALL.fullmatch(span.name)),
        work=tuple(sorted(work, key=by_begin)),
        host=tuple(sorted(host, key=by_begin)),
        operators=tuple(sorted(operators, key=lambda operator: (operator.begin, -operator.end))),
        modules=tuple(span for span in spans if span.name.startswith(MODULE)),
        lines=tuple(span for span in spans if span.name.startswith((LINE, _GRAPH))),
    )


def _outermost(spans: Iterable[Stretch]) -> tuple[Stretch, ...]:
    """Return those of `spans`, sorted by begin, that lie in no other one."""
    found: list[Stretch] = []
    for span in spans:
        if not found or span.begin >= found[-1].end:
            found.append(span)
    return tuple(found)


def traced_calls(trace: Timeline) -> tuple[TracedCall, ...]:
    """Return the traced calls that handed work to the device; work handed over outside of them is nobody's.

    Work whose launch the trace lost counts by its own begin, up to the next call.
    """
    starts = [call.begin for call in trace.calls]
    launches = launched_by(trace)
    work: list[list[Work]] = [[] for _ in starts]
    for item in trace.work:
        launch = launches.get(item.correlation)
        place = bisect_right(starts, item.begin if launch is None else launch.begin) - 1
        if place >= 0 and (launch is None or launch.begin <= trace.calls[place].end):
            work[place].append(item)
    host: list[list[HostCall]] = [[] for _ in starts]
    for call in trace.host:
        place = bisect_right(starts, call.begin) - 1
        if place >= 0 and call.begin <= trace.calls[place].end:
            host[place].append(call)
    found = zip(trace.calls, work, host, strict=True)
    return tuple(TracedCall(span, tuple(mine), tuple(asked)) for span, mine, asked in found if mine)


def launched_by(trace: Timeline) -> Mapping[int | None, HostCall]:
    """Return the call that handed work over, by correlation."""
    return {call.correlation: call for call in trace.host if call.correlation is not None}


def _stretch(event: Mapping[str, Any]) -> tuple[str, float, float, tuple[Any, Any]]:
    begin = float(event["ts"])
    return str(event.get("name")), begin, begin + float(event["dur"]), (event.get("pid"), event.get("tid"))


def _work(event: Mapping[str, Any]) -> Work:
    arguments = event.get("args") or {}
    name, begin, end, (_, stream) = _stretch(event)
    correlation, operator, size = (_whole(arguments.get(key)) for key in ("correlation", "External id", "bytes"))
    return Work(name, str(event["cat"]), begin, end, correlation, operator, size, stream)


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def innermost(spans: Sequence[Stretch], moments: Sequence[tuple[float, Any]]) -> list[Stretch | None]:
    """Return for each (moment, row) the innermost of nested `spans` on that row that holds it; both sorted by time.

    A span that begins and ends with another counts as inside it where it comes later in `spans`.
    """
    found: list[Stretch | None] = []
    open_spans: dict[Any, list[Stretch]] = {}
    place = 0
    for moment, row in moments:
        while place < len(spans) and spans[place].begin <= moment:
            _open(open_spans.setdefault(spans[place].row, []), spans[place])
            place += 1
        stack = open_spans.get(row, [])
        while stack and stack[-1].end < moment:
            stack.pop()
        found.append(stack[-1] if stack else None)
    return found


def _open(stack: list[Stretch], span: Stretch) -> None:
    while stack and stack[-1].end < span.begin:
        stack.pop()
    stack.append(span)


def parents_of(operators: Sequence[Operator]) -> Mapping[int | None, Operator]:
    """Return for each operator, by id, the one that called it; `operators` are sorted, those around first."""
    found: dict[int | None, Operator] = {}
    open_operators: dict[Any, list[Operator]] = {}
    for operator in operators:
        stack = open_operators.setdefault(operator.row, [])
        while stack and stack[-1].end < operator.begin:
            stack.pop()
        if stack:
            found[operator.id] = stack[-1]
        stack.append(operator)
    return found
