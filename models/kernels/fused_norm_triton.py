"""Triton kernels of `fused_norm.py`: one where a group fits into registers, else three.

Of the three, the first reads the tensor and leaves mean and sum of squared differences of each channel over a part of
the positions, in enough parts to fill the GPU. The second combines those of a group (Chan's formula), and the third
reads again and writes the result; convolutions can do the work of the first and third (`convolution.py`). All numbers
are fp32 and relative to the group's first element, so that a mean far larger than the deviation costs no digits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

from models.kernels.activations import ACTIVATIONS
from models.kernels.activations_triton import activate, factors_of
from models.kernels.forms import MOST_IN_REGISTERS, alignment, channels_last, in_format_of

PROGRAMS = 1056  # that share the statistics: eight for each multiprocessor of an H100
TILE = 4096  # elements of a program that sums, 32 for each thread: four loads of 16 bytes in half precision
MOST_CHANNELS = 64  # of a tile with channels last: 128 bytes in half precision, a line of the cache
LEAST_CHANNELS = 16  # 32 bytes, the least that memory transfers


@triton.jit
def _norm_in_registers(
    x, bias, added, gain, shift, alpha, beta, summed, out,
    units, inner, positions, stride_n, stride_unit, stride_inner, stride_position, channel_unit, channel_inner,
    has_bias: tl.constexpr, has_added: tl.constexpr, eps: tl.constexpr, about_mean: tl.constexpr,
    subtract_mean: tl.constexpr, activation: tl.constexpr, slope: tl.constexpr,
    block_units: tl.constexpr, block_inner: tl.constexpr, block_positions: tl.constexpr,
):  # fmt: skip
    """Normalise `block_units` units of inner·positions elements each; a unit has its own statistics.

    A unit is a group of `inner` channels with all positions, or all channels (`inner`) at one position.
    """
    unit = tl.program_id(0) * block_units + tl.arange(0, block_units)[:, None, None]
    within = tl.arange(0, block_inner)[None, :, None]
    position = tl.arange(0, block_positions)[None, None, :]
    is_channel = (unit < units) & (within < inner)
    real = is_channel & (position < positions)
    channel = unit * channel_unit + within * channel_inner
    at = tl.program_id(1).to(tl.int64) * stride_n + unit.to(tl.int64) * stride_unit
    at = at + within.to(tl.int64) * stride_inner + position.to(tl.int64) * stride_position
    v = tl.load(x + at, mask=real, other=0.0).to(tl.float32)
    if has_bias:
        v += tl.load(bias + channel, mask=is_channel, other=0.0)
    if has_added:
        v += tl.load(added + at, mask=real, other=0.0).to(tl.float32)
        rounded = v.to(summed.dtype.element_ty)
        tl.store(summed + at, rounded, mask=real)
        v = rounded.to(tl.float32)
    count = inner * positions * 1.0
    v = tl.where(real, v, 0.0)
    centred = v
    if about_mean:
        for _ in tl.static_range(2):  # the second time: what rounding left of a large mean
            mean = tl.sum(tl.sum(centred, 2), 1) / count
            centred = tl.where(real, centred - mean[:, None, None], 0.0)
    variance = tl.sum(tl.sum(centred * centred, 2), 1) / count
    y = centred if subtract_mean else v
    y = y * tl.rsqrt(variance + eps)[:, None, None]
    _store_activated(y, gain, shift, alpha, beta, out, channel, at, is_channel, real, activation, slope)


@triton.jit
def _store_activated(
    y, gain, shift, alpha, beta, out, channel, at, is_channel, real, activation: tl.constexpr, slope: tl.constexpr
):
    """Store the activation of `y·gain + shift`."""
    y = y * tl.load(gain + channel, mask=is_channel, other=0.0)
    y = y + tl.load(shift + channel, mask=is_channel, other=0.0)
    a, b = factors_of(alpha, beta, channel, is_channel, activation)
    y = activate(y, activation, slope, a, b, out.dtype.element_ty)
    tl.store(out + at, y.to(out.dtype.element_ty), mask=real)


@triton.jit
def _load(x, bias, added, at, real, channel, is_channel, has_bias: tl.constexpr, has_added: tl.constexpr):
    """Return the sum that is normalised; it is rounded where it is stored, too."""
    v = tl.load(x + at, mask=real, other=0.0).to(tl.float32)
    if has_bias:
        v += tl.load(bias + channel, mask=is_channel, other=0.0)
    if has_added:
        v += tl.load(added + at, mask=real, other=0.0).to(tl.float32)
        v = v.to(x.dtype.element_ty).to(tl.float32)
    return v


@triton.jit
def _tile_of_sum(
    x, bias, added, summed, row, position, positions, stride_p, channel, is_channel,
    has_bias: tl.constexpr, has_added: tl.constexpr,
):  # fmt: skip
    """Return a tile of the sum that is normalised, and what of it is real; store the sum where something was added."""
    real = is_channel & (position < positions)
    at = row + position.to(tl.int64) * stride_p
    v = _load(x, bias, added, at, real, channel, is_channel, has_bias, has_added)
    if has_added:
        tl.store(summed + at, v.to(summed.dtype.element_ty), mask=real)
    return v, real


@triton.jit
def _norm_partial(
    x, bias, added, summed, partial, channels, per_group, positions, stride_n, stride_c, stride_p,
    aligned: tl.constexpr, steps: tl.constexpr, has_bias: tl.constexpr, has_added: tl.constexpr,
    about_mean: tl.constexpr, block_channels: tl.constexpr, block_positions: tl.constexpr,
):  # fmt: skip
    """Write [n, part, 3, channel]: count, mean (less the group's first element), sum of squared differences from it.

    Sums are of differences from the mean of the first tile. That tile is part of the sum of squares: where its mean is
    far from that of the rest, the sum is as large, so that what the subtraction rounds away is small beside it.
    """
    if aligned > 1:  # tells Triton that it may read so many elements at once
        positions, stride_c = positions // aligned * aligned, stride_c // aligned * aligned
    batch, part = tl.program_id(2).to(tl.int64), tl.program_id(0)
    channel = tl.program_id(1) * block_channels + tl.arange(0, block_channels)[:, None]
    is_channel = channel < channels
    row = batch * stride_n + channel.to(tl.int64) * stride_c
    first = channel // per_group * per_group
    origin = tl.zeros([block_channels, 1], tl.float32)
    if about_mean:
        top = batch * stride_n + first.to(tl.int64) * stride_c
        origin = _load(x, bias, added, top, is_channel, first, is_channel, has_bias, has_added)
    start = part * steps * block_positions
    position = start + tl.arange(0, block_positions)[None, :]
    v, real = _tile_of_sum(
        x, bias, added, summed, row, position, positions, stride_p, channel, is_channel, has_bias, has_added
    )
    off = tl.where(real, v - origin, 0.0)
    near = tl.sum(off, 1)[:, None] / tl.minimum(positions - start, block_positions)
    totals = tl.where(real, off - near, 0.0)
    squares = totals * totals
    for step in range(1, steps):
        at = position + step * block_positions
        v, real = _tile_of_sum(
            x, bias, added, summed, row, at, positions, stride_p, channel, is_channel, has_bias, has_added
        )
        off = tl.where(real, v - origin - near, 0.0)
        totals += off
        squares += off * off
    count = tl.minimum(positions - start, steps * block_positions) * 1.0
    mean = tl.sum(totals, 1)[:, None] / count
    to = partial + (batch * tl.num_programs(0) + part) * 3 * channels + channel
    tl.store(to, tl.zeros([block_channels, 1], tl.float32) + count, mask=is_channel)
    tl.store(to + channels, near + mean, mask=is_channel)
    squared = tl.sum(squares, 1)[:, None] - mean * mean * count
    tl.store(to + 2 * channels, tl.maximum(squared, 0.0), mask=is_channel)


@triton.jit
def _norm_combine(
    x, bias, added, partial, gain, shift, table, weight, channels, positions, stride_n, stride_c,
    parts: tl.constexpr, per_group: tl.constexpr, eps: tl.constexpr, has_bias: tl.constexpr, has_added: tl.constexpr,
    about_mean: tl.constexpr, subtract_mean: tl.constexpr, has_origin: tl.constexpr,
    block_channels: tl.constexpr, block_parts: tl.constexpr,
    taps: tl.constexpr, inputs: tl.constexpr, outputs: tl.constexpr, block_columns: tl.constexpr,
):  # fmt: skip
    """Write the table of a group (`fused_norm.norm_table`), or of several of one channel.

    With taps, `table` gets the weight [channels / inputs, taps, inputs, outputs] times the scale in its place, and a
    program writes a part of the group's taps and outputs.
    """
    batch = tl.program_id(1).to(tl.int64)
    is_single: tl.constexpr = per_group == 1
    within = tl.arange(0, block_channels)
    first = tl.program_id(0) * (block_channels if is_single else per_group)
    channel = first + within
    is_channel = (channel < channels) & (is_single | (within < per_group))
    lead = within if is_single else within * 0  # the first channel of the group that each belongs to
    rows = partial + batch * parts * 3 * channels + first
    centre = tl.zeros([block_channels], tl.float32)
    if about_mean:  # near the mean: sums of squares of large numbers round
        centre += tl.load(rows + channels + lead, mask=is_channel, other=0.0)
    gained = tl.load(gain + channel, mask=is_channel, other=0.0)
    columns: tl.constexpr = taps * outputs
    weight_at, weights, is_weight = 0, 0.0, False
    if taps:  # read before the statistics are known: a kernel this short is what it waits for
        column = tl.program_id(2) * block_columns + tl.arange(0, block_columns)[None, :]
        row = ((channel // inputs * taps)[:, None] + column // outputs) * inputs + (channel % inputs)[:, None]
        weight_at = row.to(tl.int64) * outputs + column % outputs
        is_weight = is_channel[:, None] & (column < columns)
        weights = tl.load(weight + weight_at, mask=is_weight, other=0.0).to(tl.float32)
    totals = tl.zeros([block_parts, block_channels], tl.float32)
    squares = tl.zeros([block_parts, block_channels], tl.float32)
    for start in range(0, parts, block_parts):
        part = start + tl.arange(0, block_parts)[:, None]
        real = is_channel[None, :] & (part < parts)
        at = rows + part * 3 * channels + within[None, :]
        count = tl.load(at, mask=real, other=0.0)
        off = tl.load(at + channels, mask=real, other=0.0) - centre[None, :]
        totals += off * count
        squares += tl.load(at + 2 * channels, mask=real, other=0.0) + off * off * count
    elements = positions * 1.0 * per_group
    off = tl.sum(totals, 0) / elements
    variance = tl.sum(squares, 0) / elements
    if not is_single:
        off = tl.sum(off, 0) + within * 0.0
        variance = tl.sum(variance, 0) + within * 0.0
    if about_mean:
        variance = tl.maximum(variance - off * off, 0.0)
    origin = tl.zeros([block_channels], tl.float32)
    if has_origin and about_mean:
        at = batch * stride_n + (first + lead).to(tl.int64) * stride_c
        origin += _load(x, bias, added, at, is_channel, first + lead, is_channel, has_bias, has_added)
    mean = off + centre
    scale = gained * tl.rsqrt(variance + eps)
    if taps:
        to = table + batch * channels * columns
        tl.store(to + weight_at, (weights * scale[:, None]).to(table.dtype.element_ty), mask=is_weight)
    else:
        moved = tl.load(shift + channel, mask=is_channel, other=0.0)
        to = table + batch * 5 * channels + channel
        tl.store(to, origin, mask=is_channel)
        tl.store(to + channels, mean, mask=is_channel)
        tl.store(to + 2 * channels, scale, mask=is_channel)
        tl.store(to + 3 * channels, moved, mask=is_channel)
        less = tl.zeros([block_channels], tl.float32)
        if has_bias:
            less += tl.load(bias + channel, mask=is_channel, other=0.0)
        if subtract_mean:
            less -= origin + mean
        tl.store(to + 4 * channels, less * scale + moved, mask=is_channel)


@triton.jit
def _norm_apply(
    x, bias, table, alpha, beta, out, channels, positions, stride_n, stride_c, stride_p,
    aligned: tl.constexpr, has_bias: tl.constexpr, subtract_mean: tl.constexpr, activation: tl.constexpr,
    slope: tl.constexpr, block_channels: tl.constexpr, block_positions: tl.constexpr,
):  # fmt: skip
    """Write the result of a tile; `x` is the sum where there was one, and then has no bias."""
    if aligned > 1:  # tells Triton that it may read so many elements at once
        positions, stride_c = positions // aligned * aligned, stride_c // aligned * aligned
    batch = tl.program_id(2).to(tl.int64)
    channel = tl.program_id(1) * block_channels + tl.arange(0, block_channels)[:, None]
    position = tl.program_id(0) * block_positions + tl.arange(0, block_positions)[None, :]
    is_channel = channel < channels
    real = is_channel & (position < positions)
    at = batch * stride_n + channel.to(tl.int64) * stride_c + position.to(tl.int64) * stride_p
    v = _load(x, bias, x, at, real, channel, is_channel, has_bias, False)
    of = table + batch * 5 * channels
    if subtract_mean:
        v = v - tl.load(of + channel, mask=is_channel, other=0.0)
        v = v - tl.load(of + channels + channel, mask=is_channel, other=0.0)
    gain, shift = of + 2 * channels, of + 3 * channels
    _store_activated(v, gain, shift, alpha, beta, out, channel, at, is_channel, real, activation, slope)


@triton_op("models::fused_norm", mutates_args=())
def fused_norm(
    x: Tensor, bias: Tensor | None, added: Tensor | None, gain: Tensor, shift: Tensor, alpha: Tensor | None,
    beta: Tensor | None, groups: int, eps: float, about_mean: bool, subtract_mean: bool, activation: str, slope: float,
    partial: Tensor | None = None,
) -> list[Tensor]:  # fmt: skip
    """Return what `fused_norm.fused_norm` documents."""
    if channels_last(x) is None:
        x = x.contiguous()  # another pass of a compiler has changed the layout that was looked at
    out = torch.empty_like(x)
    summed = None if added is None else torch.empty_like(x)
    added = None if added is None else in_format_of(x, added)
    results = [out] if summed is None else [out, summed]
    n, c, positions = x.shape[0], x.shape[1], x.shape[2:].numel()
    innermost = channels_last(x)
    stride_n, stride_c, stride_p = c * positions, 1 if innermost else positions, c if innermost else 1
    bias_given, alpha_given, beta_given = (gain if each is None else each for each in (bias, alpha, beta))
    added_given, summed_given = (x if each is None else each for each in (added, summed))
    flags = {"has_bias": bias is not None, "has_added": added is not None}
    form = {"activation": ACTIVATIONS.index(activation), "slope": slope, "subtract_mean": subtract_mean}
    per_group = c // groups if groups else c
    inner, held = triton.next_power_of_2(per_group), triton.next_power_of_2(positions if groups else 1)
    units = groups or positions
    if bool(groups) == bool(innermost):  # what other units read is adjacent
        block = min(MOST_CHANNELS // (inner if groups else 1), MOST_IN_REGISTERS // (inner * held))
    else:
        block = TILE // (inner * held) // 4
    block = min(triton.next_power_of_2(units), max(block, 1))
    is_scattered = innermost and inner * block < min(LEAST_CHANNELS, c)
    if not groups or (inner * held <= MOST_IN_REGISTERS and not is_scattered):
        by_unit = (per_group * stride_c, stride_c, stride_p) if groups else (stride_p, stride_c, 0)
        wrap_triton(_norm_in_registers)[(triton.cdiv(units, block), n)](
            x, bias_given, added_given, gain, shift, alpha_given, beta_given, summed_given, out,
            units, per_group, positions if groups else 1, stride_n, *by_unit, per_group if groups else 0, 1,
            eps=eps, about_mean=about_mean, **flags, **form,
            block_units=block, block_inner=inner, block_positions=held,
            num_warps=min(max(block * inner * held // 512, 1), 16),
        )  # fmt: skip
        return results
    block_c, block_p = _tile(x, TILE // 2)
    tile = {"block_channels": block_c, "block_positions": block_p, "num_warps": 4}
    table = _table(x, bias, added, summed, partial, gain, shift, groups, eps, about_mean, subtract_mean)
    wrap_triton(_norm_apply)[(triton.cdiv(positions, block_p), triton.cdiv(c, block_c), n)](
        x if summed is None else summed, bias_given, table, alpha_given, beta_given, out,
        c, positions, stride_n, stride_c, stride_p, aligned=1 if innermost else alignment(positions),
        has_bias=bias is not None and summed is None, **form, **tile,
    )  # fmt: skip
    return results


def _table(
    x: Tensor, bias: Tensor | None, added: Tensor | None, summed: Tensor | None, partial: Tensor | None, gain: Tensor,
    shift: Tensor, groups: int, eps: float, about_mean: bool, subtract_mean: bool,
) -> Tensor:  # fmt: skip
    """Return what `fused_norm.norm_table` documents, and write the sum to `summed` where `added` is given."""
    n, c, positions = x.shape[0], x.shape[1], x.shape[2:].numel()
    innermost = channels_last(x)
    strides = (c * positions, 1 if innermost else positions, c if innermost else 1)
    bias_given, added_given, summed_given = (x if each is None else each for each in (bias, added, summed))
    flags = {"has_bias": bias is not None, "has_added": added is not None, "about_mean": about_mean}
    has_origin = partial is None
    if partial is None:
        block_c, block_p = _tile(x, TILE)
        blocks = triton.cdiv(c, block_c)
        parts = min(max(PROGRAMS // (blocks * n), 1), triton.cdiv(positions, block_p))
        steps = triton.cdiv(triton.cdiv(positions, parts), block_p)
        parts = triton.cdiv(positions, steps * block_p)
        partial = x.new_empty((n, parts, 3, c), dtype=torch.float32)
        wrap_triton(_norm_partial)[(parts, blocks, n)](
            x, bias_given, added_given, summed_given, partial, c, c // groups, positions, *strides,
            aligned=1 if innermost else alignment(positions), steps=steps, **flags,
            block_channels=block_c, block_positions=block_p, num_warps=4,
        )  # fmt: skip
    table = x.new_empty((n, 5, c), dtype=torch.float32)
    return _combine(
        x, bias, added, partial, gain, shift, table, groups, eps, about_mean, subtract_mean, has_origin=has_origin
    )


def _combine(
    x: Tensor, bias: Tensor | None, added: Tensor | None, partial: Tensor, gain: Tensor, shift: Tensor, table: Tensor,
    groups: int, eps: float, about_mean: bool, subtract_mean: bool, has_origin: bool, packed: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Write the table that `fused_norm.norm_table` documents, or with `packed` the weight of `scaled_weight`."""
    n, c, positions = x.shape[0], x.shape[1], x.shape[2:].numel()
    inner = triton.next_power_of_2(c // groups) if groups < c else min(triton.next_power_of_2(c), LEAST_CHANNELS)
    _, taps, inputs, outputs = (0, 0, 1, 1) if packed is None else packed.shape
    columns = max(taps * outputs, 1)
    across = min(triton.next_power_of_2(columns), max(TILE // inner, 1))
    innermost = channels_last(x)
    bias_given, added_given, weight = (x if each is None else each for each in (bias, added, packed))
    blocks = groups if groups < c else triton.cdiv(c, inner)
    wrap_triton(_norm_combine)[(blocks, n, triton.cdiv(columns, across))](
        x, bias_given, added_given, partial, gain, shift, table, weight, c, positions,
        c * positions, 1 if innermost else positions,
        parts=partial.shape[1], per_group=c // groups, eps=eps, has_bias=bias is not None, has_added=added is not None,
        about_mean=about_mean, subtract_mean=subtract_mean, has_origin=has_origin,
        block_channels=inner, block_parts=min(max(TILE // inner, 1), triton.next_power_of_2(partial.shape[1])),
        taps=taps, inputs=inputs, outputs=outputs, block_columns=across, num_warps=8,
    )  # fmt: skip
    return table


def _tile(x: Tensor, elements: int) -> tuple[int, int]:
    """Return how many channels, and how many positions, one program takes: their product is `elements` at most."""
    c, held = x.shape[1], triton.next_power_of_2(x.shape[2:].numel())
    if channels_last(x):
        block_c = min(triton.next_power_of_2(c), MOST_CHANNELS)
        return block_c, min(held, elements // block_c)
    block_p = min(held, elements // 2)
    return min(triton.next_power_of_2(c), elements // block_p), block_p


@triton_op("models::norm_table", mutates_args=())
def norm_table(
    x: Tensor, bias: Tensor | None, partial: Tensor | None, gain: Tensor, shift: Tensor, groups: int, eps: float,
    about_mean: bool, subtract_mean: bool,
) -> Tensor:  # fmt: skip
    """Return what `fused_norm.norm_table` documents."""
    if channels_last(x) is None:
        x = x.contiguous()
    return _table(x, bias, None, None, partial, gain, shift, groups, eps, about_mean, subtract_mean)


@triton_op("models::scaled_weight", mutates_args=())
def scaled_weight(
    x: Tensor, partial: Tensor, packed: Tensor, gain: Tensor, groups: int, eps: float, about_mean: bool
) -> Tensor:
    """Return what `fused_norm.scaled_weight` documents."""
    weight = packed.new_empty((x.shape[0], *packed.shape))
    return _combine(
        x, None, None, partial, gain, gain, weight, groups, eps, about_mean, False, has_origin=False, packed=packed
    )
