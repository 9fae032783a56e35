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

    def modulation(self, activated: Tensor) -> tuple[Tensor, Tensor]:
        """Return (1 + scale, shift), each of the shape of `activated` = SiLU(condition)."""
        scale, shift = self.fc(activated).chunk(2, dim=-1)
        return scale + 1, shift

    def forward(self, x: Tensor, activated: Tensor) -> Tensor:
        """Normalise `x` [b, n, m, d] by `activated` [b, n, 1, d], which the caller computes once."""
        return modulated(x, *self.modulation(activated))


def modulated(x: Tensor, factor: Tensor, shift: Tensor) -> Tensor:
    """Return `layer_norm(x)·factor + shift`; x [b, n, m, d], the others [b, n, 1, d]."""
    return torch.addcmul(shift, F.layer_norm(x, x.shape[-1:], eps=1e-5), factor)


class Gate(nn.Module):
    """The weight with which a branch is added to the residual stream, from the frame's condition."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.fc_c = nn.Linear(d_model, d_model)

    def forward(self, activated: Tensor) -> Tensor:
        """Return the weight of the branch, [b, n, 1, d]."""
        return self.fc_c(activated)
