"""Where a step waits for the device and what it carries over the bus, with the line of code that did it."""

from __future__ import annotations

import linecache
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from profiling.trace.attribution import aligned
from profiling.trace.compile_log import short_path
from profiling.trace.events import (
    CROSSES,
    LINE,
    WAITS,
    Stretch,
    Timeline,
    TracedCall,
    innermost,
    launched_by,
    traced_calls,
)

_HERE = Path(__file__).resolve().parents[1]
#: Code that is never the one to blame: torch's, triton's, this harness's, Python's own library.
_NOT_ASKED = tuple(
    f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, _HERE, sysconfig.get_paths()["stdlib"])
)
_PACKAGES = f"{os.sep}site-packages{os.sep}"


@contextmanager
def line_spans() -> Iterator[None]:
    """Open a span `line: file:number` around each line that this thread runs inside, nested as the calls are.

    Python allows one tracing function a thread: a debugger's is put back at the end.
    """
    tracer, before = _Tracer(), sys.gettrace()
    sys.settrace(_never_compiled(tracer.enter))
    try:
        yield
    finally:
        sys.settrace(before)
        tracer.close()


class _Tracer:
    """The functions that Python calls on entering code and on each line of it, and the spans that they opened."""

    def __init__(self) -> None:
        self._line = _never_compiled(self._on_line)
        self._open: list[tuple[FrameType, Any]] = []
        self._asked: dict[str, bool] = {}

    def enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Follow the lines of code that is asked about, and pass over the rest."""
        file = frame.f_code.co_filename
        if file not in self._asked:
            self._asked[file] = _is_asked(file)
        return self._line if self._asked[file] else None

    def close(self) -> None:
        """Close what an exception left open."""
        while self._open:
            self._open.pop()[1].__exit__(None, None, None)

    def _on_line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event in ("line", "return"):
            while any(each is frame for each, _ in self._open):  # and what ended inside it without saying so
                self._open.pop()[1].__exit__(None, None, None)
        if event == "line":
            span = torch.profiler.record_function(f"{LINE}{frame.f_code.co_filename}:{frame.f_lineno}")
            span.__enter__()
            self._open.append((frame, span))
        return self._line


def _never_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` out of Dynamo's reach: it runs in the midst of compiled code, and would be compiled with it."""
    return torch.compiler.disable(function) if "torch._dynamo" in sys.modules else function


def _is_asked(file: str) -> bool:
    if file.startswith("<") or "torchinductor" in file:
        return False
    cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if cache and file.startswith(cache):
        return False
    if _PACKAGES in file:  # a network's own package is asked about, though Python's library may lie above it
        package = file.rpartition(_PACKAGES)[2].partition(os.sep)[0]
        return package not in ("torch", "triton")
    return not file.startswith(_NOT_ASKED)


_WAY = re.compile(r"Memcpy \w+ \((\w+) -> (\w+)\)")
_CODE_LENGTH = 120


@dataclass(frozen=True, slots=True)
class Crossing:
    """A wait of the host or a copy over the bus.

    `ms` are the host's in a wait and the device's in a copy, `begin` (µs) and `row` the call's. Of a copy `host_ms` is
    how long the host stood in that call: one of pageable memory holds it up.
    """

    what: str
    ms: float
    begin: float
    row: Any
    bytes: int | None = None
    host_ms: float | None = None


def waits_and_copies(
    main: Timeline, lined: Timeline | None, root: Path, parts: int = 1
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return rows of waits and of copies, times a call, or one of its `parts`; the longest first.

    Times are those of `main`; lines come from `lined`, a trace of the same step with a span for each line of code, by
    order. Files under `root` are named relative to it. A wait or copy that no line outside of torch and this harness
    made has none.
    """
    calls = traced_calls(main)
    other = () if lined is None else traced_calls(lined)[-1:]
    rows = []
    for crossings in (_waits, _copies):
        known = [] if lined is None or not other else crossings(other[0], lined)
        places = [] if lined is None else _lines(known, lined)
        found = [_placed(crossings(call, main), known, places) for call in calls]
        rows.append(_rows(found, root, parts))
    return rows[0], rows[1]


def _waits(call: TracedCall, trace: Timeline) -> list[Crossing]:
    asked = (host for host in call.host if WAITS.match(host.name))
    return [Crossing(host.name, (host.end - host.begin) / 1e3, host.begin, host.row) for host in asked]


def _copies(call: TracedCall, trace: Timeline) -> list[Crossing]:
    launches, found = launched_by(trace), []
    for work in call.work:
        if CROSSES.match(work.name):
            launch = launches.get(work.correlation)
            way, length = _way(work.name), work.length / 1e3
            if launch is None:
                found.append(Crossing(way, length, work.begin, None, work.bytes))
            else:
                stood = (launch.end - launch.begin) / 1e3
                found.append(Crossing(way, length, launch.begin, launch.row, work.bytes, stood))
    return found


def _way(name: str) -> str:
    """Return 'device to pageable host' for 'Memcpy DtoH (Device -> Pageable)'."""
    way = _WAY.match(name)
    if way is None:
        return name
    ends = (end.lower() if end == "Device" else f"{end.lower()} host" for end in way.groups())
    return " to ".join(ends)


def _lines(known: Sequence[Crossing], lined: Timeline) -> list[str | None]:
    order = sorted(range(len(known)), key=lambda place: known[place].begin)
    spans = innermost(lined.lines, [(known[place].begin, known[place].row) for place in order])
    found: list[str | None] = [None] * len(known)
    for place, span in zip(order, spans, strict=True):
        found[place] = _line_of(span)
    return found


def _line_of(span: Stretch | None) -> str | None:
    return None if span is None or not span.name.startswith(LINE) else span.name.removeprefix(LINE)


def _placed(
    found: Sequence[Crossing], known: Sequence[Crossing], places: Sequence[str | None]
) -> list[tuple[Crossing, str | None]]:
    order = aligned(tuple(each.what for each in found), tuple(each.what for each in known))
    return [(each, None if place is None else places[place]) for each, place in zip(found, order, strict=True)]


def _rows(calls: Sequence[Sequence[tuple[Crossing, str | None]]], root: Path, parts: int) -> list[dict[str, Any]]:
    count = len(calls) * parts
    groups: dict[tuple[str, str | None], list[Crossing]] = {}
    for crossing, line in (pair for call in calls for pair in call):
        groups.setdefault((crossing.what, line), []).append(crossing)
    rows = []
    for (what, line), items in groups.items():
        row: dict[str, Any] = {
            "what": what,
            "count": len(items) / count,
            "ms": sum(item.ms for item in items) / count,
        }
        for key in ("bytes", "host_ms"):
            known = [getattr(item, key) for item in items if getattr(item, key) is not None]
            if known:
                row[key] = sum(known) / count
        rows.append(row | _told(line, root))
    return sorted(rows, key=lambda row: -row["ms"])


def _told(line: str | None, root: Path) -> dict[str, str]:
    if line is None:
        return {}
    file, _, number = line.rpartition(":")
    code = linecache.getline(file, int(number)).strip()
    return {"line": f"{short_path(file, root)}:{number}", **({"code": code[:_CODE_LENGTH]} if code else {})}
