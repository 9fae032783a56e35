"""Weights of 8 bits with a scale for each output, activations of two bytes with a scale for each row, and which fit.

The kernels of `skinny_linear_triton.py` and their references share what is here.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

MULTIPLE = 64  # of inputs and outputs: of 64 inputs, rows of 8-bit weights start at whole memory sectors
MAX_ROWS = 64  # of the kernel; with more rows the weights no longer dominate the time
MOST_WEIGHTS = 2**31  # of a layer, not included: the kernel's offsets have 32 bits
WEIGHTS = ("bf16", "int8", "float8_e4m3")  # how weights are stored; bf16: as they are, in the module's own dtype
_STORED = {"int8": (torch.int8, 127.0), "float8_e4m3": (torch.float8_e4m3fn, 448.0)}  # dtype, largest number
AT_ONCE = 2**24  # weights that are quantised at once: several fp32 copies of them are made
EIGHT_BITS = tuple(dtype for dtype, _ in _STORED.values())


def quantise(weight: Tensor, weights: str) -> tuple[Tensor, Tensor]:
    """Quantise each row to 8 bits, every number to the nearest that can be represented; `dequantise` undoes it.

    The largest magnitude of a row is exact. A row that holds NaN or infinity gets the scale NaN, so that its output is
    NaN. A row of zeros gets the scale 0.

    Args:
        weight: [n, k] of a floating dtype.
        weights: `int8` or `float8_e4m3`.

    Returns:
        int8 or float8_e4m3fn [n, k] in `kernel_order`, and fp32 [n].
    """
    parts = weight.detach().split(max(AT_ONCE // weight.shape[1], 1))
    stored, scales = zip(*(_quantise_rows(part, weights) for part in parts), strict=True)
    return concatenated(stored), torch.cat(scales)


def _quantise_rows(weight: Tensor, weights: str) -> tuple[Tensor, Tensor]:
    dtype, limit = _STORED[weights]
    exact = weight.float()
    largest = exact.abs().amax(1)
    scale = torch.where(largest.isfinite(), largest / limit, torch.nan)
    numbers = (exact / torch.where(scale > 0, scale, 1).unsqueeze(1)).nan_to_num(0).clamp(-limit, limit)
    return kernel_order((numbers.round() if weights == "int8" else numbers).to(dtype)), scale


def dequantise(stored: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the weight [n, k] that the results of `quantise` stand for, in `dtype`, rounded once."""
    return (kernel_order(stored, undo=True).float() * scale.unsqueeze(1)).to(dtype)


def kernel_order(stored: Tensor, *, undo: bool = False) -> Tensor:
    """Return 8-bit weights [n, k] with the inputs in the order in which the kernel reads them, or (`undo`) back.

    Byte b of word w (0 to 15) of each 64 inputs is input w + 16·b, so that equal bytes of neighbouring words belong to
    neighbouring inputs. Where k is not a multiple of 64, which the kernel does not take, the order stays.
    """
    n, k = stored.shape
    if k % MULTIPLE:
        return stored
    ordered = stored.view(n, -1, 16, 4) if undo else stored.view(n, -1, 4, 16)
    return ordered.transpose(2, 3).reshape(n, k)


def concatenated(parts: Sequence[Tensor]) -> Tensor:
    """Return the parts in one tensor. float8 parts are concatenated as bytes, which every version of torch can do."""
    if parts[0].is_floating_point() and parts[0].itemsize == 1:
        return torch.cat([part.view(torch.uint8) for part in parts]).view(parts[0].dtype)
    return torch.cat(list(parts))


def fits(weight: Tensor) -> bool:
    """Return True if the kernel supports the shape of `weight`, [n, k]."""
    n, k = weight.shape
    return n % MULTIPLE == 0 and k % MULTIPLE == 0 and n * k < MOST_WEIGHTS


class Int16Rows(NamedTuple):
    """Rows of numbers as 16-bit integers with a scale each: a number is scale·(256·high + low).

    The error is at most 1/65024 of the row's largest magnitude, less than that of bf16 unless one number of a row is
    hundreds of times as large as the others. Rows with NaN or infinity have the scale NaN.
    """

    split: Tensor  # int8 [2, ..., k]: the high bytes, then the low ones (from -128 to 127), inputs in `kernel_order`
    scale: Tensor  # fp32 [...]


def int16_rows(x: Tensor) -> Int16Rows:
    """Return `x` [..., k] as 16-bit integers, rounded to the nearest; a row of zeros gets the scale 0."""
    wide = x.double()
    scale = wide.abs().amax(-1, keepdim=True) / 32512  # 32512 = 127·256
    finite = scale.isfinite()
    number = (wide / scale.where(finite & (scale > 0), 1)).nan_to_num(0, 0, 0).round().int()
    low = (number + 128) % 256 - 128
    split = torch.stack([(number - low) // 256, low]).to(torch.int8)
    return Int16Rows(
        kernel_order(split.flatten(0, -2)).view_as(split), scale.where(finite, torch.nan).squeeze(-1).float()
    )


def from_int16_rows(rows: Int16Rows) -> Tensor:
    """Return the fp64 numbers [..., k] that the results of `int16_rows` stand for."""
    high, low = (kernel_order(part.flatten(0, -2), undo=True).view_as(part).double() for part in rows.split)
    return (256 * high + low) * rows.scale.unsqueeze(-1)
