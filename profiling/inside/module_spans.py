"""A span around each submodule's forward while a pass runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from profiling.inside.timeline import MODULE


@contextmanager
def module_spans(module: nn.Module) -> Iterator[None]:
    """Open a span `module: path` around every forward of `module` and of what is in it; "" is `module` itself.

    By hooks, which are taken off at the end. For code that runs eagerly: a compiled module would run without them, or
    be compiled again. A module that stands at several paths has the first; scripted ones take no hooks.
    """
    handles: list[Any] = []
    spans = _Spans()
    try:
        for path, part in module.named_modules():
            if not isinstance(part, torch.jit.ScriptModule):
                handles.append(part.register_forward_pre_hook(partial(spans.open, path)))
                handles.append(part.register_forward_hook(spans.close, always_call=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Spans:
    """The spans that are open, each with its module, outermost first."""

    def __init__(self) -> None:
        self._open: list[tuple[nn.Module, Any]] = []

    def open(self, path: str, part: nn.Module, *_: Any) -> None:
        """Open the span of a forward that begins."""
        span = torch.profiler.record_function(f"{MODULE}{path}")
        span.__enter__()
        self._open.append((part, span))

    def close(self, part: nn.Module, *_: Any) -> None:
        """Close the span of a forward that ended; none is open where a hook before ours raised."""
        if not any(each is part for each, _ in self._open):
            return
        ended = None
        while ended is not part:
            ended, span = self._open.pop()
            span.__exit__(None, None, None)
