"""Self-attention with normalised queries and keys, of tokens to each other or to cached tokens of earlier frames."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.kernels.ring_attention import Visibility, ring_attention
from models.precision import at_least_fp32
from models.rotary import RotaryFrequencies, rotate


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return scaled dot-product attention of q, k and v [b, s, heads, head_dim]; shape as q.

    The bool `mask` [s, s] is true where a query (row) attends to a key (column). None: everywhere.
    """
    heads_first = (tensor.transpose(1, 2) for tensor in (q, k, v))
    return F.scaled_dot_product_attention(*heads_first, attn_mask=mask).transpose(1, 2)


class RingCache(nn.Module):
    """One layer's keys (already rotated) and values, [batch, slots, m, heads, head_dim] each, written in place.

    Which frame is in which slot: see `models.kernels.ring_attention`.
    """

    k: Tensor
    v: Tensor

    def __init__(self, batch: int, slots: int, tokens_per_frame: int, n_heads: int, head_dim: int) -> None:
        super().__init__()
        for name in ("k", "v"):
            # Zeros, not uninitialised memory: an unseen slot has weight 0, and 0 times NaN is NaN.
            zeros = torch.zeros(batch, slots, tokens_per_frame, n_heads, head_dim)
            self.register_buffer(name, zeros, persistent=False)

    def write(self, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Write keys and values [b, g·m, heads, head_dim] of g frames into `slots`, int64 on the device.

        With fewer slots than frames, those of the newest frames are written.
        """
        for ring, given in ((self.k, k), (self.v, v)):
            by_frame = given.unflatten(1, (-1, ring.shape[2]))  # [b, g, m, heads, head_dim]
            ring.index_copy_(1, slots, by_frame[:, -slots.shape[0] :])


class NewFrames(NamedTuple):
    """Where the g frames of one pass are stored in the cache, and what they attend to; all layers share it.

    They attend to slots of the ring (`seen`), or to each other (`mask`): exactly one of the two is given.
    """

    slots: Tensor  # int64, where each frame's keys and values are written; fewer than g: those of the newest frames
    seen: Visibility | None  # the slots of the ring that each frame attends to
    mask: Tensor | None  # bool [g·m, g·m], true where a token of the pass (row) attends to another


class RMSGain(nn.Module):
    """The learned gain of an RMS norm, stored as its distance from one."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.zeros(dim))


class QKNorm(nn.Module):
    """RMS norm of queries and keys over the head dim, both in one pass."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.q_norm = RMSGain(head_dim)
        self.k_norm = RMSGain(head_dim)

    def forward(self, qk: Tensor) -> Tensor:
        """Normalise [..., 2, heads, head_dim]; the result is fp32 (or fp64), as the rotation that follows needs it."""
        normed = F.rms_norm(at_least_fp32(qk), qk.shape[-1:], eps=1e-6)
        gains = torch.stack((self.q_norm.gain, self.k_norm.gain)).unsqueeze(1)  # [2, 1, head_dim]
        return torch.addcmul(normed, normed, gains.to(normed.dtype))


class Attention(nn.Module):
    """Multi-head self-attention with published parameter names."""

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)
        self.qk_norm = QKNorm(d_model // n_heads)
        self.rope = RotaryFrequencies(d_model // n_heads)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return normalised, unrotated queries and keys [b, s, 2, heads, head_dim] (fp32) and values without the 2."""
        qkv = self.qkv(x).unflatten(-1, (3, self.n_heads, -1))
        return self.qk_norm(qkv[:, :, :2]), qkv[:, :, 2]

    def forward(
        self, x: Tensor, rotation: Tensor, cache: RingCache | None = None, new: NewFrames | None = None
    ) -> Tensor:
        """Map tokens [b, s, d] to [b, s, d].

        Args:
            x: tokens [b, s, d].
            rotation: rotation of each token, fp32 [2, s, head_dim].
            cache: gets the keys and values of x, and holds those of earlier frames; None: x attends to x alone.
            new: with a cache, the frames that x holds.
        """
        qk, v = self.project(x)
        q, k = rotate(qk, rotation[:, :, None, None]).to(v.dtype).unbind(2)  # [b, s, heads, head_dim]
        if cache is None or new is None:
            attended = attend(q, k, v)
        else:
            cache.write(new.slots, k, v)
            if new.seen is None:
                attended = attend(q, k, v, new.mask)
            else:
                by_frame = q.unflatten(1, (-1, cache.k.shape[2]))  # [b, g, m, heads, head_dim]
                attended = ring_attention(by_frame, cache.k, cache.v, new.seen).flatten(1, 2)
        return self.out(attended.flatten(2))
