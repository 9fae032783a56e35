"""Named spans for Nsight Systems (NVTX ranges) and the torch profiler (`record_function`).

A span's full name includes the spans around it: `component/variant/phase/iteration`. A span costs about 8 µs without a
tool attached (0.1 µs of it for NVTX), so a timing loop runs inside one span and opens none. No span may be opened
inside a compiled region or a capture.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

import nvtx
import torch

#: Names of the spans open on this thread, outermost first; NVTX has a stack for each thread too.
_open: ContextVar[tuple[str, ...]] = ContextVar("open spans", default=())
#: Where ranges of this tool are in Nsight Systems.
DOMAIN: Any = nvtx.get_domain("profiling")


def open_names() -> tuple[str, ...]:
    """Return the names of the spans open on this thread, outermost first."""
    return _open.get()


@contextmanager
def span(name: str) -> Iterator[str]:
    """Open a span on this thread for Nsight Systems and the torch profiler; yield its full path.

    `with span("world_model"), span("compile"), span("timing"):` opens `world_model`, `world_model/compile` and
    `world_model/compile/timing`. On a GPU a span covers the launches, not the work: it does not synchronize.
    """
    token = _open.set((*_open.get(), name))
    path = "/".join(_open.get())
    DOMAIN.push_range(DOMAIN.get_event_attributes(message=path))
    try:
        with torch.profiler.record_function(path):
            yield path
    finally:
        DOMAIN.pop_range()
        _open.reset(token)


@contextmanager
def cell_span(component: str, variant: str, phase: str) -> Iterator[str]:
    """Open `component/variant/phase`; open only the phase where spans of the component and the variant are open."""
    around = () if open_names()[:2] == (component, variant) else (component, variant)
    with ExitStack() as stack:
        for name in around:
            stack.enter_context(span(name))
        yield stack.enter_context(span(phase))
