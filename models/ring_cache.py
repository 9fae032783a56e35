"""The keys and values of earlier frames that one layer keeps."""

import torch
from torch import Tensor, nn


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

    def write(self, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Write keys and values [b, g, m, heads, head_dim] of g frames into `slots`, int64 [g] on the device."""
        self.k.index_copy_(1, slots, k)
        self.v.index_copy_(1, slots, v)
