"""Linear layers with few rows: one Triton kernel each where it can run, PyTorch operations elsewhere.

A large linear layer with one or two rows is bound by reading its weights, so weights of half the bytes take half the
time. With 17 rows on an H100 they have 0.9 to 1.5 times the speed of bf16 (docs/results/h100/skinny_linear.txt), and
save memory. The kernel widens 8-bit numbers exactly; activations keep their dtype, and sums are fp32.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from models.kernels import HAS_TRITON, one_call
from models.kernels.eight_bits import MAX_ROWS, MULTIPLE, Int16Rows, dequantise, fits, from_int16_rows

HALF = (torch.float16, torch.bfloat16)


def misfit(
    form: Tensor, device: torch.device, stored: Tensor, dtype: torch.dtype, max_rows: int = MAX_ROWS
) -> str | None:
    """Return why the kernel does not compute the product of a tensor of the form of `form`, or None.

    Args:
        form: the input [..., k], which may be on another device; the kernel takes fp16 and bf16.
        device: of the input.
        stored: weights [n, k] as they are, or as `quantise` returns them.
        dtype: of the activations for which the layer was made.
        max_rows: up to how many rows the kernel is used.
    """
    if device.type != "cuda" or not HAS_TRITON:
        return "the kernel needs triton and a CUDA device"
    if form.dtype not in HALF:
        name = str(form.dtype).removeprefix("torch.")
        return f"activations are {name}; the kernel takes only float16 and bfloat16"
    rows, most = form.numel() // form.shape[-1], min(max_rows, MAX_ROWS)
    if rows > most:
        return f"{rows} rows, and the kernel takes {most} at most"
    if not fits(stored):
        return f"inputs and outputs must be multiples of {MULTIPLE}"
    n, k = stored.shape
    if stored.dtype == dtype and rows > 1 and k > n:  # it would have few programs, each with many inputs
        return "more inputs than outputs, and several rows: the library splits the inputs"
    return None if form.dtype == dtype and stored.is_contiguous() else "the kernel refuses its form"


@one_call
def few_rows_linear(
    x: Tensor, stored: Tensor, bias: Tensor | None, scale: Tensor | None, dtype: torch.dtype, max_rows: int = MAX_ROWS
) -> Tensor:
    """Return `x·weightᵀ + bias` [..., n], by the kernel if it can run, else by PyTorch with the weights in `dtype`.

    Arguments are those of `misfit`; bias is [n], and scale fp32 [n], None where the weights are not quantised. The
    kernel has no gradient.
    """
    if not torch.is_grad_enabled() and misfit(x, x.device, stored, dtype, max_rows) is None:
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
