"""A Triton kernel that writes to an address outside every allocation."""

import torch
import triton
import triton.language as tl


@triton.jit
def _write(pointer, distance):
    tl.store(pointer + distance, 1.0)


def write_outside(x: torch.Tensor) -> None:
    """Write 4 TB behind the first element of `x`."""
    _write[(1,)](x, 1 << 40)
