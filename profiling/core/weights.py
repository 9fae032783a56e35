"""Weights when there is no checkpoint: random, and never degenerate."""

from __future__ import annotations

import zlib

import torch
from torch import nn

#: A tensor whose largest magnitude is below this contributes nothing that a parity check could see.
DEGENERATE = 1e-4


@torch.no_grad()
def fill_degenerate(module: nn.Module, seed: int) -> tuple[str, ...]:
    """Randomise, in place, every floating parameter that is (almost) all zero, and return their names.

    Zero-initialised last layers, biases and gates would let a wrong variant agree with the reference, and zeros run
    faster on some devices than real weights do. Matrices get a standard deviation of fan_in ** -0.5, vectors 0.1.
    """
    filled = []
    for name, parameter in module.named_parameters():
        if not parameter.is_floating_point() or parameter.numel() == 0 or parameter.abs().max() > DEGENERATE:
            continue
        # Seeded by name, so that a parameter's values do not depend on what stands before it.
        generator = torch.Generator(parameter.device).manual_seed((zlib.crc32(name.encode()) ^ seed) & 0xFFFFFFFF)
        scale = (parameter[0].numel() ** -0.5) if parameter.dim() > 1 else 0.1
        parameter.normal_(0.0, scale, generator=generator)
        filled.append(name)
    return tuple(filled)
