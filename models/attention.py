"""Rotary embedding and self-attention."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.precision import ConstantBuffers, at_least_fp32


def axial_frequencies(head_dim: int) -> Tensor:
    """Return the fp32 frequencies of one axis, [head_dim/8]."""
    return torch.linspace(1, 128, head_dim // 8, dtype=torch.float64, device="cpu").mul(math.pi).float()


def rotation_table(positions: Tensor, freqs: Tensor) -> Tensor:
    """Return cosine and signed sine of position × frequency, fp32 [2, positions, 2·freqs], angles taken in fp64."""
    angles = torch.outer(positions.double(), freqs.double()).repeat_interleave(2, dim=-1)
    sine = angles.sin()
    sine[:, 0::2].neg_()  # (a, b) -> (a·cos - b·sin, b·cos + a·sin)
    return torch.stack((angles.cos(), sine)).float()


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotate neighbouring dims of `x` [..., head_dim] by `rotation` [2, ..., head_dim], which broadcasts against it."""
    swapped = x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    return torch.addcmul(x * rotation[0], swapped, rotation[1])


class AxialFrequencies(ConstantBuffers):
    """The published name of a layer's rotary frequencies: in the state dict, not trained."""

    freqs: Tensor

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.register_constants(persistent=True)

    def constants(self) -> dict[str, Tensor]:
        """Return the frequencies."""
        return {"freqs": axial_frequencies(self.head_dim)}


class RotaryFrequencies(nn.Module):
    """Holds `pos_emb.freqs` where the checkpoints have it."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.pos_emb = AxialFrequencies(head_dim)


class RotaryTables(ConstantBuffers):
    """The rotation of every window of 1 … n_frames frames, shared by all layers.

    A short window is stretched over the whole range of positions, so each length has rows of its own; they lie one
    after the other in `frame_table` (length n starts at row n·(n-1)/2).
    """

    frame_table: Tensor
    token_table: Tensor
    turns_per_frame: Tensor

    def __init__(self, head_dim: int, n_frames: int, tokens_per_frame: int) -> None:
        super().__init__()
        self.head_dim, self.n_frames, self.tokens_per_frame = head_dim, n_frames, tokens_per_frame
        self.host_freqs = axial_frequencies(head_dim)
        self.register_constants()

    def constants(self) -> dict[str, Tensor]:
        """Return `frame_table` [2, n_frames·(n_frames+1)/2, r] and `token_table` [2, tokens, head_dim - r].

        And `turns_per_frame` [r/2], fp64: by how much of a full turn neighbouring frames of the full window differ.
        """
        span = {"dtype": torch.float64, "device": "cpu"}
        windows = torch.cat([torch.linspace(-1, 1, n, **span) for n in range(1, self.n_frames + 1)])
        tokens = rotation_table(torch.linspace(-1, 1, self.tokens_per_frame, **span), self.host_freqs)
        # The dims that belong to neither axis are turned by an angle of zero: one table covers the whole head.
        unturned = rotation_table(
            torch.zeros(self.tokens_per_frame, **span), torch.zeros(self.head_dim // 4, device="cpu")
        )
        return {
            "frame_table": rotation_table(windows, self.host_freqs),
            "token_table": torch.cat((tokens, unturned), dim=-1),
            "turns_per_frame": self.host_freqs.double() / (math.pi * max(1, self.n_frames - 1)),
        }

    @torch.no_grad()
    def rebuild(self, freqs: Tensor) -> None:
        """Compute the tables again from loaded frequencies, in place where they already lie on their device."""
        self.host_freqs = freqs.detach().cpu().clone()
        for name, value in self.constants().items():
            current = getattr(self, name)
            if current.device == freqs.device:
                current.copy_(value)
            else:
                setattr(self, name, value.to(freqs.device))

    def forward(self, frames: int) -> Tensor:
        """Return the rotation of a window of that many frames, fp32 [2, frames·tokens, head_dim]."""
        start = frames * (frames - 1) // 2
        along_frames = self.frame_table[:, start : start + frames, None].expand(-1, -1, self.tokens_per_frame, -1)
        along_tokens = self.token_table[:, None].expand(-1, frames, -1, -1)
        return torch.cat((along_frames, along_tokens), dim=-1).flatten(1, 2)

    def at(self, frames: Tensor) -> Tensor:
        """Return the rotation of frames of an endless sequence, spaced as in the full window.

        Args:
            frames: their indices, int64 [n]; only differences matter. Whole turns are taken off in fp64, which after
                a year of 60 frames a second still leaves an angle right to 1e-5.

        Returns:
            fp32 [2, n·tokens, head_dim].
        """
        turns = torch.outer(frames.double(), self.turns_per_frame)
        angles = (turns - turns.floor()) * (2 * math.pi)
        cosine, sine = angles.cos(), angles.sin()
        pairs = torch.stack((torch.stack((cosine, cosine), -1), torch.stack((-sine, sine), -1)))  # [2, n, r/2, 2]
        along_frames = pairs.float().flatten(2).unsqueeze(2).expand(-1, -1, self.tokens_per_frame, -1)
        along_tokens = self.token_table[:, None].expand(-1, frames.shape[0], -1, -1)
        return torch.cat((along_frames, along_tokens), dim=-1).flatten(1, 2)


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

    def forward_with(self, x: Tensor, rotation: Tensor, attend: Attend) -> Tensor:
        """Map tokens `x` [b, s, d], each turned by its row of `rotation` [2, s, head_dim], to [b, s, d].

        `attend` maps queries, keys and values, [b, s, heads, head_dim] each, to an output of that shape.
        """
        qk, v = self.project(x)
        q, k = rotate(qk, rotation[:, :, None, None]).to(v.dtype).unbind(2)
        return self.out(attend(q, k, v).flatten(2))

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        """Attend over all the tokens given."""
        return self.forward_with(x, rotation, attend)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attend with [b, s, heads, head_dim] each; `mask` [s, s] is true where a query (row) sees a key."""
    heads_first = (tensor.transpose(1, 2) for tensor in (q, k, v))
    return F.scaled_dot_product_attention(*heads_first, attn_mask=mask).transpose(1, 2)
