"""Seeded weights for networks without a checkpoint, and seeded inputs.

A new network's gains, alphas and betas are zero, so norms and activations are trivial and a parity check would miss a
mistake in them. Here every parameter is drawn from a normal distribution with a standard deviation of fan_in ** -0.5
for a matrix and 0.1 for a vector. Buffers keep their values.
"""

import math
import zlib
from typing import TypedDict, Unpack

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


class InputOptions(TypedDict):
    """How inputs are drawn: on the generator's device, then moved to `device` and cast to `dtype`."""

    generator: torch.Generator
    device: torch.device | str
    dtype: torch.dtype


def draw_normal(*shape: int, **options: Unpack[InputOptions]) -> Tensor:
    """Return numbers with mean 0 and standard deviation 1."""
    generator = options["generator"]
    return torch.randn(shape, generator=generator, device=generator.device).to(options["device"], options["dtype"])


def draw_uniform(*shape: int, **options: Unpack[InputOptions]) -> Tensor:
    """Return numbers from -1 to 1."""
    generator = options["generator"]
    numbers = 2 * torch.rand(shape, generator=generator, device=generator.device) - 1
    return numbers.to(options["device"], options["dtype"])
