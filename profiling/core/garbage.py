"""Python's garbage collector, kept out of what must not be interrupted: timed samples, and captures.

Its pauses would be in the samples (they are the realtime loop's matter), and what it frees takes CUDA calls that a
capture does not allow.
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
