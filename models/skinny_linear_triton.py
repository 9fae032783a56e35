"""Linear layers with few rows (skinny GEMMs), which are bound by reading the weights once.

A library GEMM needs one more launch where it splits the inputs (split-K), and one for SiLU. Here the sums of the parts
are left to the kernel that reads them (`add_modulated_norm`), and SiLU is done before the store.
"""

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor
from torch.library import triton_op, wrap_triton
from torch.utils.flop_counter import register_flop_formula

MAX_ROWS = 64  # with more rows the weights no longer dominate the time
COLUMNS = 64  # outputs of one program: the minimum of a Hopper warp-group MMA
WAVE = 80  # programs that saturate an H200's memory bandwidth; more parts only cost additions
INNER = 128  # inputs loaded per iteration


@triton.jit
def _skinny_linear(
    x, weight, bias, out, rows,
    n: tl.constexpr, k: tl.constexpr, parts: tl.constexpr, silu: tl.constexpr,
    block: tl.constexpr, columns: tl.constexpr, inner: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    """Write `columns` outputs (axis 0 of the grid) of all rows, summed over the inputs of one part (axis 1)."""
    column = tl.program_id(0) * columns + tl.arange(0, columns)
    part = tl.program_id(1)
    row = tl.arange(0, block)
    total = tl.zeros((columns, block), tl.float32)
    for start in tl.range(0, k // parts, inner, num_stages=stages):
        at = part * (k // parts) + start + tl.arange(0, inner)
        # Each weight is read once and must not evict the rows from the cache, which all programs read.
        weights = tl.load(weight + column[:, None] * k + at[None, :], eviction_policy="evict_first")
        inputs = tl.load(
            x + row[:, None] * k + at[None, :], mask=row[:, None] < rows, other=0.0, eviction_policy="evict_last"
        )
        total = tl.dot(weights, tl.trans(inputs), total)  # weights as the left operand: the wide side
    offset = tl.load(bias + column).to(tl.float32)
    total += tl.where(part == 0, offset, 0.0)[:, None]
    if silu:
        total = total * tl.sigmoid(total)
    offsets = (part * rows + row[None, :]) * n + column[:, None]
    tl.store(out + offsets, total.to(out.dtype.element_ty), mask=row[None, :] < rows)


def supports(x: Tensor, *weights: Tensor) -> bool:
    """Return True if the kernel supports `x` [..., k] through layers with these weights [n, k], one after the other."""
    few = x.numel() // x.shape[-1] <= MAX_ROWS
    return few and all(n % COLUMNS == 0 and k % 64 == 0 and w.is_contiguous() for w in weights for n, k in (w.shape,))


def part_count(n: int, k: int) -> int:
    """Return the number of parts that k inputs of n outputs are split into: a power of two, up to `WAVE` programs."""
    parts = 1
    while triton.cdiv(n, COLUMNS) * parts < WAVE and k % (2 * parts * 64) == 0:
        parts *= 2
    return parts


@triton_op("models::linear_silu", mutates_args=())
def linear_silu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return `silu(x·weightᵀ + bias)` [..., n] in the dtype of `x`; sums and SiLU are fp32.

    Args:
        x: [..., k], at most `MAX_ROWS` rows.
        weight: contiguous [n, k]; n and k are multiples of 64.
        bias: [n].
    """
    out = x.new_empty((*x.shape[:-1], weight.shape[0]))
    _launch(x, weight, bias, out, parts=1, silu=True)
    return out


@triton_op("models::linear_parts", mutates_args=())
def linear_parts(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return fp32 [parts, ..., n], whose sum over parts is `x·weightᵀ + bias`; arguments as for `linear_silu`."""
    n, k = weight.shape
    out = x.new_empty((part_count(n, k), *x.shape[:-1], n), dtype=torch.float32)
    _launch(x, weight, bias, out, parts=out.shape[0], silu=False)
    return out


@register_flop_formula([torch.ops.models.linear_silu, torch.ops.models.linear_parts])
def _flops(x: list[int], weight: list[int], *_: object, **__: object) -> int:
    rows = 1
    for size in x[:-1]:
        rows *= size
    return 2 * rows * weight[0] * weight[1]


def _launch(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor, *, parts: int, silu: bool) -> None:
    n, k = weight.shape
    rows = x.numel() // k
    block = 32 if rows <= 32 else 64
    inner = INNER
    while (k // parts) % inner:
        inner //= 2
    # As many stages as fit into a Hopper SM's 227 KiB of shared memory, but not more than there are iterations.
    stages = min(6 if block == 32 else 4, k // parts // inner)
    wrap_triton(_skinny_linear)[(n // COLUMNS, parts)](
        x.contiguous(), weight, bias, out, rows,
        n=n, k=k, parts=parts, silu=silu, block=block, columns=COLUMNS, inner=inner, stages=stages, num_warps=4,
    )  # fmt: skip
