"""Seeded weights for networks without a checkpoint, and seeded inputs.

A new network's gains, alphas and betas are zero, so norms and activations are trivial and a parity check would miss a
mistake in them. Here every parameter is drawn from a normal distribution with a standard deviation of fan_in ** -0.5
for a matrix and 0.1 for a vector. Buffers keep their values.
"""

import math
import zlib

import torch
from torch import Tensor, nn


@torch.no_grad()
def randomise(module: nn.Module, seed: int, prefix: str = "") -> None:
    """Fill a module with random weights, drawn on the device of each parameter.

    The same seed, device and dtype give the same weights. Another device gives other weights.

    Args:
        module: filled in place.
        seed: combined with each parameter's name, so that the order of parameters has no effect.
        prefix: put before each name, for example `decoder.` for a decoder without its VAE.
    """
    for name, parameter in module.named_parameters():
        own_seed = (zlib.crc32((prefix + name).encode()) ^ seed) & 0xFFFFFFFF
        scale = math.prod(parameter.shape[1:]) ** -0.5 if parameter.ndim >= 2 else 0.1
        parameter.normal_(std=scale, generator=torch.Generator(parameter.device).manual_seed(own_seed))


def draw_normal(*shape: int, generator: torch.Generator, device: torch.device | str, dtype: torch.dtype) -> Tensor:
    """Return numbers with mean 0 and standard deviation 1, drawn on the generator's device."""
    return torch.randn(shape, generator=generator, device=generator.device).to(device, dtype)


def draw_uniform(*shape: int, generator: torch.Generator, device: torch.device | str, dtype: torch.dtype) -> Tensor:
    """Return numbers from -1 to 1, drawn on the generator's device."""
    numbers = 2 * torch.rand(shape, generator=generator, device=generator.device) - 1
    return numbers.to(device, dtype)
