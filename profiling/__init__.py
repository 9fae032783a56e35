"""Profiling harness for real-time generative models.

From Python: `profiling.profile`, `profiling.prepare` and `profiling.FrameRecorder` (docs/python.md).
"""

from __future__ import annotations

import random
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if sys.argv[:1] == ["-m"]:  # `python -m profiling.X` imports this first; the imports that follow take up to a second
    import os
    import signal

    def _exit_at_once(_signal: int, _frame: object) -> None:
        os.write(2, b"interrupted\n")
        os._exit(130)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit_at_once)

if TYPE_CHECKING:
    from profiling.api import prepare, profile
    from profiling.realtime.recorder import FrameRecorder

__all__ = ["FrameRecorder", "prepare", "profile"]

#: Where each name is defined; imported when it is first used, because some of these modules import torch.
_HOMES = {"profile": "profiling.api", "prepare": "profiling.api", "FrameRecorder": "profiling.realtime.recorder"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    state = random.getstate()
    try:
        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    finally:
        random.setstate(state)  # rich draws a number when it is imported
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
