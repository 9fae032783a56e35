"""Names on the timeline: Nsight Systems and the torch profiler show the same words for the same stretch of work.

A span is named by the path of the spans around it, `component/variant/phase/iteration`, built from the nesting. It is
opened twice: as an NVTX range in a domain of our own, and as a `torch.profiler.record_function`. With no tool attached
it costs about 8 µs (NVTX 0.1 µs of it): nothing around a pass and too much around a 50 µs replay, so a timing loop
stands inside one span and opens none, and nothing here is ever opened inside a compiled region or a capture.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

try:
    import nvtx
except ImportError:  # a reader of traces alone need not have it
    nvtx = None

DOMAIN = "profiling"


class _OpenSpans(threading.local):
    """The names open on this thread, outermost first. NVTX keeps its push and pop stack per thread too."""

    def __init__(self) -> None:
        self.names: list[str] = []


_open = _OpenSpans()
_domain: Any = nvtx.get_domain(DOMAIN) if nvtx is not None else None


def open_names() -> tuple[str, ...]:
    """Return the names of the spans open on this thread, outermost first."""
    return tuple(_open.names)


@contextmanager
def _nvtx_range(path: str) -> Iterator[None]:
    if _domain is None:
        yield
        return
    _domain.push_range(_domain.get_event_attributes(message=path))
    try:
        yield
    finally:
        _domain.pop_range()


@contextmanager
def span(name: str) -> Iterator[str]:
    """Name what runs inside, on this thread, for Nsight Systems and the torch profiler; yield the full path.

    Callers nest: `with span("world_model"), span("compile"), span("timing"):` opens `world_model`,
    `world_model/compile` and `world_model/compile/timing`. It waits for nothing: on a GPU it spans the enqueueing.
    """
    _open.names.append(name)
    path = "/".join(_open.names)
    try:
        with _nvtx_range(path), torch.profiler.record_function(path):
            yield path
    finally:
        _open.names.pop()


@contextmanager
def cell_span(component: str, variant: str, phase: str) -> Iterator[str]:
    """Open `component/variant/phase`, or only the phase where the cell's two names are open already."""
    around = () if open_names()[:2] == (component, variant) else (component, variant)
    with ExitStack() as stack:
        for name in around:
            stack.enter_context(span(name))
        yield stack.enter_context(span(phase))
