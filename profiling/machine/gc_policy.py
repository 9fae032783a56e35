"""Policies for Python's garbage collector while something is timed or captured.

The collector's pauses would be part of the samples, and objects that it frees may make CUDA calls, which a capture does
not allow. The realtime loop runs the collector as an application would, so that its pauses are measured.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager


@contextmanager
def gc_policy(policy: str) -> Iterator[None]:
    """Collect once, then apply a policy inside the block: "on", "off", or "frozen" (live objects are not scanned)."""
    enabled = gc.isenabled()
    if policy == "on":
        gc.unfreeze()  # what a fork server had frozen: an application's collections look at all
    gc.collect()
    if policy == "frozen":
        gc.freeze()
    if policy == "off":
        gc.disable()
    else:
        gc.enable()
    try:
        yield
    finally:
        if policy == "frozen":
            gc.unfreeze()
        if enabled:
            gc.enable()
        else:
            gc.disable()


def no_garbage_collection() -> AbstractContextManager[None]:
    """Collect once, then disable the collector inside the block."""
    return gc_policy("off")
