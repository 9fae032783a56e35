"""A pass through the blocks in fused kernels: what `Block.steered` and `Attention.attended` do, in fewer launches.

The residual stream is carried as a sum that is not yet made, `residual + gate·branch`: the add belongs to the kernel of
the norm that follows it, also from one block to the next. So does the sum of a branch's parts, [parts, b, g, m, d].
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from models.attention import Attention
from models.embeddings import MLP
from models.ring_attention import Visibility, ring_attention
from models.ring_cache import RingCache
from models.ring_write_triton import write_ring
from models.skinny_linear_triton import linear_parts, linear_silu, serves
from models.steer_norm_triton import steer_norm
from models.transformer import Block, Modulation

#: A block, its ring, and what the condition does to it.
Layer = tuple[Block, RingCache, Modulation]


def through_layers(
    tokens: Tensor, layers: Iterable[Layer], rotation: Tensor, slots: Tensor, seen: Visibility
) -> Tensor:
    """Map tokens [b, g, m, d] of g frames to the same shape; their keys and values are written into the rings.

    Args:
        tokens: fp16 or bf16, on a GPU.
        layers: from the first to the last.
        rotation: fp32 [2, g·m, head_dim].
        slots: int64 [g], where each frame lies in the rings.
        seen: what each frame sees of them, with no mask.
    """
    residual, branch, gate = tokens, None, None
    for block, cache, steer in layers:
        residual, normed = steer_norm(residual, branch, gate, steer.factor1, steer.shift1)
        branch = _attended(block.attn, cache, normed, rotation, slots, seen)
        residual, normed = steer_norm(residual, branch, steer.gate1, steer.factor2, steer.shift2)
        branch, gate = _fed_forward(block.mlp, normed), steer.gate2
    if branch is None or gate is None:  # no layers
        return residual
    return torch.addcmul(residual, branch.sum(0).to(residual.dtype), gate)


def _attended(
    attn: Attention, cache: RingCache, normed: Tensor, rotation: Tensor, slots: Tensor, seen: Visibility
) -> Tensor:
    """Map normalised tokens [b, g, m, d] to parts of the attended ones."""
    gains = attn.qk_norm.q_norm.gain, attn.qk_norm.k_norm.gain
    q = write_ring(attn.qkv(normed.flatten(1, 2)), *gains, rotation, slots, cache.k, cache.v)
    attended = ring_attention(q, cache.k, cache.v, seen).flatten(3)
    if serves(attended, attn.out.weight):
        return linear_parts(attended, attn.out.weight, attn.out.bias)
    return attn.out(attended).unsqueeze(0)


def _fed_forward(mlp: MLP, normed: Tensor) -> Tensor:
    """Map normalised tokens [b, g, m, d] to parts of what the MLP makes of them."""
    if not serves(normed, mlp.fc1.weight, mlp.fc2.weight):
        return mlp(normed).unsqueeze(0)
    return linear_parts(linear_silu(normed, mlp.fc1.weight, mlp.fc1.bias), mlp.fc2.weight, mlp.fc2.bias)
