"""Waits of the host for the GPU and copies between them, with the line of user code that caused each."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from profiling.components.user_code import code_at, is_user_code, short_path
from profiling.results.explanations import HostWait
from profiling.trace.attribution import in_exact_order
from profiling.trace.events import LINE, TRANSFERS, WAITS, Timeline, TracedCall, innermost, traced_calls
from profiling.trace.modules import OperatorSpans

_DIRECTION = re.compile(r"Memcpy \w+ \((\w+) -> (\w+)\)")
#: Calls that wait without an operator; the first is missing without CUDA.
_WAITING = ((torch._C, "_cuda_synchronize"), (torch.cuda.Stream, "synchronize"), (torch.cuda.Event, "synchronize"))


@contextmanager
def line_spans() -> Iterator[None]:
    """Open a span `line: FILE:NUMBER` around each operator and each explicit wait of this thread in the block.

    The line is the innermost one of user code; there is none in a compiled graph, nor where the harness calls.
    """
    with ExitStack() as stack:
        for owner, name in _WAITING:
            if hasattr(owner, name):
                stack.enter_context(patch.object(owner, name, _with_line(getattr(owner, name))))
        stack.enter_context(OperatorSpans(lambda _: _running_line()))
        yield


def _with_line(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.profiler.record_function(_running_line()):
            return function(*args, **kwargs)

    return call


def _running_line() -> str:
    frame = sys._getframe(1)
    while frame is not None and "_inductor" not in frame.f_code.co_filename:
        if is_user_code(frame.f_code.co_filename):
            return f"{LINE}{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return LINE


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait of the host for the GPU, or a copy between them.

    `ms` is the duration: of a wait on the host, of a copy on the GPU. `begin` (µs) and `row` are those of the call.
    """

    what: str
    ms: float
    begin: float
    row: Any
    bytes: int | None = None


def waits_and_copies(
    main: Timeline, lined: Timeline | None, root: Path, parts: int = 1
) -> tuple[tuple[HostWait, ...], tuple[HostWait, ...]]:
    """Return waits and copies by line, the longest first; times are those of `main`, per call or per part of a call.

    Lines come from `lined`, a trace of the same step with spans by line, whose waits and copies come in the same order.
    Files under `root` are named relative to it. A wait or copy that no user code caused has no line.
    """
    calls = traced_calls(main)
    lined_calls = () if lined is None else traced_calls(lined)[-1:]
    results = []
    for select in (_waits, _copies):
        known = [wait for call in lined_calls for wait in select(call)]
        lines = [] if lined is None else _lines(known, lined)
        items = []
        for call in calls:
            waits = select(call)
            indices = in_exact_order([each.what for each in waits], [each.what for each in known])
            items += [(wait, None if at is None else lines[at]) for wait, at in zip(waits, indices, strict=True)]
        results.append(_by_line(items, len(calls) * parts, root))
    return results[0], results[1]


def _waits(call: TracedCall) -> list[Wait]:
    waits = (host for host in call.host if WAITS.match(host.name))
    return [Wait(host.name, (host.end - host.begin) / 1e3, host.begin, host.row) for host in waits]


def _copies(call: TracedCall) -> list[Wait]:
    copies = []
    for work in (each for each in call.work if TRANSFERS.match(each.name)):
        row = None if work.launch is None else work.launch.row
        copies.append(Wait(_direction(work.name), work.length / 1e3, work.launched, row, work.bytes))
    return copies


def _direction(name: str) -> str:
    """Return 'device to pageable host' for 'Memcpy DtoH (Device -> Pageable)'."""
    match = _DIRECTION.match(name)
    if match is None:
        return name
    ends = (end.lower() if end == "Device" else f"{end.lower()} host" for end in match.groups())
    return " to ".join(ends)


def _lines(waits: Sequence[Wait], lined: Timeline) -> list[str | None]:
    """Return the FILE:NUMBER of each wait or copy; None where no line of user code caused it.

    `torch.tensor` and an index that is a list copy before the operator that a dispatch mode sees: what an operator does
    outside of every span belongs to the next one.
    """
    moments = [(wait.begin, wait.row) for wait in waits]
    lines = innermost(lined.lines, moments)
    for place, operator in enumerate(innermost(lined.operators, moments)):
        begin, row = moments[place]
        if lines[place] is None and operator is not None:
            lines[place] = next((each for each in lined.lines if each.row == row and each.begin > begin), None)
    return [None if span is None else span.name.removeprefix(LINE) or None for span in lines]


def _by_line(items: Sequence[tuple[Wait, str | None]], calls: int, root: Path) -> tuple[HostWait, ...]:
    groups: dict[tuple[str, str | None], list[Wait]] = {}
    for wait, line in items:
        groups.setdefault((wait.what, line), []).append(wait)
    rows = []
    for (what, line), waits in groups.items():
        file, _, number = (line or "").rpartition(":")
        known = [each.bytes for each in waits if each.bytes is not None]
        rows.append(
            HostWait(
                what=what,
                count=len(waits) / calls,
                ms=sum(each.ms for each in waits) / calls,
                bytes=sum(known) / calls if known else None,
                line=None if line is None else f"{short_path(file, root)}:{number}",
                code=None if line is None else code_at(file, int(number)) or None,
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.ms))
