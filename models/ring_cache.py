"""Keys and values of the last frames in memory that is allocated once and written in place."""

import torch
from torch import Tensor, nn

from models.world_model import WorldModelParams


class RingCache(nn.Module):
    """One layer's ring: frame f lies in slot f mod (n_frames + 1), keys already rotated.

    One slot more than the window has frames: a new frame is worked on in the slot where it will be committed, while the
    window of the frame before it is still whole.
    """

    k: Tensor
    v: Tensor

    def __init__(self, params: WorldModelParams, batch: int) -> None:
        super().__init__()
        self.slots = params.n_frames + 1
        shape = (batch, self.slots, params.tokens_per_frame, params.n_heads, params.head_dim)
        for name in ("k", "v"):
            # Zeros and not whatever lies there: what no query sees is weighted by 0, and 0 times NaN is NaN.
            self.register_buffer(name, torch.zeros(shape), persistent=False)

    def write(self, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Write keys and values [b, g, m, heads, head_dim] of g frames into `slots`, int64 [g] on the device."""
        self.k.index_copy_(1, slots, k)
        self.v.index_copy_(1, slots, v)

    def reset(self) -> None:
        """Forget everything, in place."""
        self.k.zero_()
        self.v.zero_()
