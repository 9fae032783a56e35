"""Embeddings of the world model: noise level, mouse and buttons (one vector a frame each), and learned positions."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.precision import ConstantBuffers

CONTROL_HIDDEN = 2048  # width of the hidden layers of mouse and buttons
MOUSE_HALF = 256  # size of the projected angle, and of the magnitude's sinusoidal embedding


class MLP(nn.Module):
    """Linear, SiLU, linear, both with bias."""

    def __init__(self, dim_in: int, dim_hidden: int, dim_out: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim_in, dim_hidden)
        self.fc2 = nn.Linear(dim_hidden, dim_out)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., dim_in] to [..., dim_out]."""
        return self.fc2(F.silu(self.fc1(x)))


class SinusoidalEmbedding(ConstantBuffers):
    """`[sin(1000·x·w), cos(1000·x·w)]` with `w_i = 300^(-i / (size/2 - 1))`, in fp32 whatever the model's dtype."""

    frequencies: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.register_constants()

    def constants(self) -> dict[str, Tensor]:
        """Return `1000·w`, [size/2]."""
        half = self.size // 2
        steps = torch.arange(half, dtype=torch.float64, device="cpu")
        return {"frequencies": (1000 * torch.exp(-steps * math.log(300) / (half - 1))).float()}

    def forward(self, x: Tensor) -> Tensor:
        """Map [...] to fp32 [..., size]."""
        angles = x.float().unsqueeze(-1) * self.frequencies
        return torch.cat((angles.sin(), angles.cos()), dim=-1)


class TimestepEmbedding(nn.Module):
    """Embedding of each frame's noise level."""

    SINUSOIDS = 512  # size of the sinusoidal embedding

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.sinusoids = SinusoidalEmbedding(self.SINUSOIDS)
        self.mlp = MLP(self.SINUSOIDS, 4 * d_model, d_model)

    def forward(self, t: Tensor) -> Tensor:
        """Map noise levels [b, n] of any floating dtype to [b, n, d] in the weights' dtype."""
        return self.mlp(self.sinusoids(t).to(self.mlp.fc1.weight.dtype))


class MouseEmbedding(nn.Module):
    """Embedding of mouse movement as direction and magnitude, after a symmetric logarithm of each axis."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.angle_proj = nn.Linear(2, MOUSE_HALF, bias=False)
        self.magnitude = SinusoidalEmbedding(MOUSE_HALF)
        self.mlp = MLP(2 * MOUSE_HALF, CONTROL_HIDDEN, d_model)

    def forward(self, mouse: Tensor) -> Tensor:
        """Map [b, n, 2] to [b, n, d]; fp32 up to the first weights, because the magnitude is multiplied by 1000."""
        dtype = self.angle_proj.weight.dtype
        mouse = mouse.float()
        x, y = (mouse.sign() * mouse.abs().log1p()).unbind(-1)
        angle = torch.atan2(y, x)
        direction = self.angle_proj(torch.stack((angle.cos(), angle.sin()), dim=-1).to(dtype))
        return self.mlp(torch.cat((direction, self.magnitude(torch.hypot(x, y)).to(dtype)), dim=-1))


class ButtonEmbedding(nn.Module):
    """Embedding of the buttons held, which enter the MLP as -1 and 1."""

    def __init__(self, n_buttons: int, d_model: int) -> None:
        super().__init__()
        self.proj = MLP(n_buttons, CONTROL_HIDDEN, d_model)

    def forward(self, btn: Tensor) -> Tensor:
        """Map [b, n, n_buttons] of 0 and 1 to [b, n, d]."""
        return self.proj(2 * btn.to(self.proj.fc1.weight.dtype) - 1)


class ControlEmbedding(nn.Module):
    """Sum of the mouse and the button embedding."""

    def __init__(self, n_buttons: int, d_model: int) -> None:
        super().__init__()
        self.mouse = MouseEmbedding(d_model)
        self.button = ButtonEmbedding(n_buttons, d_model)

    def forward(self, mouse: Tensor, btn: Tensor) -> Tensor:
        """Map mouse movement [b, n, 2] and buttons [b, n, n_buttons] of 0 and 1 to [b, n, d]."""
        return self.mouse(mouse) + self.button(btn)


class LearnedPositions(nn.Module):
    """A learned vector for each token of the longest window; a shorter window takes the last rows."""

    def __init__(self, rows: int, d_model: int) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.empty(rows, d_model))
        nn.init.normal_(self.p, std=d_model**-0.5)

    def forward(self, frames: int, tokens_per_frame: int) -> Tensor:
        """Return the rows of the newest `frames` frames, [frames, tokens, d]."""
        return self.p[-frames * tokens_per_frame :].unflatten(0, (frames, tokens_per_frame))
