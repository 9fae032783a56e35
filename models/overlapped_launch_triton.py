"""Launches of Triton kernels that overlap: a kernel starts while the one before it ends (Hopper and later).

With CUDA's programmatic dependent launch a kernel may start as soon as all programs of the one before it have called
`start_after_previous`. It must then wait before it accesses memory that other kernels write, but can first fetch what
no kernel writes, such as weights. This hides the launch latency, about a microsecond, in a graph of short kernels.
https://docs.nvidia.com/cuda/cuda-c-programming-guide/#programmatic-dependent-launch-and-synchronization

Off by default, because it has not been measured: `benchmarks/skinny_linear.py` compares both.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch.library import wrap_triton

_requested = ContextVar("overlapped launches", default=False)


@contextmanager
def overlapped_launches() -> Iterator[None]:
    """Let the kernels of this repository that are launched or captured inside overlap; not those of a compiled graph.

    Raises:
        RuntimeError: the GPU is older than Hopper, or there is none.
    """
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0):
        raise RuntimeError("launches overlap on a GPU of compute capability 9.0 (Hopper) or later only")
    before = _requested.set(True)
    try:
        yield
    finally:
        _requested.reset(before)


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """Launch `kernel`, a function of `triton.jit` with a parameter `overlap: tl.constexpr`, in the current stream.

    Args:
        kernel: begins with `start_after_previous(overlap)`.
        grid: number of programs in up to three dimensions.
        args: tensors and numbers, in order.
        options: other arguments of the kernel, and Triton's own, such as `num_warps`.
    """
    wrapped = wrap_triton(kernel)
    # A compiler that records the call launches the kernel itself, without the attribute that overlapping needs.
    overlap = _requested.get() and wrapped is kernel
    if overlap:
        options["launch_pdl"] = True
    wrapped[grid](*args, overlap=overlap, **options)


@triton.jit
def start_after_previous(overlap: tl.constexpr):
    """Wait until the kernel before this one has ended and its writes can be read; then let the next one start."""
    if overlap:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


#: Fetch $2 bytes from address $1 into the L2 cache, without waiting: both multiples of 16.
_PREFETCH = tl.constexpr("cp.async.bulk.prefetch.L2.global [$1], $2; // no result in $0")


@triton.jit
def prefetch(pointers, count: tl.constexpr, overlap: tl.constexpr):
    """Fetch `count` elements from each of `pointers` into the L2 cache; before the wait, so that the memory is busy."""
    if overlap:
        size: tl.constexpr = count * pointers.dtype.element_ty.primitive_bitwidth // 8
        tl.inline_asm_elementwise(
            _PREFETCH, "=r,l,r", [pointers.to(tl.int64), size], dtype=tl.int32, is_pure=False, pack=1
        )
