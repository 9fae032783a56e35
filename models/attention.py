"""Self-attention with normalised queries and keys, in parts that a form with a key-value cache can use too."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.precision import at_least_fp32
from models.rotary import RotaryFrequencies, rotate

#: Queries, keys and values, [b, s, heads, head_dim] each, to an output of that shape.
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


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
        """Normalise [..., 2, heads, head_dim] in fp32 and leave it there: the rotation that follows is in fp32 too."""
        normed = F.rms_norm(at_least_fp32(qk), qk.shape[-1:], eps=1e-6)
        gains = torch.stack((self.q_norm.gain, self.k_norm.gain)).unsqueeze(1)  # [2, 1, head_dim]
        return torch.addcmul(normed, normed, gains.to(normed.dtype))


class Attention(nn.Module):
    """Multi-head attention over the whole window; `attended` lets the caller say what attends to what."""

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

    def attended(self, x: Tensor, rotation: Tensor, attend: Attend) -> Tensor:
        """Map tokens `x` [b, s, d], each turned by its row of `rotation` [2, s, head_dim], to [b, s, d].

        `attend` maps queries, keys and values, [b, s, heads, head_dim] each, to an output of that shape.
        """
        qk, v = self.project(x)
        q, k = rotate(qk, rotation[:, :, None, None]).to(v.dtype).unbind(2)
        return self.out(attend(q, k, v).flatten(2))

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        """Attend over all the tokens given."""
        return self.attended(x, rotation, attend)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attend with [b, s, heads, head_dim] each; `mask` [s, s] is true where a query (row) sees a key."""
    heads_first = (tensor.transpose(1, 2) for tensor in (q, k, v))
    return F.scaled_dot_product_attention(*heads_first, attn_mask=mask).transpose(1, 2)
