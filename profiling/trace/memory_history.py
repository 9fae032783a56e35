"""Records which lines of code allocate the memory of the GPU, as the snapshot that pytorch.org/memory_viz shows."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

#: Most allocations and frees that a snapshot holds, the newest; one takes about 1 kB.
_MOST_EVENTS = 200_000


@contextmanager
def memory_history(file: Path) -> Iterator[None]:
    """Record the allocations of all CUDA devices inside the block; at its end, also by an exception, write `file`.

    Recording slows allocations down by some microseconds each. Memory that is held at the begin is shown without the
    line that allocated it, so what is no longer needed is freed first.
    """
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.cuda.memory._record_memory_history(max_entries=_MOST_EVENTS, stacks="python")
    try:
        yield
    finally:
        try:
            torch.cuda.memory._dump_snapshot(str(file))
        finally:
            torch.cuda.memory._record_memory_history(enabled=None)
