"""What the kernels of convolutional networks and their references share: dtypes and memory formats of tensors.

Tensors are [n, c, ...], contiguous or with channels last.
"""

import math

import torch
from torch import Tensor

from models.kernels import HAS_TRITON

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
#: Most elements that one program normalises in registers.
MOST_IN_REGISTERS = 8192


def unsupported(form: Tensor, device: torch.device) -> str | None:
    """Return why no kernel runs for a tensor of this dtype on a device, or None; `form` may be on another device."""
    if device.type != "cuda" or not HAS_TRITON:
        return "the kernel needs triton and a CUDA device"
    if form.dtype not in DTYPES:
        return f"its dtype is {str(form.dtype).removeprefix('torch.')}; the kernel takes float32, bfloat16 and float16"
    return None


def channels_last(x: Tensor) -> bool | None:
    """Return whether the channels of `x` [n, c, ...] are its innermost dim; None: it is not contiguous either."""
    if x.is_contiguous():
        return False
    return True if x.movedim(1, -1).is_contiguous() else None


def alignment(elements: int) -> int:
    """Return the largest power of two, at most 16, that divides a number of elements.

    A kernel can read this many at once. Triton by itself checks only whether 16 divides a stride, and otherwise reads
    single elements.
    """
    return math.gcd(elements, 16)


def in_format_of(x: Tensor, result: Tensor) -> Tensor:
    """Return `result` in the dtype and memory format of `x`; it is not copied where it has them."""
    result = result.to(x.dtype)
    return result.movedim(1, -1).contiguous().movedim(-1, 1) if channels_last(x) else result.contiguous()


def runs_in_kernel(x: Tensor) -> bool:
    """Return whether the Triton kernel runs for `x`: on a GPU, in a dtype that it takes, and without gradients."""
    return x.is_cuda and HAS_TRITON and x.dtype in DTYPES and not torch.is_grad_enabled()
