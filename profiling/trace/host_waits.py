"""Waits of the host for the GPU and copies between them, with the line of user code that caused each."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from profiling.components.user_code import code_at, is_user_code, short_path
from profiling.results.record import HostWait
from profiling.trace.attribution import aligned
from profiling.trace.events import (
    LINE,
    TRANSFERS,
    WAITS,
    Timeline,
    TracedCall,
    innermost,
    launches_by_correlation,
    traced_calls,
)

_DIRECTION = re.compile(r"Memcpy \w+ \((\w+) -> (\w+)\)")


@contextmanager
def line_spans() -> Iterator[None]:
    """Open a span `line: FILE:NUMBER` around each line of user code that this thread runs in the block.

    Python allows one tracing function a thread: a debugger's is restored at the end.
    """
    tracer, before = _LineTracer(), sys.gettrace()
    sys.settrace(_never_compiled(tracer.on_call))
    try:
        yield
    finally:
        sys.settrace(before)
        tracer.close()


class _LineTracer:
    """Tracing functions for `sys.settrace`, and the spans that they have opened."""

    def __init__(self) -> None:
        self._on_line_of_user = _never_compiled(self._on_line)
        self._open: list[tuple[FrameType, Any]] = []
        self._is_user: dict[str, bool] = {}

    def on_call(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Return the tracing function for the lines of a frame; None if its code is not the user's."""
        file = frame.f_code.co_filename
        if file not in self._is_user:
            self._is_user[file] = is_user_code(file)
        return self._on_line_of_user if self._is_user[file] else None

    def close(self) -> None:
        """Close the spans that an exception left open."""
        while self._open:
            self._open.pop()[1].__exit__(None, None, None)

    def _on_line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event in ("line", "return"):
            while any(each is frame for each, _ in self._open):  # with the spans of callees that raised
                self._open.pop()[1].__exit__(None, None, None)
        if event == "line":
            span = torch.profiler.record_function(f"{LINE}{frame.f_code.co_filename}:{frame.f_lineno}")
            span.__enter__()
            self._open.append((frame, span))
        return self._on_line_of_user


def _never_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` disabled for Dynamo, which would compile it where it interrupts compiled code."""
    return torch.compiler.disable(function) if "torch._dynamo" in sys.modules else function


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait of the host for the GPU, or a copy between them.

    `ms` is the duration: of a wait on the host, of a copy on the GPU. `host_ms` is the time that the host spent in the
    call that started a copy, which blocks for pageable memory. `begin` (µs) and `row` are those of the call.
    """

    what: str
    ms: float
    begin: float
    row: Any
    bytes: int | None = None
    host_ms: float | None = None


def waits_and_copies(
    main: Timeline, lined: Timeline | None, root: Path, parts: int = 1
) -> tuple[tuple[HostWait, ...], tuple[HostWait, ...]]:
    """Return waits and copies by line, the longest first; times are those of `main`, per call or per part of a call.

    Lines come from `lined`, a trace of the same step with a span for each line of code, whose waits and copies are
    matched in order. Files under `root` are named relative to it. A wait or copy that no user code caused has no line.
    """
    calls = traced_calls(main)
    lined_calls = () if lined is None else traced_calls(lined)[-1:]
    results = []
    for select in (_waits, _copies):
        known = [] if lined is None or not lined_calls else select(lined_calls[0], lined)
        lines = [] if lined is None else _lines(known, lined)
        items = []
        for call in calls:
            waits = select(call, main)
            indices = aligned(tuple(each.what for each in waits), tuple(each.what for each in known))
            items += [(wait, None if at is None else lines[at]) for wait, at in zip(waits, indices, strict=True)]
        results.append(_by_line(items, len(calls) * parts, root))
    return results[0], results[1]


def _waits(call: TracedCall, trace: Timeline) -> list[Wait]:
    waits = (host for host in call.host if WAITS.match(host.name))
    return [Wait(host.name, (host.end - host.begin) / 1e3, host.begin, host.row) for host in waits]


def _copies(call: TracedCall, trace: Timeline) -> list[Wait]:
    launches, copies = launches_by_correlation(trace), []
    for work in call.work:
        if TRANSFERS.match(work.name):
            launch = launches.get(work.correlation)
            direction, ms = _direction(work.name), work.length / 1e3
            if launch is None:
                copies.append(Wait(direction, ms, work.begin, None, work.bytes))
            else:
                host_ms = (launch.end - launch.begin) / 1e3
                copies.append(Wait(direction, ms, launch.begin, launch.row, work.bytes, host_ms))
    return copies


def _direction(name: str) -> str:
    """Return 'device to pageable host' for 'Memcpy DtoH (Device -> Pageable)'."""
    match = _DIRECTION.match(name)
    if match is None:
        return name
    ends = (end.lower() if end == "Device" else f"{end.lower()} host" for end in match.groups())
    return " to ".join(ends)


def _lines(waits: Sequence[Wait], lined: Timeline) -> list[str | None]:
    """Return the FILE:NUMBER of each wait or copy; None where no line of user code caused it."""
    order = sorted(range(len(waits)), key=lambda index: waits[index].begin)
    spans = innermost(lined.lines, [(waits[index].begin, waits[index].row) for index in order])
    lines: list[str | None] = [None] * len(waits)
    for index, span in zip(order, spans, strict=True):
        if span is not None and span.name.startswith(LINE):  # not a compiled graph's span
            lines[index] = span.name.removeprefix(LINE)
    return lines


def _by_line(items: Sequence[tuple[Wait, str | None]], calls: int, root: Path) -> tuple[HostWait, ...]:
    groups: dict[tuple[str, str | None], list[Wait]] = {}
    for wait, line in items:
        groups.setdefault((wait.what, line), []).append(wait)
    rows = []
    for (what, line), waits in groups.items():

        def a_call(key: str, waits: Sequence[Wait] = waits) -> float | None:
            known = [getattr(each, key) for each in waits if getattr(each, key) is not None]
            return sum(known) / calls if known else None

        file, _, number = (line or "").rpartition(":")
        rows.append(
            HostWait(
                what=what,
                count=len(waits) / calls,
                ms=sum(each.ms for each in waits) / calls,
                bytes=a_call("bytes"),
                host_ms=a_call("host_ms"),
                line=None if line is None else f"{short_path(file, root)}:{number}",
                code=None if line is None else code_at(file, int(number)) or None,
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.ms))
