"""One pass through the transformer blocks in Triton kernels: `Block` in fewer launches."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.attention import Attention, RingCache
from models.embeddings import MLP
from models.kernels.eight_bits import Int16Rows
from models.kernels.modulated_norm_triton import add_modulated_norm
from models.kernels.ring_attention import Visibility, ring_attention
from models.kernels.ring_attention_triton import write_ring
from models.kernels.skinny_linear_triton import linear_int16, linear_parts, linear_silu, supports, takes_int16
from models.skinny_linear import SkinnyLinear, operands
from models.transformer import Block, Modulation

#: A block, its ring cache, and its modulation.
Layer = tuple[Block, RingCache, Modulation]


def run_blocks(tokens: Tensor, layers: Iterable[Layer], rotation: Tensor, slots: Tensor, seen: Visibility) -> Tensor:
    """Map tokens [b, g, m, d] of g frames to the same shape; their keys and values are written into the rings.

    The residual stream is carried as `residual + gate·branch`, not yet added: the add belongs to the kernel of the next
    norm, also from one block to the next. So does the sum of a branch's parts [parts, b, g, m, d].

    Args:
        tokens: fp16 or bf16, on a GPU.
        layers: from the first to the last.
        rotation: fp32 [2, g·m, head_dim].
        slots: slot of each frame in the rings, int64 [g].
        seen: which slots each frame attends to, for the Triton kernel.
    """
    residual, branch, gate = tokens, None, None
    for block, cache, modulation in layers:
        residual, normed = add_modulated_norm(
            residual, branch, gate, modulation.factor1, modulation.shift1, int16=_in_int16(block.attn.qkv, tokens)
        )
        branch = _attention_parts(block.attn, cache, normed, rotation, slots, seen)
        residual, normed = add_modulated_norm(
            residual, branch, modulation.gate1, modulation.factor2, modulation.shift2,
            int16=_in_int16(block.mlp.fc1, tokens),
        )  # fmt: skip
        branch, gate = _mlp_parts(block.mlp, normed, tokens.dtype), modulation.gate2
    if branch is None or gate is None:  # no layers
        return residual
    return torch.addcmul(residual, branch.sum(0).to(residual.dtype), gate)


def _attention_parts(
    attn: Attention, cache: RingCache, normed: Tensor | Int16Rows, rotation: Tensor, slots: Tensor, seen: Visibility
) -> Tensor:
    """Map normalised tokens [b, g, m, d] to the attention output in parts [parts, b, g, m, d]."""
    gains = attn.qk_norm.q_norm.gain, attn.qk_norm.k_norm.gain
    qkv = _int16_product(normed, attn.qkv, cache.k.dtype) if isinstance(normed, Int16Rows) else attn.qkv(normed)
    q = write_ring(qkv.flatten(1, 2), *gains, rotation, slots, cache.k, cache.v)
    attended = ring_attention(q, cache.k, cache.v, seen).flatten(3)
    if _runs_in_kernel(attn.out, attended):
        return linear_parts(attended, *operands(attn.out))
    return attn.out(attended).unsqueeze(0)


def _mlp_parts(mlp: MLP, normed: Tensor | Int16Rows, dtype: torch.dtype) -> Tensor:
    """Map normalised tokens [b, g, m, d] to the MLP output in parts [parts, b, g, m, d]."""
    if isinstance(normed, Int16Rows):
        hidden = _int16_product(normed, mlp.fc1, dtype, silu=True)
    elif _runs_in_kernel(mlp.fc1, normed):
        hidden = linear_silu(normed, *operands(mlp.fc1))
    else:
        hidden = F.silu(mlp.fc1(normed))
    if _runs_in_kernel(mlp.fc2, hidden):
        return linear_parts(hidden, *operands(mlp.fc2))
    return mlp.fc2(hidden).unsqueeze(0)


def _runs_in_kernel(layer: nn.Module, x: Tensor) -> bool:
    """Return True if a kernel is to compute the product of `x` [..., k]: it can, and `layer` allows so many rows."""
    rows = x.numel() // x.shape[-1]
    return supports(x, operands(layer)[0]) and rows <= getattr(layer, "max_rows", rows)


def _in_int16(layer: nn.Module, tokens: Tensor) -> bool:
    """Return True if `layer` is to get its input, of the shape of `tokens`, as `Int16Rows`."""
    return isinstance(layer, SkinnyLinear) and takes_int16(tokens, layer.stored) and _runs_in_kernel(layer, tokens)


def _int16_product(rows: Int16Rows, layer: nn.Module, dtype: torch.dtype, *, silu: bool = False) -> Tensor:
    weight, bias, scale = operands(layer)
    assert scale is not None
    return linear_int16(rows.split, rows.scale, weight, bias, scale, dtype, silu)
