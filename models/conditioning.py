"""How the controls become a vector a frame, and how that vector steers the blocks (AdaLN and gates)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.embeddings import MLP, SinusoidalEmbedding

CONTROL_HIDDEN = 2048
MOUSE_HALF = 256  # the angle's projection and the magnitude's sinusoids each have this size


class MouseEmbedding(nn.Module):
    """Mouse movement as direction and magnitude, after a symmetric logarithm of each axis."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.angle_proj = nn.Linear(2, MOUSE_HALF, bias=False)
        self.magnitude = SinusoidalEmbedding(MOUSE_HALF)
        self.mlp = MLP(2 * MOUSE_HALF, CONTROL_HIDDEN, d_model)

    def forward(self, mouse: Tensor) -> Tensor:
        """Map [b, n, 2] to [b, n, d]; in fp32 up to the first weights, since the magnitude is multiplied by 1000."""
        dtype = self.angle_proj.weight.dtype
        mouse = mouse.float()
        x, y = (mouse.sign() * mouse.abs().log1p()).unbind(-1)
        angle = torch.atan2(y, x)
        direction = self.angle_proj(torch.stack((angle.cos(), angle.sin()), dim=-1).to(dtype))
        return self.mlp(torch.cat((direction, self.magnitude(torch.hypot(x, y)).to(dtype)), dim=-1))


class ButtonEmbedding(nn.Module):
    """Buttons held, as -1 and 1."""

    def __init__(self, n_buttons: int, d_model: int) -> None:
        super().__init__()
        self.proj = MLP(n_buttons, CONTROL_HIDDEN, d_model)

    def forward(self, btn: Tensor) -> Tensor:
        """Map [b, n, n_buttons] of 0 and 1 to [b, n, d]."""
        return self.proj(2 * btn.to(self.proj.fc1.weight.dtype) - 1)


class ControlEmbedding(nn.Module):
    """Mouse and buttons together."""

    def __init__(self, n_buttons: int, d_model: int) -> None:
        super().__init__()
        self.mouse = MouseEmbedding(d_model)
        self.button = ButtonEmbedding(n_buttons, d_model)

    def forward(self, mouse: Tensor, btn: Tensor) -> Tensor:
        """Return the sum of both embeddings, [b, n, d]."""
        return self.mouse(mouse) + self.button(btn)


class AdaLN(nn.Module):
    """LayerNorm whose scale and shift come from the frame's condition."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.fc = nn.Linear(d_model, 2 * d_model)

    def forward(self, x: Tensor, activated: Tensor) -> Tensor:
        """Normalise `x` [b, n, m, d] by `activated` = SiLU(condition) [b, n, 1, d], which the caller computes once."""
        scale, shift = self.fc(activated).chunk(2, dim=-1)
        return torch.addcmul(shift, F.layer_norm(x, x.shape[-1:], eps=1e-5), scale + 1)


class Gate(nn.Module):
    """Adds a branch to the residual stream, weighted by the frame's condition."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.fc_c = nn.Linear(d_model, d_model)

    def forward(self, residual: Tensor, branch: Tensor, activated: Tensor) -> Tensor:
        """Return `residual + gate·branch`, [b, n, m, d]."""
        return torch.addcmul(residual, branch, self.fc_c(activated))
