"""Attention to the frames of a pass and to the keys and values of earlier frames, which a ring keeps."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.kernels.ring_attention import Visibility, ring_attention


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return scaled dot-product attention of q, k and v [b, s, heads, head_dim]; shape as q.

    The bool `mask` [s, s] is true where a query (row) attends to a key (column). None: everywhere.
    """
    heads_first = (tensor.transpose(1, 2) for tensor in (q, k, v))
    return F.scaled_dot_product_attention(*heads_first, attn_mask=mask).transpose(1, 2)


class CachedFrames(NamedTuple):
    """The g frames of one pass, the same in all layers."""

    slots: Tensor  # int64, where the keys and values of the last frames of the pass are written: of all g, if they fit
    sees: Visibility | Tensor  # slots of the ring; in a pass that fills it, tokens of the pass, bool [g·m, g·m]


class RingCache(nn.Module):
    """One layer's keys (already rotated) and values, [batch, slots, m, heads, head_dim] each, written in place."""

    k: Tensor
    v: Tensor

    def __init__(self, batch: int, slots: int, tokens_per_frame: int, n_heads: int, head_dim: int) -> None:
        super().__init__()
        for name in ("k", "v"):
            # Zeros, not uninitialised memory: an unseen slot has weight 0, and 0 times NaN is NaN.
            zeros = torch.zeros(batch, slots, tokens_per_frame, n_heads, head_dim)
            self.register_buffer(name, zeros, persistent=False)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, frames: CachedFrames) -> Tensor:
        """Write the frames' keys and values into the ring, and return the attention output of their queries.

        All are [b, g·m, heads, head_dim]; queries and keys are rotated.
        """
        by_frame = [tensor.unflatten(1, (-1, self.k.shape[2])) for tensor in (q, k, v)]  # [b, g, m, heads, head_dim]
        written = frames.slots.shape[0]
        self.write(frames.slots, *(tensor[:, -written:] for tensor in by_frame[1:]))
        if isinstance(frames.sees, Tensor):
            return attend(q, k, v, frames.sees)
        return ring_attention(by_frame[0], self.k, self.v, frames.sees).flatten(1, 2)

    def write(self, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Write keys and values [b, g, m, heads, head_dim] of g frames into `slots`, int64 [g] on the device."""
        self.k.index_copy_(1, slots, k)
        self.v.index_copy_(1, slots, v)
