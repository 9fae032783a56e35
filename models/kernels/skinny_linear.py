"""Linear layers with few rows: one Triton kernel each where it can run, PyTorch operations elsewhere.

A large linear layer with one or two rows is bound by reading its weights, so weights of half the bytes take half the
time. With 17 rows on an H100 they have 0.9 to 1.5 times the speed of bf16 (docs/results/h100/skinny_linear.txt), and
save memory. The kernel widens 8-bit numbers exactly; activations keep their dtype, and sums are fp32.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from models.kernels import HAS_TRITON
from models.kernels.eight_bits import MAX_ROWS, Int16Rows, dequantise, fits, from_int16_rows

HALF = (torch.float16, torch.bfloat16)


def runs_in_kernel(x: Tensor, stored: Tensor, dtype: torch.dtype, max_rows: int = MAX_ROWS) -> bool:
    """Return True if the kernel computes this product; shapes, dtypes and the device decide.

    Args:
        x: [..., k]; the kernel takes fp16 and bf16 on a GPU, and has no gradient.
        stored: weights [n, k] as they are, or as `quantise` returns them.
        dtype: of the activations for which the layer was made.
        max_rows: up to how many rows the kernel is used.
    """
    few = x.numel() // x.shape[-1] <= min(max_rows, MAX_ROWS)
    runs = x.is_cuda and HAS_TRITON and x.dtype == dtype and dtype in HALF and not torch.is_grad_enabled()
    return few and runs and fits(stored) and stored.is_contiguous()


def few_rows_linear(
    x: Tensor, stored: Tensor, bias: Tensor | None, scale: Tensor | None, dtype: torch.dtype, max_rows: int = MAX_ROWS
) -> Tensor:
    """Return `x·weightᵀ + bias` [..., n], by the kernel if it can run, else by PyTorch with the weights in `dtype`.

    Arguments are those of `runs_in_kernel`; bias is [n], and scale fp32 [n], None where the weights are not quantised.
    """
    if runs_in_kernel(x, stored, dtype, max_rows):
        from models.kernels.skinny_linear_triton import linear as linear_kernel  # needs triton

        return linear_kernel(x, stored, bias, scale)
    return linear(x, stored, bias, scale, dtype)


def linear(x: Tensor, stored: Tensor, bias: Tensor | None, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return what the kernel of this name does in PyTorch operations, with 8-bit weights rounded to `dtype` first."""
    return F.linear(x, stored if scale is None else dequantise(stored, scale, dtype), bias)


def linear_silu(x: Tensor, weight: Tensor, bias: Tensor | None = None, scale: Tensor | None = None) -> Tensor:
    """Return what the kernel of this name does in fp64, rounded once to the dtype of `x`."""
    return F.silu(_product(x.double(), weight, bias, scale)).to(x.dtype)


def linear_parts(x: Tensor, weight: Tensor, bias: Tensor | None = None, scale: Tensor | None = None) -> Tensor:
    """Return what the parts of the kernel of this name sum to, as one part: fp32 [1, ..., n], computed in fp64."""
    return _product(x.double(), weight, bias, scale).float().unsqueeze(0)


def linear_int16(
    split: Tensor, row_scale: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor, dtype: torch.dtype,
    silu: bool = False,
) -> Tensor:  # fmt: skip
    """Return what the kernel of this name does in fp64, rounded once to `dtype`."""
    product = _product(from_int16_rows(Int16Rows(split, row_scale)), weight, bias, scale)
    return (F.silu(product) if silu else product).to(dtype)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor | None) -> Tensor:
    """Return `x·weightᵀ + bias` for fp64 `x`, in fp64."""
    wide = weight.double() if scale is None else dequantise(weight, scale, torch.float64)
    return F.linear(x, wide, None if bias is None else bias.double())
