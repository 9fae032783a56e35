"""Python's garbage collector: kept out of timed samples and captures, and as an application has it in a loop.

Its pauses would be in the samples, and what it frees takes CUDA calls that a capture does not allow. In the realtime
loop they are part of what is measured.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Collect once, then keep the collector out of the block."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def garbage(how: str) -> Iterator[None]:
    """Let Python's collector do what the option says, and what it did before afterwards."""
    enabled = gc.isenabled()
    gc.collect()
    if how == "frozen":
        gc.freeze()
    if how == "off":
        gc.disable()
    else:
        gc.enable()
    try:
        yield
    finally:
        if how == "frozen":
            gc.unfreeze()
        if enabled:
            gc.enable()
        else:
            gc.disable()
