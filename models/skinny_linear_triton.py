"""Linear layers with few rows (skinny GEMMs), which are bound by reading the weights once: in 16 bits, or in 8.

A library GEMM needs another launch if it splits the inputs (split-K), and one for SiLU. Here the next kernel
(`add_modulated_norm`) sums the parts, and SiLU is computed before the store. Weights of 8 bits
(`models.skinny_linear`) are widened in registers, so that half of the bytes are read; products and sums are the same.
"""

import os
from typing import NamedTuple

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor
from torch.library import triton_op, wrap_triton
from torch.utils.flop_counter import register_flop_formula

from models.skinny_linear import MAX_ROWS, fits

WAVE = 80  # programs that saturate an H200's memory bandwidth; more parts only cost additions


class Tile(NamedTuple):
    """What one program computes: `columns` outputs over 1/`parts` of the inputs, `inner` inputs per iteration."""

    columns: int
    inner: int
    parts: int
    stages: int  # iterations whose loads are in flight
    warps: int


# Assembly that widens four 8-bit numbers in fewer instructions than the compiler's. Each is one line, because
# inductor copies the text into a string of the code that it generates.

#: float8_e4m3fn to bf16: shift sign, exponent and mantissa, then multiply by 2^120, the difference of the exponent
#: biases. Wrong for NaN.
_E4M3_TO_BF16 = tl.constexpr(
    """{
.reg .b32 low, high, a, b, power, zero;
mov.b32 power, 0x7b807b80;
mov.b32 zero, 0x80008000;
prmt.b32 low, $2, 0, 0x1404;
prmt.b32 high, $2, 0, 0x3424;
and.b32 a, low, 0x7f007f00;
and.b32 b, high, 0x7f007f00;
shr.u32 a, a, 4;
shr.u32 b, b, 4;
lop3.b32 a, low, 0x80008000, a, 0xea;
lop3.b32 b, high, 0x80008000, b, 0xea;
fma.rn.bf16x2 $0, a, power, zero;
fma.rn.bf16x2 $1, b, power, zero;
}""".replace("\n", " ")
)
#: int8 to bf16: (128 + the lower seven bits) - (128, or 256 where the sign bit is set), each made by setting bits.
_INT8_TO_BF16 = tl.constexpr(
    """{
.reg .b32 low, high, a, b, minus;
mov.b32 minus, 0xbf80bf80;
prmt.b32 low, $2, 0, 0x1100;
prmt.b32 high, $2, 0, 0x3322;
lop3.b32 a, low, 0x007f007f, 0x43004300, 0xea;
lop3.b32 b, low, 0x00800080, 0x43004300, 0xea;
fma.rn.bf16x2 $0, b, minus, a;
lop3.b32 a, high, 0x007f007f, 0x43004300, 0xea;
lop3.b32 b, high, 0x00800080, 0x43004300, 0xea;
fma.rn.bf16x2 $1, b, minus, a;
}""".replace("\n", " ")
)
#: int8 to fp32: (2^23 + 128 + number), whose lowest byte is the number with its sign bit flipped, less 2^23 + 128.
_INT8_TO_FP32 = tl.constexpr(
    """{
.reg .b32 flipped, one, two, three, four;
xor.b32 flipped, $4, 0x80808080;
prmt.b32 one, flipped, 0x4b000000, 0x7440;
prmt.b32 two, flipped, 0x4b000000, 0x7441;
prmt.b32 three, flipped, 0x4b000000, 0x7442;
prmt.b32 four, flipped, 0x4b000000, 0x7443;
add.f32 $0, one, 0fcb000080;
add.f32 $1, two, 0fcb000080;
add.f32 $2, three, 0fcb000080;
add.f32 $3, four, 0fcb000080;
}""".replace("\n", " ")
)
#: Triton's interpreter supports no assembly, and casts integers to bf16 wrongly.
_INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def _widen(weights, dtype: tl.constexpr):
    """Return 8-bit or 16-bit `weights` exactly in the 16-bit or 32-bit `dtype`."""
    if not _INTERPRETED and dtype == tl.bfloat16:
        if weights.dtype == tl.float8e4nv:
            return tl.inline_asm_elementwise(
                _E4M3_TO_BF16, "=r,=r,r", [weights], dtype=tl.bfloat16, is_pure=True, pack=4
            )
        if weights.dtype == tl.int8:
            return tl.inline_asm_elementwise(
                _INT8_TO_BF16, "=r,=r,r", [weights], dtype=tl.bfloat16, is_pure=True, pack=4
            )
    if not _INTERPRETED and dtype == tl.float32 and weights.dtype == tl.int8:
        return tl.inline_asm_elementwise(
            _INT8_TO_FP32, "=f,=f,=f,=f,r", [weights], dtype=tl.float32, is_pure=True, pack=4
        )
    return weights.to(dtype)


@triton.jit
def _skinny_linear(
    x, weight, scale, bias, out, rows,
    n: tl.constexpr, k: tl.constexpr, parts: tl.constexpr,
    scaled: tl.constexpr, biased: tl.constexpr, silu: tl.constexpr,
    block: tl.constexpr, columns: tl.constexpr, inner: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    """Write `columns` outputs (axis 0 of the grid) of all rows, summed over the inputs of one part (axis 1)."""
    column = tl.program_id(0) * columns + tl.arange(0, columns)
    part = tl.program_id(1)
    row = tl.arange(0, block)
    if block == 1:  # a single row: multiply and add without tensor cores, and sum over the inputs at the end
        sums = tl.zeros((columns, inner), tl.float32)
        for start in tl.range(0, k // parts, inner, num_stages=stages):
            at = part * (k // parts) + start + tl.arange(0, inner)
            weights = tl.load(weight + column[:, None] * k + at[None, :], eviction_policy="evict_first")
            weights = _widen(weights, tl.float32)
            sums += weights * tl.load(x + at, eviction_policy="evict_last").to(tl.float32)[None, :]
        total = tl.sum(sums, 1)[:, None]
    else:
        total = tl.zeros((columns, block), tl.float32)
        for start in tl.range(0, k // parts, inner, num_stages=stages):
            at = part * (k // parts) + start + tl.arange(0, inner)
            # Each weight is read once. It must not evict the rows, which all programs read, from the cache.
            weights = tl.load(weight + column[:, None] * k + at[None, :], eviction_policy="evict_first")
            inputs = tl.load(
                x + row[:, None] * k + at[None, :], mask=row[:, None] < rows, other=0.0, eviction_policy="evict_last"
            )
            # Weights are the left operand: the wide side. All numbers of 8 bits are exact in fp16 and bf16.
            total = tl.dot(_widen(weights, inputs.dtype), tl.trans(inputs), total)
    if scaled:
        total = total * tl.load(scale + column)[:, None]
    if biased:
        offset = tl.load(bias + column).to(tl.float32)
        total += tl.where(part == 0, offset, 0.0)[:, None]
    if silu:
        total = total * tl.sigmoid(total)
    offsets = (part * rows + row[None, :]) * n + column[:, None]
    tl.store(out + offsets, total.to(out.dtype.element_ty), mask=row[None, :] < rows)


def supports(x: Tensor, *weights: Tensor) -> bool:
    """Return True if the kernel supports `x` [..., k] through layers with these weights [n, k], one after the other."""
    few = x.numel() // x.shape[-1] <= MAX_ROWS
    return few and all(fits(w) and w.is_contiguous() for w in weights)


def part_count(n: int, k: int, columns: int = 64, programs: int = WAVE, multiple: int = 64) -> int:
    """Return the number of parts that k inputs of n outputs are split into: a power of two, up to `programs` programs.

    A program computes `columns` outputs of one part, whose inputs are a multiple of `multiple`.
    """
    parts = 1
    while triton.cdiv(n, columns) * parts < programs and k % (2 * parts * multiple) == 0:
        parts *= 2
    return parts


def choose_tile(n: int, k: int, rows: int, weight_bytes: int, *, split: bool) -> Tile:
    """Return the tile for [rows, k] inputs and n outputs; without `split`, all inputs belong to one part."""
    if weight_bytes == 1:  # fastest (within 2%) on an H200 with 1, 2 and 17 rows; others were not measured
        if split:
            return Tile(64, 128, part_count(n, k, programs=384, multiple=128), stages=3, warps=4)
        if rows <= 16:
            return Tile(16 if rows == 1 else 32, 256, 1, stages=3, warps=2)
        return Tile(16, 256, 1, stages=4, warps=1) if rows <= 32 else Tile(64, 128, 1, stages=4, warps=4)
    columns, inner = 64, 128  # 64: the minimum of a Hopper warp-group MMA
    parts = part_count(n, k, columns) if split else 1
    # As many stages as fit into a Hopper SM's 227 KiB of shared memory.
    return Tile(columns, inner, parts, stages=6 if rows <= 32 else 4, warps=4)


def _tile(x: Tensor, weight: Tensor, *, split: bool = False) -> Tile:
    n, k = weight.shape
    return choose_tile(n, k, x.numel() // k, weight.itemsize, split=split)


@triton_op("models::linear", mutates_args=())
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, scale: Tensor | None = None) -> Tensor:
    """Return `x·(scale·weight)ᵀ + bias` [..., n] in the dtype of `x`; sums are fp32.

    Args:
        x: fp16 or bf16 [..., k], at most `MAX_ROWS` rows.
        weight: contiguous [n, k] in the dtype of `x`, int8 or float8_e4m3fn; n and k are multiples of 64.
        bias: [n], or None.
        scale: fp32 [n], by which a weight of 8 bits is multiplied; None for other weights.
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


@register_flop_formula([torch.ops.models.linear, torch.ops.models.linear_silu, torch.ops.models.linear_parts])
def _flops(x: list[int], weight: list[int], *_: object, **__: object) -> int:
    rows = 1
    for size in x[:-1]:
        rows *= size
    return 2 * rows * weight[0] * weight[1]


def _launch(
    x: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor | None, out: Tensor, tile: Tile, *, silu: bool = False
) -> None:
    n, k = weight.shape
    rows = x.numel() // k
    block = 1 if rows == 1 else max(triton.next_power_of_2(rows), 16)  # a product on tensor cores has 16 at least
    columns, inner, parts, stages, warps = tile
    while (k // parts) % inner:
        inner //= 2
    wrap_triton(_skinny_linear)[(n // columns, parts)](
        x.contiguous(), weight, weight if scale is None else scale, weight if bias is None else bias, out, rows,
        n=n, k=k, parts=parts, scaled=scale is not None, biased=bias is not None, silu=silu,
        block=block, columns=columns, inner=inner, stages=min(stages, k // parts // inner), num_warps=warps,
    )  # fmt: skip
