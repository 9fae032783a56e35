"""Axial rotary embedding of queries and keys over (frame, token in frame).

Rotation tables are computed once. A table holds the cosine and the signed sine of every angle, each stored for both
dims of its pair, so that a rotation is `x·cos + swap(x)·sin`: three kernels for queries and keys together, and no
complex numbers, which `torch.compile` does not fuse.
"""

import math

import torch
from torch import Tensor, nn

from models.precision import ConstantBuffers


def axial_frequencies(head_dim: int) -> Tensor:
    """Return the fp32 frequencies of one axis, [head_dim/8]."""
    return torch.linspace(1, 128, head_dim // 8, dtype=torch.float64, device="cpu").mul(math.pi).float()


def rotation_table(angles: Tensor) -> Tensor:
    """Return cosine and signed sine of fp64 `angles` [n, k], each for both dims of its pair, fp32 [2, n, 2·k]."""
    cosine, sine = angles.cos(), angles.sin()
    # (a, b) -> (a·cos - b·sin, b·cos + a·sin)
    pairs = torch.stack((torch.stack((cosine, cosine), -1), torch.stack((-sine, sine), -1)))  # [2, n, k, 2]
    return pairs.float().flatten(2)


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotate neighbouring dims of `x` [..., head_dim] by `rotation` [2, ..., head_dim], which broadcasts against it."""
    swapped = x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    return torch.addcmul(x * rotation[0], swapped, rotation[1])


class AxialFrequencies(ConstantBuffers):
    """A layer's rotary frequencies under their published name: part of the state dict, not trained."""

    freqs: Tensor

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.register_constants(persistent=True)

    def constants(self) -> dict[str, Tensor]:
        """Return the frequencies."""
        return {"freqs": axial_frequencies(self.head_dim)}


class RotaryFrequencies(nn.Module):
    """A layer's `rope` in the checkpoints, which holds `pos_emb.freqs`."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.pos_emb = AxialFrequencies(head_dim)


class RotaryTables(ConstantBuffers):
    """The rotation of every window of 1 … n_frames frames, shared by all layers.

    Of a head's dims the first quarter turns with the frame, the next with the token, and the other half not at all.
    A short window is stretched over the whole range of positions, so each length has its own rows. They are stored
    one after the other in `frame_table`: those of length n start at row n·(n-1)/2.
    """

    frame_table: Tensor
    token_table: Tensor
    turns_per_frame: Tensor

    def __init__(self, head_dim: int, n_frames: int, tokens_per_frame: int) -> None:
        super().__init__()
        self.head_dim, self.n_frames, self.tokens_per_frame = head_dim, n_frames, tokens_per_frame
        self.host_freqs = axial_frequencies(head_dim)  # the tables are computed on the host, whatever the device
        self.register_constants()

    def constants(self) -> dict[str, Tensor]:
        """Return the two tables, and the rotation between neighbouring frames of the full window.

        Returns:
            `frame_table`: fp32 [2, n_frames·(n_frames+1)/2, r], with r = head_dim/4.
            `token_table`: fp32 [2, tokens, head_dim - r].
            `turns_per_frame`: fp64 [r/2], in full turns.
        """
        span = {"dtype": torch.float64, "device": "cpu"}
        windows = torch.cat([torch.linspace(-1, 1, n, **span) for n in range(1, self.n_frames + 1)])
        tokens, freqs = torch.linspace(-1, 1, self.tokens_per_frame, **span), self.host_freqs.double()
        # Dims of neither axis are rotated by an angle of zero, so that one table covers the whole head.
        angles = torch.cat((torch.outer(tokens, freqs), torch.zeros(len(tokens), self.head_dim // 4, **span)), dim=-1)
        return {
            "frame_table": rotation_table(torch.outer(windows, freqs)),
            "token_table": rotation_table(angles),
            "turns_per_frame": freqs / (math.pi * max(1, self.n_frames - 1)),
        }

    @torch.no_grad()
    def rebuild(self, freqs: Tensor) -> None:
        """Recompute the tables from loaded frequencies, in place if they are already on the same device."""
        self.host_freqs = freqs.detach().cpu().clone()
        for name, value in self.constants().items():
            current = getattr(self, name)
            if current.device == freqs.device:
                current.copy_(value)
            else:
                setattr(self, name, value.to(freqs.device))

    def forward(self, frames: int) -> Tensor:
        """Return cosines and signed sines for a window of `frames` frames, fp32 [2, frames·tokens, head_dim]."""
        start = frames * (frames - 1) // 2
        return self._over_tokens(self.frame_table[:, start : start + frames])

    def at(self, frames: Tensor) -> Tensor:
        """Return the rotation of frames of an endless sequence, spaced as in the full window.

        Whole turns are removed in fp64, so angles are accurate to 1e-5 after a year at 60 frames a second.

        Args:
            frames: frame indices, int64 [n]; only their differences affect attention.

        Returns:
            fp32 [2, n·tokens, head_dim].
        """
        turns = torch.outer(frames.double(), self.turns_per_frame)
        return self._over_tokens(rotation_table((turns - turns.floor()) * (2 * math.pi)))

    def _over_tokens(self, frame_rotation: Tensor) -> Tensor:
        """Return the rotation of every token, [2, n·tokens, head_dim], of frames rotated by [2, n, r]."""
        along_frames = frame_rotation.unsqueeze(2).expand(-1, -1, self.tokens_per_frame, -1)
        along_tokens = self.token_table[:, None].expand(-1, frame_rotation.shape[1], -1, -1)
        return torch.cat((along_frames, along_tokens), dim=-1).flatten(1, 2)
