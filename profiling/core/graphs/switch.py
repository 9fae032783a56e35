"""CUDA graphs around a module for the length of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from profiling.core.graphs.graphed import CudaGraphed
from profiling.core.graphs.session import set_cuda_graphs

__all__ = ["cuda_graphs", "set_cuda_graphs"]


@contextmanager
def cuda_graphs(module: nn.Module, **options: Any) -> Iterator[CudaGraphed]:
    """Make calls of `module` inside the block replay CUDA graphs; its hooks run around them as ever.

    `options` are those of `CudaGraphed`, which is what the block is given, for its counters. At the end the graphs are
    freed and the module is what it was, so a later block records anew and replays nothing stale.
    """
    before = vars(module).get("forward")
    graphed = CudaGraphed(module, call=module.forward, **options)
    module.forward = graphed
    try:
        yield graphed
    finally:
        if before is None:
            del module.forward
        else:
            module.forward = before
        graphed.clear()
