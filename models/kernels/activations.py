"""Activations that the kernels apply to their result, and their PyTorch operations."""

import torch
from torch import Tensor
from torch.nn import functional as F

#: By the number that a kernel gets. Leaky ReLU takes a slope, and snake two factors for each channel.
ACTIVATIONS = ("none", "silu", "gelu", "gelu_tanh", "leaky_relu", "snake")


def activated(
    x: Tensor, activation: str, slope: float = 0.0, alpha: Tensor | None = None, beta: Tensor | None = None
) -> Tensor:
    """Return the activation of `x` [n, c, ...]; snake is `x + beta·sin²(alpha·x)`, with alpha and beta [c].

    Raises:
        ValueError: no such activation, or a snake without its factors.
    """
    if activation == "snake" and alpha is not None and beta is not None:
        alpha, beta = (channelwise(each, x) for each in (alpha, beta))
        return x + beta * torch.sin(alpha * x).square()
    if activation == "none":
        return x
    if activation == "silu":
        return F.silu(x)
    if activation == "gelu":
        return F.gelu(x)
    if activation == "gelu_tanh":
        return F.gelu(x, approximate="tanh")
    if activation == "leaky_relu":
        return F.leaky_relu(x, slope)
    raise ValueError(f"activation={activation!r} must be one of {', '.join(ACTIVATIONS)}; snake needs alpha and beta")


def channelwise(vector: Tensor, x: Tensor) -> Tensor:
    """Return `vector` [c] in the dtype of `x` [n, c, ...], in a shape that is broadcast over it."""
    return vector.to(x.dtype).view(-1, *[1] * (x.dim() - 2))
