"""Triton kernels of `convolution.py`: for groups and 1×1 kernels, small 3×3 ones by rows, and depthwise ones."""

import math

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor
from torch.library import triton_op, wrap_triton

from models.kernels.activations import ACTIVATIONS
from models.kernels.activations_triton import activate
from models.kernels.convolution import goes_by_rows
from models.kernels.fused_norm import channels_last, in_format_of

PROGRAMS = 264  # at least, where there are so many tiles: two for each multiprocessor of an H100


@triton.jit
def _positions(tile, tiles_w, block_h: tl.constexpr, block_w: tl.constexpr):
    """Return row and column of each position of a tile, so that neighbours share what they read."""
    within = tl.arange(0, block_h * block_w)
    return tile // tiles_w * block_h + within // block_w, tile % tiles_w * block_w + within % block_w


@triton.jit
def _store(
    sums, row, column, channel, real, bias, residual, alpha, beta, out, out_n, out_c, out_h, out_w,
    has_bias: tl.constexpr, has_residual: tl.constexpr, activation: tl.constexpr, slope: tl.constexpr, is_channel,
):  # fmt: skip
    """Apply bias, residual and activation to `sums` [positions, channels]; store and return the result (fp32)."""
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
    rounded = activate(sums, activation, slope, a, b).to(out.dtype.element_ty)
    tl.store(out + at, rounded, mask=real)
    return rounded.to(tl.float32)


@triton.jit
def _moments(written, real, is_inside):
    """Return the count, and the mean and squared differences from it of each channel of `written`."""
    count = tl.sum(is_inside.to(tl.float32), 0)
    mean = tl.sum(tl.where(real, written, 0.0), 0) / tl.maximum(count, 1.0)
    off = tl.where(real, written - mean[None, :], 0.0)
    return count, mean, tl.sum(off * off, 0)


@triton.jit
def _leave(partial, tile, tiles, channel, channels, is_channel, count, mean, squares):
    """Store the statistics of a tile in the layout of `norm_table`'s `partial`."""
    to = partial + (tl.program_id(1).to(tl.int64) * tiles + tile) * 3 * channels + channel
    tl.store(to, mean * 0.0 + count, mask=is_channel)
    tl.store(to + channels, mean, mask=is_channel)
    tl.store(to + 2 * channels, squares, mask=is_channel)


@triton.jit
def _normalised(
    here, given, table, channel, channels, is_channel, first_alpha, first_beta,
    first_activation: tl.constexpr, first_slope: tl.constexpr,
):  # fmt: skip
    """Return the activation of the norm of `here` [positions, channels], and zeros where padding is."""
    of = table + tl.program_id(1) * 5 * channels + channel
    scale = tl.load(of + 2 * channels, mask=is_channel, other=0.0)
    offset = tl.load(of + 4 * channels, mask=is_channel, other=0.0)
    a = 0.0
    b = 0.0
    if first_activation == 5:
        a = tl.load(first_alpha + channel, mask=is_channel, other=0.0)[None, :]
        b = tl.load(first_beta + channel, mask=is_channel, other=0.0)[None, :]
    first = here.to(tl.float32) * scale[None, :] + offset[None, :]
    first = activate(first, first_activation, first_slope, a, b)
    return tl.where(given, first, 0.0).to(here.dtype)


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
            here = _normalised(
                here, given, table, block * inputs + input_, blocks * inputs, input_ < inputs,
                first_alpha, first_beta, first_activation, first_slope,
            )  # fmt: skip
        of = ((block * taps + tap) * inputs + input_)[:, None] * outputs + output[None, :]
        real = (input_ < inputs)[:, None] & (output < outputs)[None, :]
        sums = tl.dot(here, tl.load(weight + of, mask=real, other=0.0), sums, input_precision="ieee")
    is_inside = (row < size_h) & (column < size_w)
    real = is_inside[:, None] & (output < outputs)[None, :]
    channel, is_channel = block * outputs + output, output < outputs
    written = _store(
        sums, row, column, channel, real, bias, residual, alpha, beta, out, out_n, out_c, out_h, out_w,
        has_bias, has_residual, activation, slope, is_channel,
    )  # fmt: skip
    if statistics:  # of what is stored, as a norm would read it
        count, mean, squares = _moments(written, real, is_inside)
        _leave(partial, tile, tiles, channel, blocks * outputs, is_channel, count, mean, squares)


@triton.jit
def _tap(weight, block, place: tl.constexpr, inputs: tl.constexpr, outputs: tl.constexpr, input_, output):
    """Return the weights [inputs, outputs] of one of the nine taps."""
    of = ((block * 9 + place) * inputs + input_)[:, None] * outputs + output[None, :]
    return tl.load(weight + of, mask=(input_ < inputs)[:, None] & (output < outputs)[None, :], other=0.0)


@triton.jit
def _rows(
    x, weight, bias, residual, alpha, beta, out, partial, height, width, x_n, x_c, x_h, x_w,
    size_h, size_w, out_n, out_c, out_h, out_w, stride_h, stride_w, before_h, before_w, dilation_h, dilation_w, tiles_w,
    tiles,
    blocks: tl.constexpr, inputs: tl.constexpr, outputs: tl.constexpr, taps: tl.constexpr, kernel_w: tl.constexpr,
    has_bias: tl.constexpr, has_residual: tl.constexpr, activation: tl.constexpr, slope: tl.constexpr,
    block_h: tl.constexpr, block_w: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr,
):  # fmt: skip
    """Compute a tile of one block, 3×3 and of row stride 1, row by row.

    Each row of the input is loaded once for the three rows of the result that need it. `_products` loads it three
    times, and with few channels those loads are what it spends its time on.
    """
    tile, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    input_, output = tl.arange(0, block_k), tl.arange(0, block_n)
    column = tile % tiles_w * block_w + tl.arange(0, block_w)
    channel, is_channel = block * outputs + output, output < outputs
    batch = tl.program_id(1).to(tl.int64) * x_n + block.to(tl.int64) * inputs * x_c
    w0 = _tap(weight, block, 0, inputs, outputs, input_, output)
    w1 = _tap(weight, block, 1, inputs, outputs, input_, output)
    w2 = _tap(weight, block, 2, inputs, outputs, input_, output)
    w3 = _tap(weight, block, 3, inputs, outputs, input_, output)
    w4 = _tap(weight, block, 4, inputs, outputs, input_, output)
    w5 = _tap(weight, block, 5, inputs, outputs, input_, output)
    w6 = _tap(weight, block, 6, inputs, outputs, input_, output)
    w7 = _tap(weight, block, 7, inputs, outputs, input_, output)
    w8 = _tap(weight, block, 8, inputs, outputs, input_, output)
    above = tl.zeros([block_w, block_n], tl.float32)
    middle = tl.zeros([block_w, block_n], tl.float32)
    for step in range(block_h + 2):
        row = tile // tiles_w * block_h + step - 2  # the row of the result that this row of `x` completes
        y = row + 2 - before_h
        below = tl.zeros([block_w, block_n], tl.float32)
        for shift in tl.static_range(3):
            z = column * stride_w - before_w + shift * dilation_w
            inside = (y >= 0) & (y < height) & (z >= 0) & (z < width)
            at = batch + (y.to(tl.int64) * x_h + z.to(tl.int64) * x_w)[:, None] + (input_.to(tl.int64) * x_c)[None, :]
            given = inside[:, None] & (input_ < inputs)[None, :]
            here = tl.load(x + at, mask=given, other=0.0)
            above = tl.dot(here, w6 if shift == 0 else (w7 if shift == 1 else w8), above)
            middle = tl.dot(here, w3 if shift == 0 else (w4 if shift == 1 else w5), middle)
            below = tl.dot(here, w0 if shift == 0 else (w1 if shift == 1 else w2), below)
        is_inside = (step >= 2) & (row < size_h) & (column < size_w)
        real = is_inside[:, None] & is_channel[None, :]
        rows = tl.zeros([block_w], tl.int32) + row
        _store(
            above, rows, column, channel, real, bias, residual, alpha, beta, out, out_n, out_c, out_h, out_w,
            has_bias, has_residual, activation, slope, is_channel,
        )  # fmt: skip
        above = middle
        middle = below


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
    written = _store(
        sums, row, column, channel, real, bias, residual, alpha, beta, out, out_n, out_c, out_h, out_w,
        has_bias, has_residual, activation, slope, is_channel,
    )  # fmt: skip
    if statistics:
        count, mean, squares = _moments(written, real, is_inside)
        _leave(partial, tile, tiles, channel, channels, is_channel, count, mean, squares)


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
    by_rows = bool(innermost) and x.dtype != torch.float32 and goes_by_rows(packed, kernel, stride, dilation, size)
    by_rows = by_rows and table is None and not statistics
    if is_depthwise:
        block_n, most = (64, 64) if innermost else (1, 1024)
        across = triton.cdiv(blocks, block_n)
        most_w = most
    else:
        most = 64 if x.dtype == torch.float32 else 128
        # What a norm costs is the less, the more results share it.
        widest = 2 * most if table is not None and taps == 1 else most
        block_n = min(max(triton.next_power_of_2(outputs), 16), widest)
        across = blocks * triton.cdiv(outputs, block_n)
        most_w = 16 if innermost and taps > 1 and size[0] > 1 else most
    block_h, block_w, tiles_w, tiles = _tiles(size, most, most_w, across * n)
    if by_rows:
        block_h, block_w = 64, most if size[1] > most // 2 else most // 2
        tiles_w = triton.cdiv(size[1], block_w)
        while block_h > 8 and tiles_w * triton.cdiv(size[0], block_h) * across * n < PROGRAMS // 2:
            block_h //= 2
        tiles = tiles_w * triton.cdiv(size[0], block_h)
    partial = x.new_empty((n, tiles, 3, c), dtype=torch.float32) if statistics else out
    given = (
        *(packed if each is None else each for each in (packed, bias, residual, alpha, beta)), out, partial,
        *shape, *steps, *size, *out_steps, *stride, *before, *dilation, tiles_w, tiles,
    )  # fmt: skip
    options = {
        "taps": taps, "kernel_w": kernel[1], "has_bias": bias is not None, "has_residual": residual is not None,
        "activation": ACTIVATIONS.index(activation), "slope": slope,
        "block_h": block_h, "block_w": block_w, "block_n": block_n,
    }  # fmt: skip
    if is_depthwise:
        wrap_triton(_depthwise)[(tiles * across, n)](x, *given, blocks, **options, statistics=statistics, num_warps=4)
    elif by_rows:
        wrap_triton(_rows)[(tiles * across, n)](
            x, *given, blocks=blocks, inputs=inputs, outputs=outputs, **options,
            block_k=max(triton.next_power_of_2(inputs), 16), num_warps=block_w // 16, num_stages=3,
        )  # fmt: skip
    else:
        first = (packed if each is None else each for each in (table, first_alpha, first_beta))
        wrap_triton(_products)[(tiles * across, n)](
            x, *given, *first, blocks=blocks, inputs=inputs, outputs=outputs, statistics=statistics, **options,
            has_table=table is not None, first_activation=ACTIVATIONS.index(first_activation), first_slope=first_slope,
            block_k=min(max(triton.next_power_of_2(inputs), 16), most // 2),
            num_warps=8 if block_h * block_w * block_n >= 128 * (256 if statistics else 128) else 4, num_stages=3,
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
