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
    sums, row, column, channel, real, bias, residual, alpha, beta, out, out_n, out_c, out_h, out_w,
    has_bias: tl.constexpr, has_residual: tl.constexpr, activation: tl.constexpr, slope: tl.constexpr, outputs,
):  # fmt: skip
    """Add bias and residual to sums [positions, channels], and store the activation."""
    is_channel = channel < outputs
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
    tl.store(out + at, activate(sums, activation, slope, a, b).to(out.dtype.element_ty), mask=real)


@triton.jit
def _products(
    x, weight, bias, residual, alpha, beta, out, height, width, x_n, x_c, x_h, x_w,
    size_h, size_w, out_n, out_c, out_h, out_w, stride_h, stride_w, before_h, before_w, dilation_h, dilation_w, tiles_w,
    blocks: tl.constexpr, inputs: tl.constexpr, outputs: tl.constexpr, taps: tl.constexpr, kernel_w: tl.constexpr,
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
        here = tl.load(x + at, mask=inside[:, None] & (input_ < inputs)[None, :], other=0.0)
        of = ((block * taps + tap) * inputs + input_)[:, None] * outputs + output[None, :]
        real = (input_ < inputs)[:, None] & (output < outputs)[None, :]
        sums = tl.dot(here, tl.load(weight + of, mask=real, other=0.0), sums, input_precision="ieee")
    real = ((row < size_h) & (column < size_w))[:, None] & (output < outputs)[None, :]
    _finish(
        sums, row, column, block * outputs + output, real, bias, residual, alpha, beta, out, out_n, out_c, out_h, out_w,
        has_bias, has_residual, activation, slope, blocks * outputs,
    )  # fmt: skip


@triton.jit
def _depthwise(
    x, weight, bias, residual, alpha, beta, out, height, width, x_n, x_c, x_h, x_w,
    size_h, size_w, out_n, out_c, out_h, out_w, stride_h, stride_w, before_h, before_w, dilation_h, dilation_w, tiles_w,
    channels, taps: tl.constexpr, kernel_w: tl.constexpr,
    has_bias: tl.constexpr, has_residual: tl.constexpr, activation: tl.constexpr, slope: tl.constexpr,
    block_h: tl.constexpr, block_w: tl.constexpr, block_n: tl.constexpr,
):  # fmt: skip
    """Compute a tile of positions and channels, without products of matrices."""
    across = tl.cdiv(channels, block_n)
    channel = tl.program_id(0) % across * block_n + tl.arange(0, block_n)
    row, column = _positions(tl.program_id(0) // across, tiles_w, block_h, block_w)
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
    real = ((row < size_h) & (column < size_w))[:, None] & is_channel[None, :]
    _finish(
        sums, row, column, channel, real, bias, residual, alpha, beta, out, out_n, out_c, out_h, out_w,
        has_bias, has_residual, activation, slope, channels,
    )  # fmt: skip


@triton_op("models::convolution", mutates_args=())
def convolution(
    x: Tensor, packed: Tensor, bias: Tensor | None, residual: Tensor | None, alpha: Tensor | None, beta: Tensor | None,
    kernel: list[int], stride: list[int], before: list[int], dilation: list[int], size: list[int],
    activation: str, slope: float,
) -> Tensor:  # fmt: skip
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
    given = (
        *(packed if each is None else each for each in (packed, bias, residual, alpha, beta)), out,
        *shape, *steps, *size, *out_steps, *stride, *before, *dilation,
    )  # fmt: skip
    options = {
        "taps": taps, "kernel_w": kernel[1], "has_bias": bias is not None, "has_residual": residual is not None,
        "activation": ACTIVATIONS.index(activation), "slope": slope,
    }  # fmt: skip
    if inputs == outputs == 1:  # depthwise
        block_n, most = (64, 64) if innermost else (1, 1024)
        across = triton.cdiv(blocks, block_n)
        block_h, block_w, tiles_w, tiles = _tiles(size, most, most, across * n)
        wrap_triton(_depthwise)[(tiles * across, n)](
            x, *given, tiles_w, blocks, **options, block_h=block_h, block_w=block_w, block_n=block_n, num_warps=4,
        )  # fmt: skip
        return out
    wide = 64 if x.dtype == torch.float32 else 128
    block_n = min(max(triton.next_power_of_2(outputs), 16), wide)
    block_k = min(max(triton.next_power_of_2(inputs), 16), wide // 2)
    across = blocks * triton.cdiv(outputs, block_n)
    block_h, block_w, tiles_w, tiles = _tiles(size, wide, 16 if innermost and taps > 1 else wide, across * n)
    wrap_triton(_products)[(tiles * across, n)](
        x, *given, tiles_w, blocks=blocks, inputs=inputs, outputs=outputs, **options,
        block_h=block_h, block_w=block_w, block_n=block_n, block_k=block_k,
        num_warps=8 if block_h * block_w * block_n >= 128 * 128 else 4, num_stages=3,
    )  # fmt: skip
    return out


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
