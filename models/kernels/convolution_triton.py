"""Triton kernels for convolutions: 3×3 by rows, along sequences, depthwise and the rest; and which of them runs."""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

from models.kernels.activations import ACTIVATIONS
from models.kernels.convolution_1x1_triton import (
    MULTIPROCESSORS,
    PROGRAMS,
    convolution_1x1,
    convolution_1x1_of_few,
    tile_of,
    tile_of_few,
)
from models.kernels.convolution_kinds import (
    STATISTICS,
    adds_shortcut,
    goes_along,
    goes_by_rows,
    is_pointwise,
    shares_norms,
)
from models.kernels.convolution_parts_triton import (
    leave,
    moments,
    norm_of,
    normalised,
    offsets,
    positions_of,
    store,
)
from models.kernels.forms import alignment, channels_last, in_format_of

PIECES = 16  # of a sequence in one program: the rows of one product


@triton.jit
def _convolution_taps(
    x, weight, bias, residual, alpha, beta, out, height, width, x_n, x_c, x_h, x_w,
    size_h, size_w, out_n, out_c, out_h, out_w, stride_h, stride_w, before_h, before_w, dilation_h, dilation_w,
    weight_n, tiles_w,
    partial, tiles, statistics: tl.constexpr,
    aligned: tl.constexpr, blocks: tl.constexpr, inputs: tl.constexpr, outputs: tl.constexpr, taps: tl.constexpr,
    kernel_w: tl.constexpr,
    has_bias: tl.constexpr, has_residual: tl.constexpr, activation: tl.constexpr, slope: tl.constexpr,
    block_h: tl.constexpr, block_w: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr,
):  # fmt: skip
    """Compute a tile (positions × outputs) of one block. Consecutive programs read the same positions, from L2."""
    if aligned > 1:  # as in `convolution_1x1`
        out_c, size_w = out_c // aligned * aligned, size_w // aligned * aligned
    across: tl.constexpr = (outputs + block_n - 1) // block_n
    steps: tl.constexpr = (inputs + block_k - 1) // block_k
    tile, place = tl.program_id(0) // (blocks * across), tl.program_id(0) % (blocks * across)
    block = place // across
    output = place % across * block_n + tl.arange(0, block_n)
    row, column = positions_of(tile, tiles_w, block_h, block_w)
    batch = tl.program_id(1).to(tl.int64) * x_n + block.to(tl.int64) * inputs * x_c
    weight += tl.program_id(1).to(tl.int64) * weight_n
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
    channel, is_channel = block * outputs + output, (output < outputs)[None, :]
    is_inside = ((row < size_h) & (column < size_w))[:, None]
    at = offsets(row, column, channel, out_n, out_c, out_h, out_w)
    written = store(
        sums, at, channel[None, :], is_inside & is_channel, is_channel, bias, residual, alpha, beta, out,
        has_bias, has_residual, activation, slope, statistics,
    )  # fmt: skip
    if statistics:
        rows = tl.minimum(size_h - tile // tiles_w * block_h, block_h)
        count = tl.minimum(size_w - tile % tiles_w * block_w, block_w) * rows * 1.0
        mean, squares = moments(written, is_inside, count, 0, False)
        leave(partial, tile, tiles, channel, blocks * outputs, output < outputs, count, mean, squares)


@triton.jit
def _tap(weight, block, place: tl.constexpr, inputs: tl.constexpr, outputs: tl.constexpr, input_, output):
    """Return the weights [inputs, outputs] of one of the nine taps."""
    of = ((block * 9 + place) * inputs + input_)[:, None] * outputs + output[None, :]
    return tl.load(weight + of, mask=(input_ < inputs)[:, None] & (output < outputs)[None, :], other=0.0)


@triton.jit
def _convolution_rows(
    x, weight, bias, residual, alpha, beta, out, height, width, x_n, x_c, x_h, x_w,
    size_h, size_w, out_n, out_c, out_h, out_w, stride_h, stride_w, before_h, before_w, dilation_h, dilation_w,
    weight_n, tiles_w,
    partial, tiles, statistics: tl.constexpr,
    blocks: tl.constexpr, inputs: tl.constexpr, outputs: tl.constexpr, taps: tl.constexpr, kernel_w: tl.constexpr,
    has_bias: tl.constexpr, has_residual: tl.constexpr, activation: tl.constexpr, slope: tl.constexpr,
    block_h: tl.constexpr, block_w: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr,
):  # fmt: skip
    """Compute a tile of one block, 3×3 and of row stride 1, row by row.

    Each row of the input is loaded once for the three rows of the result that need it. `_convolution_taps` loads it
    three times, and with few channels those loads are what it spends its time on. Sums for the statistics are
    of differences from the tile's first row, in each column; columns are combined at the end.
    """
    tile, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    input_, output = tl.arange(0, block_k), tl.arange(0, block_n)
    column = tile % tiles_w * block_w + tl.arange(0, block_w)
    channel, is_channel = block * outputs + output, (output < outputs)[None, :]
    batch = tl.program_id(1).to(tl.int64) * x_n + block.to(tl.int64) * inputs * x_c
    weight += tl.program_id(1).to(tl.int64) * weight_n
    origin = tl.zeros([block_w, block_n], tl.float32)
    totals = tl.zeros([block_w, block_n], tl.float32)
    squares = tl.zeros([block_w, block_n], tl.float32)
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
        real = ((step >= 2) & (row < size_h) & (column < size_w))[:, None] & is_channel
        at = offsets(tl.zeros([block_w], tl.int32) + row, column, channel, out_n, out_c, out_h, out_w)
        written = store(
            above, at, channel[None, :], real, is_channel, bias, residual, alpha, beta, out,
            has_bias, has_residual, activation, slope, statistics,
        )  # fmt: skip
        if statistics:
            origin = tl.where(step == 2, written, origin)
            off = tl.where(real, written - origin, 0.0)
            totals += off
            squares += off * off
        above = middle
        middle = below
    if statistics:
        rows = tl.minimum(size_h - tile // tiles_w * block_h, block_h) * 1.0
        is_inside = (column < size_w)[:, None]
        count = tl.minimum(size_w - tile % tiles_w * block_w, block_w) * rows
        means = tl.where(is_inside, origin + totals / rows, 0.0)
        mean = tl.sum(means, 0) * rows / count
        spread = tl.where(is_inside, means - mean[None, :], 0.0)
        squares = tl.maximum(squares - totals * totals / rows, 0.0) + spread * spread * rows
        of = output < outputs
        leave(partial, tile, tiles, channel, blocks * outputs, of, count, mean, tl.sum(squares, 0))


@triton.jit
def _convolution_along(
    x, weight, bias, residual, alpha, beta, out, partial, table, first_alpha, first_beta,
    length, size, before, dilation, weight_n, tiles,
    blocks: tl.constexpr, inputs: tl.constexpr, outputs: tl.constexpr, taps: tl.constexpr, rows: tl.constexpr,
    has_table: tl.constexpr, first_activation: tl.constexpr, first_slope: tl.constexpr, statistics: tl.constexpr,
    has_bias: tl.constexpr, has_residual: tl.constexpr, activation: tl.constexpr, slope: tl.constexpr,
    block_w: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr,
):  # fmt: skip
    """Compute one block of pieces of a sequence, each of `rows` results that are `dilation` positions apart.

    A step loads one position of each piece, for all results that need it: there is a sum for each tap, and the oldest
    one is complete. Neighbouring pieces are those of the same stretch, one position apart, then those of the next one.
    Statistics are as in `_convolution_rows`.
    """
    tile, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    batch = tl.program_id(1).to(tl.int64)
    piece = tile * block_w + tl.arange(0, block_w)
    start = piece // dilation * (rows * dilation) + piece % dilation
    input_, output = tl.arange(0, block_k), tl.arange(0, block_n)
    is_input, is_output = (input_ < inputs)[None, :], (output < outputs)[None, :]
    channel = block * outputs + output
    weight += batch * weight_n
    x_at = x + batch * length * (blocks * inputs) + (block * inputs + input_)[None, :]
    zeros = tl.zeros([block_w, block_n], tl.float32)
    weights = ()
    sums = ()
    for tap in tl.static_range(taps):
        of = ((block * taps + tap) * inputs + input_)[:, None] * outputs + output[None, :]
        by = tl.load(weight + of, mask=(input_ < inputs)[:, None] & is_output, other=0.0)
        weights = weights + (by,)  # noqa: RUF005 - Triton has no starred items
        sums = sums + (zeros,)  # noqa: RUF005
    scale, offset, a, b = 1.0, 0.0, 0.0, 0.0
    if has_table:
        of_input = (block * inputs + input_)[None, :]
        scale, offset, a, b = norm_of(
            table, of_input, blocks * inputs, is_input, first_alpha, first_beta, first_activation
        )
    origin = zeros
    totals = zeros
    squares = zeros
    for step in range(rows + taps - 1):
        position = start + step * dilation - before
        given = ((position >= 0) & (position < length))[:, None] & is_input
        here = tl.load(x_at + (position.to(tl.int64) * (blocks * inputs))[:, None], mask=given, other=0.0)
        if has_table:
            here = normalised(here, given, scale, offset, a, b, first_activation, first_slope)
        now = ()
        for tap in tl.static_range(taps):
            now = now + (tl.dot(here, weights[tap], zeros if tap == 0 else sums[tap - 1]),)  # noqa: RUF005
        sums = now
        place = start + (step - taps + 1) * dilation
        real = ((step >= taps - 1) & (place < size))[:, None] & is_output
        at = (batch * size + place.to(tl.int64))[:, None] * (blocks * outputs) + channel[None, :]
        written = store(
            sums[taps - 1], at, channel[None, :], real, is_output, bias, residual, alpha, beta, out,
            has_bias, has_residual, activation, slope, statistics,
        )  # fmt: skip
        if statistics:
            origin = tl.where(step == taps - 1, written, origin)
            off = tl.where(real, written - origin, 0.0)
            totals += off
            squares += off * off
    if statistics:
        counts = tl.minimum(tl.maximum((size - start + dilation - 1) // dilation, 0), rows) * 1.0
        count, each = tl.sum(counts, 0), tl.maximum(counts, 1.0)[:, None]
        means = tl.where(counts[:, None] > 0, origin + totals / each, 0.0)
        mean = tl.sum(means * counts[:, None], 0) / tl.maximum(count, 1.0)
        squares = tl.maximum(squares - totals * totals / each, 0.0)
        squares += (means - mean[None, :]) * (means - mean[None, :]) * counts[:, None]
        leave(partial, tile, tiles, channel, blocks * outputs, output < outputs, count, mean, tl.sum(squares, 0))


@triton.jit
def _convolution_depthwise(
    x, weight, bias, residual, alpha, beta, out, height, width, x_n, x_c, x_h, x_w,
    size_h, size_w, out_n, out_c, out_h, out_w, stride_h, stride_w, before_h, before_w, dilation_h, dilation_w,
    weight_n, tiles_w,
    channels, taps: tl.constexpr, kernel_w: tl.constexpr,
    has_bias: tl.constexpr, has_residual: tl.constexpr, activation: tl.constexpr, slope: tl.constexpr,
    block_h: tl.constexpr, block_w: tl.constexpr, block_n: tl.constexpr,
):  # fmt: skip
    """Compute a tile of positions and channels, without products of matrices."""
    across = tl.cdiv(channels, block_n)
    channel = tl.program_id(0) % across * block_n + tl.arange(0, block_n)
    tile = tl.program_id(0) // across
    row, column = positions_of(tile, tiles_w, block_h, block_w)
    is_channel = channel < channels
    batch = tl.program_id(1).to(tl.int64) * x_n
    weight += tl.program_id(1).to(tl.int64) * weight_n
    sums = tl.zeros([block_h * block_w, block_n], tl.float32)
    for tap in range(taps):
        y = row * stride_h - before_h + tap // kernel_w * dilation_h
        z = column * stride_w - before_w + tap % kernel_w * dilation_w
        inside = (y >= 0) & (y < height) & (z >= 0) & (z < width)
        at = batch + (y.to(tl.int64) * x_h + z.to(tl.int64) * x_w)[:, None] + (channel.to(tl.int64) * x_c)[None, :]
        here = tl.load(x + at, mask=inside[:, None] & is_channel[None, :], other=0.0).to(tl.float32)
        sums += here * tl.load(weight + channel * taps + tap, mask=is_channel, other=0.0).to(tl.float32)[None, :]
    real = ((row < size_h) & (column < size_w))[:, None] & is_channel[None, :]
    at = offsets(row, column, channel, out_n, out_c, out_h, out_w)
    store(
        sums, at, channel[None, :], real, is_channel[None, :], bias, residual, alpha, beta, out,
        has_bias, has_residual, activation, slope,
    )  # fmt: skip


@triton_op("models::convolution", mutates_args=())
def convolution(
    x: Tensor, packed: Tensor, bias: Tensor | None, residual: Tensor | None, alpha: Tensor | None, beta: Tensor | None,
    kernel: list[int], stride: list[int], before: list[int], dilation: list[int], size: list[int],
    activation: str, slope: float, table: Tensor | None = None, first_activation: str = "none",
    first_slope: float = 0.0, first_alpha: Tensor | None = None, first_beta: Tensor | None = None,
    statistics: str = "none", shortcut: Tensor | None = None,
) -> list[Tensor]:  # fmt: skip
    """Return what `convolution.convolution` documents."""
    blocks, taps, inputs, outputs = packed.shape[-4:]
    if channels_last(x) is None:
        x = x.contiguous()
    geometry = (kernel, stride, before, dilation, size)
    leaves = statistics != "none"
    if (leaves and not shares_norms(x, packed, *geometry)[1]) or (shortcut is not None and not channels_last(x)):
        x = x.movedim(1, -1).contiguous().movedim(-1, 1)  # a compiler may have changed the layout since it was traced
    can_normalise, can_leave = shares_norms(x, packed, *geometry)
    if (table is not None and not can_normalise) or (leaves and not can_leave):
        raise ValueError("this convolution cannot share the work of a norm: ask shares_norms() before you pass a table")
    if shortcut is not None and not adds_shortcut(x, packed, *geometry, shortcut.shape):
        raise ValueError("this convolution adds no such shortcut: ask adds_shortcut() before you pass one")
    n, c, innermost = x.shape[0], blocks * outputs, channels_last(x)
    positions = math.prod(size)
    rows = [math.prod(size[dim + 1 :]) * (c if innermost else 1) for dim in range(len(size))]
    # No view of other memory: in a graph, a write to one would copy.
    out = x.new_empty_strided((n, c, *size), (c * positions, 1 if innermost else positions, *rows))
    residual = None if residual is None else in_format_of(out, residual)
    given = (*(packed if each is None else each for each in (packed, bias, residual, alpha, beta)), out)
    options = {
        "has_bias": bias is not None, "has_residual": residual is not None,
        "activation": ACTIVATIONS.index(activation), "slope": slope,
    }  # fmt: skip
    is_wide, how = x.dtype == torch.float32, STATISTICS.index(statistics)
    weight_n = packed.stride(0) if packed.dim() == 5 else 0
    if is_pointwise(x, packed, stride, before, size):
        added = None if shortcut is None else in_format_of(out, shortcut)
        first = tuple(packed if each is None else each for each in (table, first_alpha, first_beta, added))
        factor = 0 if shortcut is None else size[0] // shortcut.shape[2]
        shuffled = 0 if shortcut is None else shortcut.shape[1] // factor**2
        options |= {"factor": factor, "width": size[-1] if factor > 1 else 1, "shuffled_channels": shuffled}
        norm = {"first_activation": ACTIVATIONS.index(first_activation), "first_slope": first_slope}
        options |= norm | {"has_table": table is not None, "statistics": how, "inputs": inputs, "outputs": outputs}
        sizes, few = (positions, inputs, outputs, n), {}
        if innermost and not is_wide:
            few = tile_of_few(*sizes, table is not None, leaves, shuffled)
        tile = few or tile_of(*sizes, is_wide, table is not None)
        if factor and shuffled != outputs and tile["block_n"] % shuffled:
            tile["block_n"] = math.gcd(tile["block_n"], shuffled)  # what a tile reads of the shortcut is in one piece
        if few:
            across, tiles = triton.cdiv(outputs, few["block_n"]), triton.cdiv(positions, few["block_p"])
            parts = max(MULTIPROCESSORS * few.pop("programs") // (across * n), 1)
            partial = x.new_empty((n, parts, 3, c), dtype=torch.float32) if leaves else out
            wrap_triton(convolution_1x1_of_few)[(parts * across, n)](
                x, *given, partial, *first, positions, tiles, parts, weight_n,
                whole=positions % few["block_p"] == 0, **few, **options,
            )  # fmt: skip
            return [out, partial] if leaves else [out]
        tiles = triton.cdiv(positions, tile["block_p"])
        partial = x.new_empty((n, tiles, 3, c), dtype=torch.float32) if leaves else out
        wrap_triton(convolution_1x1)[(tiles * triton.cdiv(outputs, tile["block_n"]), n)](
            x, *given, partial, *first, positions, tiles, weight_n, innermost=bool(innermost),
            aligned=alignment(positions), whole=positions % tile["block_p"] == 0, **tile, **options,
        )  # fmt: skip
        return [out, partial] if leaves else [out]
    if goes_along(x, packed, kernel, stride, size):
        rows = 64
        while rows > 8 and triton.cdiv(size[-1], rows * PIECES) * blocks * n < 6 * MULTIPROCESSORS:
            rows //= 2
        tiles = triton.cdiv(triton.cdiv(size[-1], rows * dilation[-1]) * dilation[-1], PIECES)
        partial = x.new_empty((n, tiles, 3, c), dtype=torch.float32) if leaves else out
        first = (packed if each is None else each for each in (table, first_alpha, first_beta))
        wrap_triton(_convolution_along)[(tiles * blocks, n)](
            x, *given, partial, *first, x.shape[-1], size[-1], before[-1], dilation[-1], weight_n, tiles,
            blocks=blocks, inputs=inputs, outputs=outputs, taps=taps, rows=rows, has_table=table is not None,
            first_activation=ACTIVATIONS.index(first_activation), first_slope=first_slope, statistics=how,
            **options, block_w=PIECES, block_n=16, block_k=16, num_warps=1, num_stages=4,
        )  # fmt: skip
        return [out, partial] if leaves else [out]
    shape, steps, out_steps = list(x.shape[2:]), list(x.stride()), list(out.stride())
    if len(kernel) == 1:
        kernel, stride, dilation, size, shape = ([1, *each] for each in (kernel, stride, dilation, size, shape))
        before = [0, *before]
        steps.insert(2, 0)
        out_steps.insert(2, 0)
    given = (x, *given, *shape, *steps, *size, *out_steps, *stride, *before, *dilation, weight_n)
    options |= {"taps": taps, "kernel_w": kernel[1]}
    if inputs == outputs == 1:
        block_n, most = (64, 64) if innermost else (1, 1024)
        across = triton.cdiv(blocks, block_n)
        block_h, block_w, tiles_w, tiles = _tiles(size, most, most, across * n)
        wrap_triton(_convolution_depthwise)[(tiles * across, n)](
            *given, tiles_w, blocks, **options, block_h=block_h, block_w=block_w, block_n=block_n, num_warps=4
        )
        return [out]
    options |= {"blocks": blocks, "inputs": inputs, "outputs": outputs}
    block_k, block_n = (max(triton.next_power_of_2(each), 16) for each in (inputs, outputs))
    if goes_by_rows(x, packed, kernel, stride, dilation, size):
        warps = max(block_k, block_n) // 16
        block_h, block_w = 64, 32 * warps
        tiles_w = triton.cdiv(size[1], block_w)
        while block_h > 8 and tiles_w * triton.cdiv(size[0], block_h) * blocks * n < 4 * PROGRAMS:
            block_h //= 2
        tiles = tiles_w * triton.cdiv(size[0], block_h)
        partial = x.new_empty((n, tiles, 3, c), dtype=torch.float32) if leaves else out
        wrap_triton(_convolution_rows)[(tiles * blocks, n)](
            *given, tiles_w, partial, tiles, statistics=how, **options,
            block_h=block_h, block_w=block_w, block_n=block_n, block_k=block_k, num_warps=warps, num_stages=3,
        )  # fmt: skip
        return [out, partial] if leaves else [out]
    most = 64 if is_wide else 128
    block_n = min(block_n, most)
    across = blocks * triton.cdiv(outputs, block_n)
    block_h, block_w, tiles_w, tiles = _tiles(size, most, 16 if innermost and size[0] > 1 else most, across * n)
    partial = x.new_empty((n, tiles, 3, c), dtype=torch.float32) if leaves else out
    wrap_triton(_convolution_taps)[(tiles * across, n)](
        *given, tiles_w, partial, tiles, statistics=how, aligned=1 if innermost else alignment(size[1]), **options,
        block_h=block_h, block_w=block_w, block_n=block_n, block_k=min(block_k, most // 2),
        num_warps=8 if block_h * block_w * block_n >= 128 * 128 else 4, num_stages=3,
    )  # fmt: skip
    return [out, partial] if leaves else [out]


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
