"""A Triton kernel that ends one branch of a transformer block and starts the next.

A pass has a few dozen tokens, so launches and memory traffic dominate its time. This is one launch of what
`modulated_norm.py` does in several: gated add, LayerNorm, factor and shift. A program holds a row in registers, reads
it once, and writes both the residual stream and the input of the next matrix product.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

from models.kernels.eight_bits import Int16Rows
from models.kernels.skinny_linear_triton import store_int16_row

PER_WARP = 256  # elements: 8 for each thread, one load of 16 bytes in half precision


@triton.jit
def _add_modulated_norm(
    residual, branch, gate, factor, shift, summed, normed, normed_scale,
    gate_b, gate_g, factor_b, factor_g, shift_b, shift_g, rows,
    eps: tl.constexpr, groups: tl.constexpr, tokens: tl.constexpr,
    width: tl.constexpr, block: tl.constexpr, parts: tl.constexpr, int16: tl.constexpr,
):  # fmt: skip
    """Process one row; with 0 parts there is no branch, and `branch`, `gate` and `summed` are not accessed.

    With `int16`, `normed` and `normed_scale` are `split` and `scale` of an `Int16Rows`.
    """
    row = tl.program_id(0).to(tl.int64)
    batch, group = row // tokens // groups, row // tokens % groups
    dim = tl.arange(0, block)
    real = dim < width
    at = row * width + dim
    x = tl.load(residual + at, mask=real, other=0.0).to(tl.float32)
    scale_by = tl.load(factor + batch * factor_b + group * factor_g + dim, mask=real, other=0.0).to(tl.float32)
    shift_by = tl.load(shift + batch * shift_b + group * shift_g + dim, mask=real, other=0.0).to(tl.float32)
    if parts > 0:
        weight = tl.load(gate + batch * gate_b + group * gate_g + dim, mask=real, other=0.0).to(tl.float32)
        added = tl.load(branch + at, mask=real, other=0.0).to(tl.float32)
        for part in tl.static_range(1, parts):
            added += tl.load(branch + part * rows * width + at, mask=real, other=0.0).to(tl.float32)
        rounded = (x + weight * added).to(summed.dtype.element_ty)
        tl.store(summed + at, rounded, mask=real)
        x = rounded.to(tl.float32)  # normalise the rounded numbers, which the next branch is added to
    centred = tl.where(real, x - tl.sum(x, 0) / width, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 0) / width + eps)
    numbers = centred * scale * scale_by + shift_by
    if int16:
        store_int16_row(numbers, normed, normed_scale, row, rows, width, dim, real)
    else:
        tl.store(normed + at, numbers.to(normed.dtype.element_ty), mask=real)


@triton_op("models::start_norm", mutates_args=())
def start_norm(residual: Tensor, factor: Tensor, shift: Tensor) -> Tensor:
    """Return `normed` of `add_modulated_norm` without a branch."""
    normed = torch.empty_like(residual, memory_format=torch.contiguous_format)
    _launch(residual, None, None, factor, shift, None, normed)
    return normed


@triton_op("models::start_norm_int16", mutates_args=())
def start_norm_int16(residual: Tensor, factor: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `start_norm` does, as `Int16Rows`."""
    normed = _empty_int16(residual)
    _launch(residual, None, None, factor, shift, None, *normed)
    return normed


@triton_op("models::add_norm", mutates_args=())
def add_norm(residual: Tensor, branch: Tensor, gate: Tensor, factor: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """Return `summed` and `normed` of `add_modulated_norm`."""
    summed, normed = (torch.empty_like(residual, memory_format=torch.contiguous_format) for _ in range(2))
    _launch(residual, branch, gate, factor, shift, summed, normed)
    return summed, normed


@triton_op("models::add_norm_int16", mutates_args=())
def add_norm_int16(
    residual: Tensor, branch: Tensor, gate: Tensor, factor: Tensor, shift: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `add_norm` does, `normed` as `Int16Rows`."""
    summed = torch.empty_like(residual, memory_format=torch.contiguous_format)
    normed = _empty_int16(residual)
    _launch(residual, branch, gate, factor, shift, summed, *normed)
    return summed, *normed


def _empty_int16(like: Tensor) -> tuple[Tensor, Tensor]:
    split = like.new_empty((2, *like.shape), dtype=torch.int8)
    return split, like.new_empty(like.shape[:-1], dtype=torch.float32)


def add_modulated_norm(
    residual: Tensor, branch: Tensor | None, gate: Tensor | None, factor: Tensor, shift: Tensor, *, int16: bool = False
) -> tuple[Tensor, Tensor | Int16Rows]:
    """Return `summed = residual + gate·(sum of branch)` and `normed = layer_norm(summed)·factor + shift`.

    Arithmetic is fp32 with an epsilon of 1e-5; `summed` is rounded before it is normalised. There is no gradient.
    Without a branch, `summed` is `residual` itself.

    Args:
        residual: tokens [b, g, m, d]; up to d = 4096 a row fits into registers.
        branch: parts [parts, b, g, m, d] of any dtype, whose sum is added, or None.
        gate: weight of the branch [b, g, 1, d], or None.
        factor: [b, g, 1, d]; factor, gate and shift may have any strides over b and g, and a stride of 1 over d.
        shift: [b, g, 1, d].
        int16: return `normed` as `Int16Rows`, for `linear_int16`; d is a multiple of 64.

    Returns:
        Two contiguous tensors [b, g, m, d] of the dtype of `residual`; with `int16` the second is an `Int16Rows`.

    Raises:
        ValueError: the shapes do not match, or a vector has a stride over d other than 1.
    """
    b, g, _, d = residual.shape
    for name, vector in (("gate", gate), ("factor", factor), ("shift", shift)):
        if vector is not None and (vector.shape != (b, g, 1, d) or vector.stride(-1) != 1):
            raise ValueError(
                f"{name} {list(vector.shape)} with strides {list(vector.stride())} does not match tokens "
                f"{list(residual.shape)}: it must be [b, g, 1, d], with a stride of 1 over d"
            )
    residual = residual.contiguous()
    if branch is None or gate is None:
        if int16:
            return residual, Int16Rows(*start_norm_int16(residual, factor, shift))
        return residual, start_norm(residual, factor, shift)
    if branch.shape[1:] != residual.shape or not len(branch):
        raise ValueError(
            f"a branch {list(branch.shape)} cannot be added to tokens {list(residual.shape)}: "
            "it must be [parts, b, g, m, d], of one part or more"
        )
    if int16:
        summed, *normed = add_norm_int16(residual, branch.contiguous(), gate, factor, shift)
        return summed, Int16Rows(*normed)
    return add_norm(residual, branch.contiguous(), gate, factor, shift)


def _launch(
    residual: Tensor, branch: Tensor | None, gate: Tensor | None, factor: Tensor, shift: Tensor,
    summed: Tensor | None, normed: Tensor, normed_scale: Tensor | None = None,
) -> None:  # fmt: skip
    b, g, m, d = residual.shape
    block = triton.next_power_of_2(d)
    gate = factor if gate is None else gate
    wrap_triton(_add_modulated_norm)[(b * g * m,)](
        residual, factor if branch is None else branch, gate, factor, shift,
        factor if summed is None else summed, normed, factor if normed_scale is None else normed_scale,
        *gate.stride()[:2], *factor.stride()[:2], *shift.stride()[:2], b * g * m,
        eps=1e-5, groups=g, tokens=m, width=d, block=block, parts=0 if branch is None else branch.shape[0],
        int16=normed_scale is not None, num_warps=min(max(block // PER_WARP, 1), 16),
    )  # fmt: skip
