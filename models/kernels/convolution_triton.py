"""Triton kernels of `convolution.py`: one for groups of several channels and 1×1 kernels, one for depthwise ones."""

import math

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor
from torch.library import triton_op, wrap_triton

from models.kernels.activations import ACTIVATIONS
from models.kernels.activations_triton import activate
from models.kernels.fused_norm import channels_last, in_format_of

PROGRAMS = 264  # at least, where there are so many tiles: two for each multiprocessor of an H100


@triton.jit
def _positions(tile, tiles_w, block_h: tl.constexpr, block_w: tl.constexpr):
    """Return row and column of each position of a tile, so that neighbours share what they read."""
    within = tl.arange(0, block_h * block_w)
    return tile // tiles_w * block_h + within // block_w, tile % tiles_w * block_w + within % block_w


@triton.jit
def _finish(
    sums, row, column, channel, real, bias, residual, alpha, beta, out, out_n, out_c, out_h, out_w, partial,
    has_bias: tl.constexpr, has_residual: tl.constexpr, activation: tl.constexpr, slope: tl.constexpr, outputs,
    is_inside, is_channel, statistics: tl.constexpr, tile, tiles,
):  # fmt: skip
    """Add bias and residual to sums [positions, channels], and store the activation; with its statistics."""
    at = tl.program_id(1).to(tl.int64) * out_n + (row.to(tl.int64) * out_h + column.to(tl.int64) * out_w)[:, None]
    at = at + (channel.to(tl.int64) * out_c)[None, :]
    if has_bias:
        sums += tl.load(bias + channel, mask=is_channel, other=0.0)[None, :]
    if has_residual:
        sums += tl.load(residual + at, mask=real, other=0.0).to(tl.float32)
    a = 0.0
    b = 0.0
    if activation == 5:
        a = tl.load(alpha + channel, mask=is_channel, other=0.0)[None, :]
        b = tl.load(beta + channel, mask=is_channel, other=0.0)[None, :]
    sums = activate(sums, activation, slope, a, b).to(out.dtype.element_ty)
    tl.store(out + at, sums, mask=real)
    if statistics:  # of what is stored, as the norm would read it
        written = tl.where(real, sums.to(tl.float32), 0.0)
        count = tl.sum(is_inside.to(tl.float32), 0)
        mean = tl.sum(written, 0) / count
        off = tl.where(real, written - mean[None, :], 0.0)
        to = partial + (tl.program_id(1).to(tl.int64) * tiles + tile) * 3 * outputs + channel
        tl.store(to, count + mean * 0.0, mask=is_channel)
        tl.store(to + outputs, mean, mask=is_channel)
        tl.store(to + 2 * outputs, tl.sum(off * off, 0), mask=is_channel)


@triton.jit
def _products(
    x, weight, bias, residual, alpha, beta, out, partial, height, width, x_n, x_c, x_h, x_w,
    size_h, size_w, out_n, out_c, out_h, out_w, stride_h, stride_w, before_h, before_w, dilation_h, dilation_w, tiles_w,
    tiles, table, first_alpha, first_beta,
    blocks: tl.constexpr, inputs: tl.constexpr, outputs: tl.constexpr, taps: tl.constexpr, kernel_w: tl.constexpr,
    has_table: tl.constexpr, first_activation: tl.constexpr, first_slope: tl.constexpr, statistics: tl.constexpr,
    has_bias: tl.constexpr, has_residual: tl.constexpr, activation: tl.constexpr, slope: tl.constexpr,
    block_h: tl.constexpr, block_w: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr,
):  # fmt: skip
    """Compute a tile of positions and outputs of one block; programs with the same positions are neighbours."""
    across: tl.constexpr = (outputs + block_n - 1) // block_n
    steps: tl.constexpr = (inputs + block_k - 1) // block_k
    tile, place = tl.program_id(0) // (blocks * across), tl.program_id(0) % (blocks * across)
    block = place // across
    output = place % across * block_n + tl.arange(0, block_n)
    row, column = _positions(tile, tiles_w, block_h, block_w)
    batch = tl.program_id(1).to(tl.int64) * x_n + block.to(tl.int64) * inputs * x_c
    sums = tl.zeros([block_h * block_w, block_n], tl.float32)
    for step in range(taps * steps):  # one loop, so that loads of the next tap begin before the products of this one
        tap = step // steps if taps > 1 else 0
        input_ = (step % steps * block_k if steps > 1 else 0) + tl.arange(0, block_k)
        y = row * stride_h - before_h + tap // kernel_w * dilation_h
        z = column * stride_w - before_w + tap % kernel_w * dilation_w
        inside = (y >= 0) & (y < height) & (z >= 0) & (z < width)
        at = batch + (y.to(tl.int64) * x_h + z.to(tl.int64) * x_w)[:, None] + (input_.to(tl.int64) * x_c)[None, :]
        given = inside[:, None] & (input_ < inputs)[None, :]
        here = tl.load(x + at, mask=given, other=0.0)
        if has_table:
            channel = block * inputs + input_
            of = table + tl.program_id(1) * 5 * blocks * inputs + channel
            scale = tl.load(of + 2 * blocks * inputs, mask=input_ < inputs, other=0.0)
            offset = tl.load(of + 4 * blocks * inputs, mask=input_ < inputs, other=0.0)
            a = 0.0
            b = 0.0
            if first_activation == 5:
                a = tl.load(first_alpha + channel, mask=input_ < inputs, other=0.0)[None, :]
                b = tl.load(first_beta + channel, mask=input_ < inputs, other=0.0)[None, :]
            first = here.to(tl.float32) * scale[None, :] + offset[None, :]
            first = activate(first, first_activation, first_slope, a, b)
            here = tl.where(given, first, 0.0).to(x.dtype.element_ty)  # padding is of zeros, not of their norm
        of = ((block * taps + tap) * inputs + input_)[:, None] * outputs + output[None, :]
        real = (input_ < inputs)[:, None] & (output < outputs)[None, :]
        sums = tl.dot(here, tl.load(weight + of, mask=real, other=0.0), sums, input_precision="ieee")
    is_inside = (row < size_h) & (column < size_w)
    real = is_inside[:, None] & (output < outputs)[None, :]
    _finish(
        sums, row, column, block * outputs + output, real, bias, residual, alpha, beta, out, out_n, out_c, out_h, out_w,
        partial, has_bias, has_residual, activation, slope, blocks * outputs, is_inside, output < outputs, statistics,
        tile, tiles,
    )  # fmt: skip


@triton.jit
def _depthwise(
    x, weight, bias, residual, alpha, beta, out, partial, height, width, x_n, x_c, x_h, x_w,
    size_h, size_w, out_n, out_c, out_h, out_w, stride_h, stride_w, before_h, before_w, dilation_h, dilation_w, tiles_w,
    tiles, channels, taps: tl.constexpr, kernel_w: tl.constexpr, statistics: tl.constexpr,
    has_bias: tl.constexpr, has_residual: tl.constexpr, activation: tl.constexpr, slope: tl.constexpr,
    block_h: tl.constexpr, block_w: tl.constexpr, block_n: tl.constexpr,
):  # fmt: skip
    """Compute a tile of positions and channels, without products of matrices."""
    across = tl.cdiv(channels, block_n)
    channel = tl.program_id(0) % across * block_n + tl.arange(0, block_n)
    tile = tl.program_id(0) // across
    row, column = _positions(tile, tiles_w, block_h, block_w)
    is_channel = channel < channels
    batch = tl.program_id(1).to(tl.int64) * x_n
    sums = tl.zeros([block_h * block_w, block_n], tl.float32)
    for tap in range(taps):
        y = row * stride_h - before_h + tap // kernel_w * dilation_h
        z = column * stride_w - before_w + tap % kernel_w * dilation_w
        inside = (y >= 0) & (y < height) & (z >= 0) & (z < width)
        at = batch + (y.to(tl.int64) * x_h + z.to(tl.int64) * x_w)[:, None] + (channel.to(tl.int64) * x_c)[None, :]
        here = tl.load(x + at, mask=inside[:, None] & is_channel[None, :], other=0.0).to(tl.float32)
        sums += here * tl.load(weight + channel * taps + tap, mask=is_channel, other=0.0).to(tl.float32)[None, :]
    is_inside = (row < size_h) & (column < size_w)
    real = is_inside[:, None] & is_channel[None, :]
    _finish(
        sums, row, column, channel, real, bias, residual, alpha, beta, out, out_n, out_c, out_h, out_w, partial,
        has_bias, has_residual, activation, slope, channels, is_inside, is_channel, statistics, tile, tiles,
    )  # fmt: skip


@triton_op("models::convolution", mutates_args=())
def convolution(
    x: Tensor, packed: Tensor, bias: Tensor | None, residual: Tensor | None, alpha: Tensor | None, beta: Tensor | None,
    kernel: list[int], stride: list[int], before: list[int], dilation: list[int], size: list[int],
    activation: str, slope: float, table: Tensor | None = None, first_activation: str = "none",
    first_slope: float = 0.0, first_alpha: Tensor | None = None, first_beta: Tensor | None = None,
    statistics: bool = False,
) -> list[Tensor]:  # fmt: skip
    """Return what `convolution.convolution` documents."""
    blocks, taps, inputs, outputs = packed.shape
    n, c, innermost = x.shape[0], blocks * outputs, channels_last(x)
    positions = math.prod(size)
    rows = [math.prod(size[dim + 1 :]) * (c if innermost else 1) for dim in range(len(size))]
    # No view of other memory: in a graph, a write to one would copy.
    out = x.new_empty_strided((n, c, *size), (c * positions, 1 if innermost else positions, *rows))
    residual = None if residual is None else in_format_of(out, residual)
    shape, steps, out_steps = list(x.shape[2:]), list(x.stride()), list(out.stride())
    if len(kernel) == 1:
        kernel, stride, dilation, size, shape = ([1, *each] for each in (kernel, stride, dilation, size, shape))
        before = [0, *before]
        steps.insert(2, 0)
        out_steps.insert(2, 0)
    is_depthwise = inputs == outputs == 1
    if is_depthwise:
        block_n, most = (64, 64) if innermost else (1, 1024)
        across = triton.cdiv(blocks, block_n)
        most_w = most
    else:
        most = 64 if x.dtype == torch.float32 else 128
        block_n = min(max(triton.next_power_of_2(outputs), 16), most)
        across = blocks * triton.cdiv(outputs, block_n)
        most_w = 16 if innermost and taps > 1 else most
    block_h, block_w, tiles_w, tiles = _tiles(size, most, most_w, across * n)
    partial = x.new_empty((n, tiles, 3, c), dtype=torch.float32) if statistics else out
    given = (
        *(packed if each is None else each for each in (packed, bias, residual, alpha, beta)), out, partial,
        *shape, *steps, *size, *out_steps, *stride, *before, *dilation, tiles_w, tiles,
    )  # fmt: skip
    options = {
        "taps": taps, "kernel_w": kernel[1], "has_bias": bias is not None, "has_residual": residual is not None,
        "activation": ACTIVATIONS.index(activation), "slope": slope, "statistics": statistics,
        "block_h": block_h, "block_w": block_w, "block_n": block_n,
    }  # fmt: skip
    if is_depthwise:
        wrap_triton(_depthwise)[(tiles * across, n)](x, *given, blocks, **options, num_warps=4)
    else:
        first = (packed if each is None else each for each in (table, first_alpha, first_beta))
        wrap_triton(_products)[(tiles * across, n)](
            x, *given, *first, blocks=blocks, inputs=inputs, outputs=outputs, **options,
            has_table=table is not None, first_activation=ACTIVATIONS.index(first_activation), first_slope=first_slope,
            block_k=min(max(triton.next_power_of_2(inputs), 16), most // 2),
            num_warps=8 if block_h * block_w * block_n >= 128 * 128 else 4, num_stages=3,
        )  # fmt: skip
    return [out, partial] if statistics else [out]


def _tiles(size: list[int], positions: int, most_w: int, others: int) -> tuple[int, int, int, int]:
    """Return height and width of a tile of so many positions, tiles in a row, and tiles; `most_w` limits the width.

    Tiles are smaller, down to 16 positions, where they would not fill the GPU; `others` is the programs of a tile.
    """
    while True:
        block_w = min(triton.next_power_of_2(size[1]), most_w, positions)
        block_h = max(min(triton.next_power_of_2(size[0]), positions // block_w), triton.cdiv(16, block_w))
        tiles_w = triton.cdiv(size[1], block_w)
        tiles = tiles_w * triton.cdiv(size[0], block_h)
        if positions <= 16 or tiles * others >= PROGRAMS:
            return block_h, block_w, tiles_w, tiles
        positions //= 2
