"""Triton kernels for 1×1 convolutions, and the tiles that they compute at once."""

import triton
import triton.language as tl

from models.kernels.convolution_parts_triton import (
    leave,
    moments,
    norm_of,
    normalised,
    shuffled,
    shuffled_positions,
    store,
)

PROGRAMS = 256  # at least, where there are so many tiles: almost two for each multiprocessor of an H100
MULTIPROCESSORS = 132  # of an H100


@triton.jit
def convolution_1x1(
    x, weight, bias, residual, alpha, beta, out, partial, table, first_alpha, first_beta, shortcut,
    positions, tiles, weight_n,
    inputs: tl.constexpr, outputs: tl.constexpr, innermost: tl.constexpr, aligned: tl.constexpr,
    has_table: tl.constexpr, first_activation: tl.constexpr, first_slope: tl.constexpr, statistics: tl.constexpr,
    has_bias: tl.constexpr, has_residual: tl.constexpr, activation: tl.constexpr, slope: tl.constexpr,
    factor: tl.constexpr, width: tl.constexpr, shuffled_channels: tl.constexpr,
    turned: tl.constexpr, whole: tl.constexpr, block_p: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr,
):  # fmt: skip
    """Compute a tile of positions and outputs of a 1×1 convolution.

    Consecutive programs take the same positions, so that they share what they read of `x` in the L2 cache.
    `turned` computes it as [outputs, positions]: a thread then has many positions of few outputs, so that their
    statistics are sums in registers. In the other order what a thread normalises goes to the product in registers.
    With a `factor` a shortcut of `shuffled_channels` is added; a tile then has the positions of `shuffled_positions`.
    `whole`: every tile is full, so that positions need no mask. `aligned`: a power of two that divides the number of
    positions; the product below tells Triton, which itself looks for a factor of 16 only.
    """
    if aligned > 1:
        positions = positions // aligned * aligned
    x_c = 1 if innermost else tl.cast(positions, tl.int64)
    x_p: tl.constexpr = inputs if innermost else 1
    out_c = 1 if innermost else positions
    out_p: tl.constexpr = outputs if innermost else 1
    across: tl.constexpr = (outputs + block_n - 1) // block_n
    is_ragged: tl.constexpr = inputs % block_k != 0
    tile = tl.program_id(0) // across
    start, batch = tile.to(tl.int64) * block_p, tl.program_id(1).to(tl.int64)
    each_p: tl.constexpr = 0 if turned else 1  # the dim that positions do not have
    each_n: tl.constexpr = 1 if turned else 0
    within = tl.arange(0, block_p)
    place = tl.program_id(0) // across * block_p
    origin, position = start, within
    if factor > 1:
        origin, position = shuffled_positions(place, within, width, factor, block_p)
    position = tl.expand_dims(position, each_p)
    is_inside = tl.expand_dims((within < positions - start) | whole, each_p)
    channel = tl.program_id(0) % across * block_n + tl.arange(0, block_n)
    output = tl.expand_dims(channel, each_n)
    is_output = output < outputs
    first = tl.arange(0, block_k)
    from_x, of_weight = tl.expand_dims(first, each_n), tl.expand_dims(first, each_p)
    x_at = x + batch * inputs * positions + origin * x_p + (position * x_p + from_x.to(tl.int64) * x_c)
    weight_at = weight + batch * weight_n + (of_weight * outputs + output)
    if factor:  # added after the products it takes more than 128 registers, so that one program fits in place of two
        sums = shuffled(
            shortcut, place, positions, tl.program_id(0) % across * block_n, shuffled_channels, outputs, factor,
            turned, whole, block_p, block_n,
        )  # fmt: skip
    else:
        sums = tl.zeros([block_n, block_p] if turned else [block_p, block_n], tl.float32)
    for step in range((inputs + block_k - 1) // block_k):
        given, real = is_inside, is_output
        if is_ragged:
            given = is_inside & (step * block_k + from_x < inputs)
            real = is_output & (step * block_k + of_weight < inputs)
        here = tl.load(x_at + step * block_k * x_c, mask=given, other=0.0)
        if has_table:
            input_ = step * block_k + from_x
            scale, offset, a, b = norm_of(
                table, input_, inputs, input_ < inputs, first_alpha, first_beta, first_activation
            )
            here = normalised(here, given, scale, offset, a, b, first_activation, first_slope)
        by = tl.load(weight_at + step * block_k * outputs, mask=real, other=0.0)
        if turned:
            sums = tl.dot(by, here, sums, input_precision="ieee")
        else:
            sums = tl.dot(here, by, sums, input_precision="ieee")
    at = batch * outputs * positions + origin * out_p + (position * out_p + output.to(tl.int64) * out_c)
    real = is_inside & is_output
    written = store(
        sums, at, output, real, is_output, bias, residual, alpha, beta, out,
        has_bias, has_residual, activation, slope, statistics,
    )  # fmt: skip
    if statistics:
        count = tl.minimum(positions - start, block_p) * 1.0
        mean, squares = moments(written, is_inside, count, each_n, whole)
        leave(partial, tile, tiles, channel, outputs, channel < outputs, count, mean, squares)


@triton.jit
def convolution_1x1_of_few(
    x, weight, bias, residual, alpha, beta, out, partial, table, first_alpha, first_beta, shortcut,
    positions, tiles, parts, weight_n, inputs: tl.constexpr, outputs: tl.constexpr,
    has_table: tl.constexpr, first_activation: tl.constexpr, first_slope: tl.constexpr, statistics: tl.constexpr,
    has_bias: tl.constexpr, has_residual: tl.constexpr, activation: tl.constexpr, slope: tl.constexpr,
    factor: tl.constexpr, width: tl.constexpr, shuffled_channels: tl.constexpr,
    turned: tl.constexpr, whole: tl.constexpr, block_p: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr,
    stages: tl.constexpr,
):  # fmt: skip
    """Compute every `parts`-th tile of positions of a 1×1 convolution of few inputs, with channels last.

    A program reads its weight once, and loads the next tiles while it computes one. With few inputs, a program for each
    tile would read as much of the weight as of `x`, and wait for both. Statistics are merged from tile to tile (Chan,
    Golub and LeVeque 1983). The rest is as in `convolution_1x1`.
    """
    across: tl.constexpr = (outputs + block_n - 1) // block_n
    part, batch = tl.program_id(0) // across, tl.program_id(1).to(tl.int64)
    each_p: tl.constexpr = 0 if turned else 1
    each_n: tl.constexpr = 1 if turned else 0
    within = tl.arange(0, block_p)
    channel = tl.program_id(0) % across * block_n + tl.arange(0, block_n)
    output = tl.expand_dims(channel, each_n)
    is_output = output < outputs
    input_ = tl.arange(0, block_k)
    from_x, of_weight = tl.expand_dims(input_, each_n), tl.expand_dims(input_, each_p)
    real = is_output & (of_weight < inputs)
    by = tl.load(weight + batch * weight_n + (of_weight * outputs + output), mask=real, other=0.0)
    scale, offset, a, b = 1.0, 0.0, 0.0, 0.0
    if has_table:
        scale, offset, a, b = norm_of(table, from_x, inputs, from_x < inputs, first_alpha, first_beta, first_activation)
    counted = 0.0
    near = tl.zeros([block_n], tl.float32)
    spread = tl.zeros([block_n], tl.float32)
    for tile in tl.range(part, tiles, parts, num_stages=stages):
        start = tile * block_p
        is_inside = tl.expand_dims((within < positions - start) | whole, each_p)
        origin, position = start, within
        if factor > 1:
            origin, position = shuffled_positions(start, within, width, factor, block_p)
        position = tl.expand_dims(position, each_p)
        given = is_inside & (from_x < inputs)
        x_at = x + (batch * positions + origin) * inputs + (position * inputs + from_x)
        here = tl.load(x_at, mask=given, other=0.0)
        if has_table:
            here = normalised(here, given, scale, offset, a, b, first_activation, first_slope)
        sums = tl.dot(by if turned else here, here if turned else by, input_precision="ieee")
        if factor:
            sums += shuffled(
                shortcut, start, positions, tl.program_id(0) % across * block_n, shuffled_channels, outputs, factor,
                turned, whole, block_p, block_n,
            )  # fmt: skip
        at = (batch * positions + origin) * outputs + (position * outputs + output)
        written = store(
            sums, at, output, is_inside & is_output, is_output, bias, residual, alpha, beta, out,
            has_bias, has_residual, activation, slope, statistics,
        )  # fmt: skip
        if statistics:
            count = tl.minimum(positions - start, block_p) * 1.0
            mean, squares = moments(written, is_inside, count, each_n, whole)
            less = mean - near
            near += less * (count / (counted + count))
            spread += squares + less * less * (counted * count / (counted + count))
            counted += count
    if statistics:
        leave(partial, part, parts, channel, outputs, channel < outputs, counted, near, spread)


def tile_of_few(
    positions: int, inputs: int, outputs: int, batch: int, has_table: bool, statistics: bool, shuffled: int
) -> dict[str, int | bool]:
    """Return the tile for `convolution_1x1_of_few`, and its programs on a multiprocessor.

    An empty dict is returned where it does not pay: more inputs than shared memory holds beside what is loaded ahead
    (the weight of a program is 64 KiB at most; of a shortcut of so many `shuffled` channels it is up to 32 KiB), or so
    few positions that a program would have less than four tiles.
    """
    block_k, block_n = (max(triton.next_power_of_2(each), 16) for each in (inputs, outputs))
    block_n, block_p, turned = min(block_n, 128), 64, statistics and not has_table
    across, programs = triton.cdiv(outputs, block_n), 2 if block_k <= 128 else 1
    is_small = triton.cdiv(positions, block_p) * across * batch < 4 * programs * MULTIPROCESSORS
    if is_small or block_k > (128 if turned or min(shuffled, block_n) > 64 else 256):
        return {}
    return {
        "block_p": block_p, "block_n": block_n, "block_k": block_k, "programs": programs,
        "turned": turned, "num_warps": 8 if block_n == 128 else 4, "stages": 3,
    }  # fmt: skip


def tile_of(
    positions: int, inputs: int, outputs: int, batch: int, is_wide: bool, has_table: bool
) -> dict[str, int | bool]:
    """Return the tile of a 1×1 convolution: positions, outputs and inputs at once, their order, warps and stages.

    A norm of the input costs the less, the more outputs share it. Tiles are smaller where they would not fill the GPU.
    """
    block_n = max(min(triton.next_power_of_2(outputs), 256 if has_table else 128), 16)
    block_p = 64 if has_table else 128
    if is_wide:
        block_n, block_p = min(block_n, 64), 64

    def programs() -> int:
        return triton.cdiv(positions, block_p) * triton.cdiv(outputs, block_n) * batch

    while block_n > 64 and programs() < (PROGRAMS // 2 if has_table else PROGRAMS):
        block_n //= 2
    while block_p > 16 and programs() < PROGRAMS // 2:
        block_p //= 2
    is_small = block_p < 64
    most_k = 32 if is_wide or block_n > 128 else 128 if is_small else 64
    return {
        "block_p": block_p, "block_n": block_n, "block_k": min(max(triton.next_power_of_2(inputs), 16), most_k),
        "turned": is_small or not has_table, "num_warps": 8 if block_p == block_n == 128 else 4,
        "num_stages": 4 if block_n <= 64 and not is_wide else 3,
    }  # fmt: skip
