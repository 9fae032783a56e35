"""What the Triton kernels for convolutions share: positions of a tile, the norm before it, the result, statistics."""

import triton
import triton.language as tl

from models.kernels.activations_triton import activate, factors_of


@triton.jit
def positions_of(tile, tiles_w, block_h: tl.constexpr, block_w: tl.constexpr):
    """Return row and column of each position of a tile, so that neighbours share what they read."""
    within = tl.arange(0, block_h * block_w)
    return tile // tiles_w * block_h + within // block_w, tile % tiles_w * block_w + within % block_w


@triton.jit
def offsets(row, column, channel, out_n, out_c, out_h, out_w):
    """Return where the results of positions and channels lie, [positions, channels]."""
    at = tl.program_id(1).to(tl.int64) * out_n + (row.to(tl.int64) * out_h + column.to(tl.int64) * out_w)[:, None]
    return at + (channel.to(tl.int64) * out_c)[None, :]


@triton.jit
def store(
    sums, at, channel, real, is_channel, bias, residual, alpha, beta, out,
    has_bias: tl.constexpr, has_residual: tl.constexpr, activation: tl.constexpr, slope: tl.constexpr,
    statistics: tl.constexpr = 0,
):  # fmt: skip
    """Apply bias, residual and activation to `sums`, store the result and return it in fp32, for its statistics.

    `channel` and `is_channel` have the dims of `sums`, one of them of size 1. `statistics` is a place in `STATISTICS`;
    with 2 the result before the activation is returned. It is not rounded: a number that is rounded and converted back
    costs a conversion of its own, at a sixteenth of the rate of other instructions.
    """
    if has_bias:
        sums += tl.load(bias + channel, mask=is_channel, other=0.0)
    if has_residual:
        sums += tl.load(residual + at, mask=real, other=0.0).to(tl.float32)
    a, b = factors_of(alpha, beta, channel, is_channel, activation)
    result = activate(sums, activation, slope, a, b, out.dtype.element_ty)
    tl.store(out + at, result.to(out.dtype.element_ty), mask=real)
    return sums if statistics == 2 else result


@triton.jit
def shuffled_positions(place, within, width: tl.constexpr, factor: tl.constexpr, block_p: tl.constexpr):
    """Return the offset in a picture of a tile's first position, and the offset of each position from that.

    Tiles take the positions block by block, `factor` × `factor` of them each: those of a block come from one position
    of the smaller picture. `place` is the number of the tile's first position in this order.
    """
    row: tl.constexpr = factor * width  # positions in a row of blocks
    if width % (block_p // factor) == 0:  # a tile is in one such row: offsets in it are the same in each tile
        start, first = place // row * row + place % row // factor, within // (factor * factor) * factor
    else:
        block = (place % row + within) // (factor * factor)
        start, first = place // row * row, block // (width // factor) * row + block % (width // factor) * factor
    return start, first + within // factor % factor * width + within % factor


@triton.jit
def shuffled(
    shortcut, place, positions, channel, channels: tl.constexpr, outputs: tl.constexpr, factor: tl.constexpr,
    turned: tl.constexpr, whole: tl.constexpr, block_p: tl.constexpr, block_n: tl.constexpr,
):  # fmt: skip
    """Return the tile of the pixel shuffle of `shortcut`, which has `channels` after it, in fp32.

    The tile has the positions of `shuffled_positions` from `place` on, and the channels from `channel` on. What it
    needs of one position of `shortcut` lies in one piece of memory: that is read in order, and then rearranged.
    """
    squares: tl.constexpr = factor * factor
    each: tl.constexpr = block_n if channels == outputs or channels > block_n else channels
    coarse = tl.arange(0, block_p // squares)[:, None]
    from_c = tl.multiple_of(channel % channels, 16) * squares + tl.arange(0, each * squares)[None, :]
    real = ((place // squares + coarse < positions // squares) | whole) & (
        (from_c < channels * squares) | (channels % each == 0)
    )
    start = (tl.program_id(1).to(tl.int64) * positions + place) * channels
    here = tl.load(shortcut + start + (coarse * (channels * squares) + from_c), mask=real, other=0.0)
    here = here.reshape([block_p // squares, each, squares]).permute(0, 2, 1).reshape([block_p, 1, each])
    here = here.broadcast_to([block_p, block_n // each, each]).reshape([block_p, block_n]).to(tl.float32)
    return here.trans() if turned else here


@triton.jit
def leave(partial, tile, tiles, channel, channels, is_channel, count, mean, squares):
    """Store the statistics of a tile in the layout of `norm_table`'s `partial`."""
    to = partial + (tl.program_id(1).to(tl.int64) * tiles + tile) * 3 * channels + channel
    tl.store(to, mean * 0.0 + count, mask=is_channel)
    tl.store(to + channels, mean, mask=is_channel)
    tl.store(to + 2 * channels, squares, mask=is_channel)


@triton.jit
def moments(values, is_inside, count, positions: tl.constexpr, whole: tl.constexpr):
    """Return mean and sum of squared differences from it over one dim, with `count` positions inside."""
    values = values if whole else tl.where(is_inside, values, 0.0)
    mean = tl.sum(values, positions) / count
    off = values - tl.expand_dims(mean, positions)
    off = off if whole else tl.where(is_inside, off, 0.0)
    return mean, tl.sum(off * off, positions)


@triton.jit
def norm_of(table, channel, channels, is_channel, first_alpha, first_beta, first_activation: tl.constexpr):
    """Return scale, offset, alpha and beta of the norm of some channels."""
    of = table + tl.program_id(1) * 5 * channels + channel
    scale = tl.load(of + 2 * channels, mask=is_channel, other=0.0)
    offset = tl.load(of + 4 * channels, mask=is_channel, other=0.0)
    a, b = factors_of(first_alpha, first_beta, channel, is_channel, first_activation)
    return scale, offset, a, b


@triton.jit
def normalised(here, given, scale, offset, a, b, activation: tl.constexpr, slope: tl.constexpr):
    """Return the activation of the norm of `here`, zeros outside the mask `given`."""
    first = activate(here.to(tl.float32) * scale + offset, activation, slope, a, b, here.dtype)
    return tl.where(given, first, 0.0).to(here.dtype)
