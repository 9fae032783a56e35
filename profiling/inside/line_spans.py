"""A span around each line of the code under test while it runs, so that a trace says which line waited.

torch's own stacks name functions, and of the methods that they name the implicit ones (`if tensor:`) are not among
them. Slow, some microseconds a line: for a pass of its own.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from profiling.inside.timeline import LINE

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
