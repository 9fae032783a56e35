"""Linear layers with few rows (skinny GEMMs), mostly bound by reading the weights once: in 16 bits, or in 8.

A library GEMM needs another launch if it splits the inputs (split-K), and one for SiLU. Here the next kernel
(`add_modulated_norm`) sums the parts, and SiLU is computed before the store. Weights of 8 bits
(`eight_bits.py`) are widened in registers, so that half of the bytes are read; products and sums are the same.

With a few dozen rows the widening often takes longer than the reading. Where the kernel before can write its result in
16-bit integers (`Int16Rows`), `linear_int16` multiplies int8 by int8 on the tensor cores, and nothing is widened.
"""

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton
from torch.utils.flop_counter import register_flop_formula

from models.kernels import INTERPRETED
from models.kernels.eight_bits import EIGHT_BITS, MAX_ROWS, fits

WAVE = 80  # programs that saturate an H200's memory bandwidth; more parts only cost additions


class Tile(NamedTuple):
    """What one program computes: `columns` outputs over 1/`parts` of the inputs, `inner` inputs per iteration."""

    columns: int
    inner: int
    parts: int
    stages: int  # iterations whose loads are in flight
    warps: int


# PTX that widens 8-bit weights, packed four a word (`kernel_order`), in fewer instructions than Triton generates. Each
# text is one line, because inductor copies it into a string of the code that it generates.

#: Two words of int8 to four pairs of bf16, one for each byte. A number is (128 + its lower seven bits) - (128, or 256
#: where the sign bit is set), each made by setting bits.
_INT8_TO_BF16 = tl.constexpr(
    "{ .reg .b32 pair, a, b, minus; mov.b32 minus, 0xbf80bf80; "
    + " ".join(
        f"prmt.b32 pair, $4, $5, {bytes_}; "
        "lop3.b32 a, pair, 0x007f007f, 0x43004300, 0xea; "
        "lop3.b32 b, pair, 0x00800080, 0x43004300, 0xea; "
        f"fma.rn.bf16x2 ${byte}, b, minus, a;"
        for byte, bytes_ in enumerate(("0x4400", "0x5511", "0x6622", "0x7733"))
    )
    + " }"
)
#: Two words of float8_e4m3fn to four pairs of bf16: shift exponent and mantissa, add the sign, then multiply by 2^120,
#: the difference of the exponent biases. Wrong for NaN.
_E4M3_TO_BF16 = tl.constexpr(
    "{ .reg .b32 pair, a, power, zero; mov.b32 power, 0x7b807b80; mov.b32 zero, 0x80008000; "
    + " ".join(
        f"prmt.b32 pair, $4, $5, {bytes_}; "
        "and.b32 a, pair, 0x7f007f00; "
        "shr.u32 a, a, 4; "
        "lop3.b32 a, pair, 0x80008000, a, 0xea; "
        f"fma.rn.bf16x2 ${byte}, a, power, zero;"
        for byte, bytes_ in enumerate(("0x4400", "0x5511", "0x6622", "0x7733"))
    )
    + " }"
)
#: A word of int8 to four fp32: flip the sign bit, put the byte into the mantissa of 2^23, and subtract 2^23 + 128.
_INT8_TO_FP32 = tl.constexpr(
    "{ .reg .b32 flipped, a; xor.b32 flipped, $4, 0x80808080; "
    + " ".join(f"prmt.b32 a, flipped, 0x4b000000, 0x744{byte}; add.f32 ${byte}, a, 0fcb000080;" for byte in range(4))
    + " }"
)
_INTERPRETED = tl.constexpr(INTERPRETED)  # then without assembly, and integers are not cast to bf16, which goes wrong


@triton.jit
def _byte(words, byte: tl.constexpr, stored: tl.constexpr, dtype: tl.constexpr):
    """Return one of the four 8-bit numbers of each word, widened exactly."""
    if stored == tl.int8:
        return ((words << (24 - 8 * byte)) >> 24).to(tl.float32).to(dtype)
    return ((words >> (8 * byte)) & 0xFF).to(tl.uint8).to(stored, bitcast=True).to(tl.float32).to(dtype)


@triton.jit
def _widen(words, stored: tl.constexpr, dtype: tl.constexpr):
    """Return the four 8-bit numbers of each word of `words` (int32) exactly, as four tensors of a wider `dtype`."""
    if not _INTERPRETED and dtype == tl.bfloat16:
        assembly: tl.constexpr = _INT8_TO_BF16 if stored == tl.int8 else _E4M3_TO_BF16
        four: tl.constexpr = (tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16)
        return tl.inline_asm_elementwise(assembly, "=r,=r,=r,=r,r,r", [words], dtype=four, is_pure=True, pack=2)
    if not _INTERPRETED and dtype == tl.float32 and stored == tl.int8:
        four: tl.constexpr = (tl.float32, tl.float32, tl.float32, tl.float32)
        return tl.inline_asm_elementwise(_INT8_TO_FP32, "=f,=f,=f,=f,r", [words], dtype=four, is_pure=True, pack=1)
    return (
        _byte(words, 0, stored, dtype),
        _byte(words, 1, stored, dtype),
        _byte(words, 2, stored, dtype),
        _byte(words, 3, stored, dtype),
    )


@triton.jit
def _store(
    total, scale, bias, out, column, part, row, rows,
    n: tl.constexpr, scaled: tl.constexpr, biased: tl.constexpr, silu: tl.constexpr,
):  # fmt: skip
    """Write the sums `total` [columns, rows] of one part, after scale, bias and SiLU."""
    if scaled:
        total = total * tl.load(scale + column)[:, None]
    if biased:
        offset = tl.load(bias + column).to(tl.float32)
        total += tl.where(part == 0, offset, 0.0)[:, None]
    if silu:
        total = total * tl.sigmoid(total)
    offsets = (part * rows + row[None, :]) * n + column[:, None]
    tl.store(out + offsets, total.to(out.dtype.element_ty), mask=row[None, :] < rows)


@triton.jit
def _skinny_linear(
    x, weight, scale, bias, out, rows,
    n: tl.constexpr, k: tl.constexpr, parts: tl.constexpr, biased: tl.constexpr, silu: tl.constexpr,
    block: tl.constexpr, columns: tl.constexpr, inner: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    """Write `columns` outputs (axis 0 of the grid) of all rows, summed over the inputs of one part (axis 1)."""
    column = tl.program_id(0) * columns + tl.arange(0, columns)
    part = tl.program_id(1)
    row = tl.arange(0, block)
    total = tl.zeros((columns, block), tl.float32)
    if block == 1:  # a single row: multiply and add without tensor cores, and sum over the inputs at the end
        sums = tl.zeros((columns, inner), tl.float32)
        for start in tl.range(0, k // parts, inner, num_stages=stages):
            at = part * (k // parts) + start + tl.arange(0, inner)
            weights = tl.load(weight + column[:, None] * k + at[None, :], eviction_policy="evict_first")
            sums += weights.to(tl.float32) * tl.load(x + at, eviction_policy="evict_last").to(tl.float32)[None, :]
        total = tl.sum(sums, 1)[:, None]
    else:
        for start in tl.range(0, k // parts, inner, num_stages=stages):
            at = part * (k // parts) + start + tl.arange(0, inner)
            # Each weight is read once. It must not evict the rows, which all programs read, from the cache.
            weights = tl.load(weight + column[:, None] * k + at[None, :], eviction_policy="evict_first")
            inputs = tl.load(
                x + row[:, None] * k + at[None, :], mask=row[:, None] < rows, other=0.0, eviction_policy="evict_last"
            )
            total = tl.dot(weights, tl.trans(inputs), total)  # weights are the left operand: the wide side
    _store(total, scale, bias, out, column, part, row, rows, n, False, biased, silu)


@triton.jit
def _skinny_linear_8_bits(
    x, weight, scale, bias, out, rows,
    n: tl.constexpr, k: tl.constexpr, parts: tl.constexpr, biased: tl.constexpr, silu: tl.constexpr,
    block: tl.constexpr, columns: tl.constexpr, inner: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    """Do what `_skinny_linear` does, with weights of 8 bits in `kernel_order`, four to a word.

    The bytes of a word belong to inputs that are 16 apart. So the words of a tile give four tiles of weights, each to
    be multiplied by its own tile of inputs, and no number changes its place in the registers.
    """
    column = tl.program_id(0) * columns + tl.arange(0, columns)
    part = tl.program_id(1)
    row = tl.arange(0, block)
    word = tl.arange(0, inner // 4)
    first = word // 16 * 64 + word % 16  # the input of byte 0 of each word
    words = weight.to(tl.pointer_type(tl.int32), bitcast=True) + column[:, None] * (k // 4) + word[None, :]
    stored: tl.constexpr = weight.dtype.element_ty
    total = tl.zeros((columns, block), tl.float32)
    if block == 1:
        sums = tl.zeros((columns, inner // 4), tl.float32)
        for start in tl.range(0, k // parts, inner, num_stages=stages):
            at = part * (k // parts) + start
            weights = _widen(tl.load(words + at // 4, eviction_policy="evict_first"), stored, tl.float32)
            for byte in tl.static_range(4):
                inputs = x + at + first + 16 * byte
                sums += weights[byte] * tl.load(inputs, eviction_policy="evict_last").to(tl.float32)[None, :]
        total = tl.sum(sums, 1)[:, None]
    else:
        inputs = x + row[:, None] * k + first[None, :]
        is_row = row[:, None] < rows
        for start in tl.range(0, k // parts, inner, num_stages=stages):
            at = part * (k // parts) + start
            loaded = tl.load(words + at // 4, eviction_policy="evict_first")
            inputs0 = tl.load(inputs + at, mask=is_row, other=0.0, eviction_policy="evict_last")
            inputs1 = tl.load(inputs + at + 16, mask=is_row, other=0.0, eviction_policy="evict_last")
            inputs2 = tl.load(inputs + at + 32, mask=is_row, other=0.0, eviction_policy="evict_last")
            inputs3 = tl.load(inputs + at + 48, mask=is_row, other=0.0, eviction_policy="evict_last")
            # All numbers of 8 bits are exact in fp16 and bf16.
            weights = _widen(loaded, stored, inputs0.dtype)
            total = tl.dot(weights[0], tl.trans(inputs0), total)
            total = tl.dot(weights[1], tl.trans(inputs1), total)
            total = tl.dot(weights[2], tl.trans(inputs2), total)
            total = tl.dot(weights[3], tl.trans(inputs3), total)
    _store(total, scale, bias, out, column, part, row, rows, n, True, biased, silu)


@triton.jit
def store_int16_row(numbers, out, scale, row, rows, k: tl.constexpr, column, real):
    """Write one row of fp32 `numbers` as `Int16Rows`; where `real` is false, `column` is beyond k."""
    # A maximum ignores NaN and a sum does not: 0 for finite numbers.
    finite = tl.sum(tl.where(real, numbers * 0.0, 0.0), 0)
    step = tl.max(tl.where(real, tl.abs(numbers), 0.0), 0) / 32512 + finite  # 32512 = 127·256
    number = tl.floor(numbers / tl.where(step > 0, step, 1.0) + 0.5).to(tl.int32)
    low = ((number + 128) & 0xFF) - 128
    place = row * k + column // 64 * 64 + column % 16 * 4 + column % 64 // 16  # `kernel_order`
    tl.store(out + place, ((number - low) >> 8).to(tl.int8), mask=real)
    tl.store(out + rows * k + place, low.to(tl.int8), mask=real)
    tl.store(scale + row, step)


@triton.jit
def _skinny_linear_int16(
    split, row_scale, weight, scale, bias, out, rows,
    n: tl.constexpr, k: tl.constexpr, biased: tl.constexpr, silu: tl.constexpr,
    block: tl.constexpr, columns: tl.constexpr, inner: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    """Do what `_skinny_linear_8_bits` does, for int8 weights and `Int16Rows`; sums of each byte are exact (int32)."""
    column = tl.program_id(0) * columns + tl.arange(0, columns)
    # Lines 0 to 7 are the high bytes of rows 0 to 7, lines 8 to 15 their low bytes, and so on. On Hopper one thread
    # then holds the sums of both bytes of a row.
    line = tl.arange(0, 2 * block)
    row = line // 16 * 8 + line % 8
    input_ = tl.arange(0, inner)
    weights = weight + column[:, None] * k + input_[None, :]
    inputs = split + (line // 8 % 2 * rows + row)[:, None] * k + input_[None, :]
    is_row = row[:, None] < rows
    sums = tl.zeros((2 * block, columns), tl.int32)
    for start in tl.range(0, k, inner, num_stages=stages):
        loaded = tl.load(weights + start, eviction_policy="evict_first")
        bytes_ = tl.load(inputs + start, mask=is_row, other=0, eviction_policy="evict_last")
        sums = tl.dot(bytes_, tl.trans(loaded), sums, out_dtype=tl.int32)
    value = tl.where(tl.arange(0, 2) == 0, 256.0, 1.0)[None, :, None, None]  # of a high and of a low byte
    total = tl.sum(tl.reshape(sums, (block // 8, 2, 8, columns)).to(tl.float32) * value, 1)
    total = tl.trans(tl.reshape(total, (block, columns)))
    row = tl.arange(0, block)
    total = total * tl.load(row_scale + row, mask=row < rows, other=0.0)[None, :]
    _store(total, scale, bias, out, column, 0, row, rows, n, True, biased, silu)


def supports(x: Tensor, weight: Tensor) -> bool:
    """Return True if the kernel supports `x` [..., k] and this weight [n, k]."""
    return x.numel() // x.shape[-1] <= MAX_ROWS and fits(weight) and weight.is_contiguous()


def takes_int16(x: Tensor, weight: Tensor) -> bool:
    """Return True if `linear_int16` is to compute the product of `x` [..., k] and this weight [n, k]."""
    # One or two rows are bound by reading the weights. Beyond 2^17 inputs a sum could exceed 32 bits.
    return weight.dtype == torch.int8 and x.numel() > 2 * x.shape[-1] and x.shape[-1] <= 2**17 and supports(x, weight)


def part_count(n: int, k: int, columns: int = 64, programs: int = WAVE, multiple: int = 64) -> int:
    """Return into how many parts to split k inputs: the least power of two that gives `programs` programs.

    It is smaller where k divided by it would be no multiple of `multiple`. A program computes `columns` of the n
    outputs for one part.
    """
    parts = 1
    while triton.cdiv(n, columns) * parts < programs and k % (2 * parts * multiple) == 0:
        parts *= 2
    return parts


def choose_tile(n: int, k: int, rows: int, weight_bytes: int, *, split: bool) -> Tile:
    """Return the tile for [rows, k] inputs and n outputs; without `split`, all inputs belong to one part."""
    if weight_bytes == 1:  # within 1.3% of the fastest of about 20 to 130 tiles, on an H100 with 1, 2, 17 and 34 rows
        if split:  # 384 programs: 24 times 64 columns in 16 parts, at the largest layer that is split
            return Tile(64, 128, part_count(n, k, programs=384, multiple=128), stages=3, warps=4)
        return Tile(16, 512, 1, stages=3, warps=2) if rows == 1 else Tile(64, 256, 1, stages=3, warps=4)
    if rows == 1 and not split:  # the fastest of 14 for seven layers on an H200, or within 4% of it
        return (
            Tile(2, 2048, 1, stages=2, warps=4) if k % 2048 == 0 and k < 8192 else Tile(4, 1024, 1, stages=3, warps=4)
        )
    columns, inner = 64, 128  # 64: the minimum of a Hopper warp-group MMA
    parts = part_count(n, k, columns) if split else 1
    return Tile(columns, inner, parts, stages=6 if rows <= 32 else 4, warps=4)


def _tile(x: Tensor, weight: Tensor, *, split: bool = False) -> Tile:
    n, k = weight.shape
    return choose_tile(n, k, x.numel() // k, weight.itemsize, split=split)


@triton_op("models::linear", mutates_args=())
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, scale: Tensor | None = None) -> Tensor:
    """Return `x·weightᵀ + bias` [..., n] in the dtype of `x`; sums are fp32.

    Args:
        x: fp16 or bf16 [..., k], at most `MAX_ROWS` rows.
        weight: contiguous [n, k] in the dtype of `x`, or in 8 bits from `quantise`; n and k are multiples of 64.
        bias: [n], or None.
        scale: fp32 [n] of `quantise`; None for a weight in the dtype of `x`.

    Raises:
        ValueError: a weight of 8 bits without a scale, or another one with a scale.
    """
    out = x.new_empty((*x.shape[:-1], weight.shape[0]))
    _launch(x, weight, bias, scale, out, _tile(x, weight))
    return out


@triton_op("models::linear_silu", mutates_args=())
def linear_silu(x: Tensor, weight: Tensor, bias: Tensor | None = None, scale: Tensor | None = None) -> Tensor:
    """Return SiLU of `linear`, which is done in fp32 before the result is rounded."""
    out = x.new_empty((*x.shape[:-1], weight.shape[0]))
    _launch(x, weight, bias, scale, out, _tile(x, weight), silu=True)
    return out


@triton_op("models::linear_parts", mutates_args=())
def linear_parts(x: Tensor, weight: Tensor, bias: Tensor | None = None, scale: Tensor | None = None) -> Tensor:
    """Return fp32 [parts, ..., n], whose sum over parts is `linear`."""
    tile = _tile(x, weight, split=True)
    out = x.new_empty((tile.parts, *x.shape[:-1], weight.shape[0]), dtype=torch.float32)
    _launch(x, weight, bias, scale, out, tile)
    return out


@triton_op("models::linear_int16", mutates_args=())
def linear_int16(
    split: Tensor, row_scale: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor,
    dtype: torch.dtype, silu: bool = False,
) -> Tensor:  # fmt: skip
    """Return `x·weightᵀ + bias` [..., n], with `silu` SiLU of it, where an `Int16Rows` holds the rows of x.

    Args:
        split: `Int16Rows.split`, [2, ..., k], at most `MAX_ROWS` rows.
        row_scale: `Int16Rows.scale`, [...].
        weight: int8 [n, k] of `quantise`; n and k are multiples of 64.
        bias: [n], or None.
        scale: fp32 [n] of `quantise`.
        dtype: of the result.
        silu: computed in fp32 before the result is rounded.
    """
    n, k = weight.shape
    rows = row_scale.numel()
    out = torch.empty((*row_scale.shape, n), dtype=dtype, device=split.device)
    block = max(triton.next_power_of_2(rows), 32)  # both bytes of 32 rows are the 64 of a Hopper warp-group MMA
    # The fastest of 42 to 52 tiles on an H100 with 17 and 34 rows.
    tile = Tile(64, 128, 1, stages=8, warps=4) if block == 32 else Tile(64, 256, 1, stages=4, warps=8)
    columns, inner, _, stages, warps = fitted(tile, k, 2 * block, 1, split.device)
    wrap_triton(_skinny_linear_int16)[(n // columns,)](
        split, row_scale, weight, scale, weight if bias is None else bias, out, rows,
        n=n, k=k, biased=bias is not None, silu=silu,
        block=block, columns=columns, inner=inner, stages=stages, num_warps=warps,
    )  # fmt: skip
    return out


@register_flop_formula(torch.ops.models.linear_int16)
def _flops_of_int16(split: list[int], row_scale: list[int], weight: list[int], *_: object, **__: object) -> int:
    return _flops([*row_scale, weight[1]], weight)


@register_flop_formula([torch.ops.models.linear, torch.ops.models.linear_silu, torch.ops.models.linear_parts])
def _flops(x: list[int], weight: list[int], *_: object, **__: object) -> int:
    rows = 1
    for size in x[:-1]:
        rows *= size
    return 2 * rows * weight[0] * weight[1]


@cache
def _shared_bytes(device: torch.device) -> int:
    """Return the shared memory that a program may use: 227 KiB on Hopper, less on many other GPUs."""
    properties = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    return int(getattr(properties, "shared_memory_per_block_optin", 227 * 1024))


def fitted(tile: Tile, k: int, input_bytes: int, weight_bytes: int, device: torch.device) -> Tile:
    """Return the tile with inputs that divide those of a part, and with stages that fit into shared memory.

    `input_bytes` and `weight_bytes` are those of one input, in all rows, and of one weight.
    """
    columns, inner, parts, stages, warps = tile
    while (k // parts) % inner:
        inner, stages = inner // 2, stages * 2  # as many bytes in flight
    stage_bytes = inner * (columns * weight_bytes + input_bytes)
    stages = min(stages, k // parts // inner, max(_shared_bytes(device) // stage_bytes, 1))
    return Tile(columns, inner, parts, stages, warps)


def _launch(
    x: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor | None, out: Tensor, tile: Tile, *, silu: bool = False
) -> None:
    if (scale is not None) != (weight.dtype in EIGHT_BITS):
        raise ValueError(f"a weight in {weight.dtype} {'has no' if scale is None else 'must not have a'} scale")
    n, k = weight.shape
    rows = x.numel() // k
    block = 1 if rows == 1 else max(triton.next_power_of_2(rows), 16)  # a product on tensor cores has 16 at least
    input_bytes = 0 if block == 1 else block * x.itemsize
    columns, inner, parts, stages, warps = fitted(tile, k, input_bytes, weight.itemsize, x.device)
    wrap_triton(_skinny_linear if scale is None else _skinny_linear_8_bits)[(n // columns, parts)](
        x.contiguous(), weight, weight if scale is None else scale, weight if bias is None else bias, out, rows,
        n=n, k=k, parts=parts, biased=bias is not None, silu=silu,
        block=block, columns=columns, inner=inner, stages=stages, num_warps=warps,
    )  # fmt: skip
