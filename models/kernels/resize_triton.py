"""Triton kernel of `resize.py`: a sum along a row of the input serves all rows of the result that read it."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

from models.kernels.forms import alignment, channels_last

MOST_CHANNELS = 64  # of a tile: 128 bytes in half precision, a line of the cache
TILE = 1024  # numbers of a row in a tile: 16 bytes in half precision for each of 128 threads


@triton.jit
def _resize_rows(
    x, first_row, row_weights, first_column, column_weights, out,
    height, width, rows, columns, channels,
    aligned: tl.constexpr, count: tl.constexpr, row_window: tl.constexpr, column_window: tl.constexpr,
    block_columns: tl.constexpr, block_channels: tl.constexpr,
):  # fmt: skip
    """Write `count` rows of a tile of columns and channels."""
    if aligned > 1:  # tells Triton that it may read so many elements at once
        channels = channels // aligned * aligned
    group, batch = tl.program_id(1), tl.program_id(2).to(tl.int64)
    column_tiles = tl.cdiv(columns, block_columns)
    column = tl.program_id(0) % column_tiles * block_columns + tl.arange(0, block_columns)[:, None]
    channel = tl.program_id(0) // column_tiles * block_channels + tl.arange(0, block_channels)[None, :]
    is_column = column < columns
    real = is_column & (channel < channels)
    source = x + (batch * height + tl.load(first_row + group)) * width * channels
    from_row = tl.load(first_column + column, mask=is_column, other=0) * channels + channel
    scale = row_weights + group * count * row_window
    zeros = tl.zeros((block_columns, block_channels), tl.float32)
    sums = ()
    for _ in tl.static_range(count):
        sums = sums + (zeros,)  # noqa: RUF005 - Triton has no starred items
    for y in tl.static_range(row_window):
        along = zeros
        for step in tl.static_range(column_window):
            v = tl.load(source + (from_row + step * channels), mask=real, other=0.0).to(tl.float32)
            along += tl.load(column_weights + column * column_window + step, mask=is_column, other=0.0) * v
        now = ()
        for row in tl.static_range(count):
            now = now + (sums[row] + tl.load(scale + row * row_window + y) * along,)  # noqa: RUF005
        sums = now
        source += width * channels
    to = out + (batch * rows + group * count) * columns * channels + (column * channels + channel)
    for row in tl.static_range(count):
        within = real & (group * count + row < rows)
        tl.store(to + row * columns * channels, tl.cast(sums[row], out.dtype.element_ty), mask=within)


@triton_op("models::resize", mutates_args=())
def resize(
    x: Tensor, first_row: Tensor, row_weights: Tensor, first_column: Tensor, column_weights: Tensor, size: list[int]
) -> Tensor:
    """Do what `models.kernels.resize.resize` does, on a CUDA device."""
    if not channels_last(x):  # a pass of a compiler has changed the layout that was looked at
        x = x.contiguous(memory_format=torch.channels_last)
    (batch, channels, height, width), (rows, columns) = x.shape, size
    out = torch.empty((batch, rows, columns, channels), dtype=x.dtype, device=x.device)
    block_channels = min(triton.next_power_of_2(channels), MOST_CHANNELS)
    block_columns = TILE // block_channels
    tiles = triton.cdiv(columns, block_columns) * triton.cdiv(channels, block_channels)
    wrap_triton(_resize_rows)[tiles, len(first_row), batch](
        x, first_row, row_weights, first_column, column_weights, out, height, width, rows, columns, channels,
        alignment(channels), *row_weights.shape[1:], column_weights.shape[2], block_columns, block_channels,
    )  # fmt: skip
    return out.movedim(-1, 1)
