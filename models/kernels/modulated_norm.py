"""Adaptive LayerNorm (AdaLN) and the gated residual add before it, in PyTorch operations: the kernels' reference."""

import torch
from torch import Tensor
from torch.nn import functional as F


def modulated_norm(x: Tensor, factor: Tensor, shift: Tensor) -> Tensor:
    """Return `layer_norm(x)·factor + shift`; x is [b, n, m, d], factor and shift are [b, n, 1, d]."""
    return torch.addcmul(shift, F.layer_norm(x, x.shape[-1:], eps=1e-5), factor)


def add_modulated_norm(
    residual: Tensor, branch: Tensor | None, gate: Tensor | None, factor: Tensor, shift: Tensor
) -> tuple[Tensor, Tensor]:
    """Return what the kernel of this name does: `residual + gate·(sum of branch)`, and its `modulated_norm`."""
    if branch is not None and gate is not None:
        residual = torch.addcmul(residual, branch.sum(0).to(residual.dtype), gate)
    return residual, modulated_norm(residual, factor, shift)
