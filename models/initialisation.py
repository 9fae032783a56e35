"""Seeded weights for networks without a checkpoint.

Freshly built gains, alphas and betas are zero, which makes norms and activations trivial: a mistake in one of them
would change no number, and a parity check would prove nothing. Both fillings follow one recipe: every parameter is
normal, `1/sqrt(inputs of one output)` wide if it is a matrix, 0.1 if it is a vector. Buffers keep their values.
"""

import math
import zlib

import numpy as np
import torch
from torch import Tensor, nn

VECTOR_SCALE = 0.1


def _seed_of(name: str, seed: int) -> int:
    return (zlib.crc32(name.encode()) ^ seed) & 0xFFFFFFFF


def _scale_of(parameter: Tensor) -> float:
    return math.prod(parameter.shape[1:]) ** -0.5 if parameter.ndim >= 2 else VECTOR_SCALE


@torch.no_grad()
def reference_weights(module: nn.Module, seed: int, prefix: str = "") -> None:
    """Fill a module with the weights that the published reference numbers were made with.

    Args:
        module: filled in place; its buffers, the rotary frequencies among them, are kept.
        seed: mixed with each parameter's name, so that the order of parameters does not matter.
        prefix: what stands before the names, as `decoder.` does for a decoder outside its VAE.
    """
    for name, parameter in module.named_parameters():
        generator = np.random.RandomState(_seed_of(prefix + name, seed))
        values = generator.standard_normal(tuple(parameter.shape)) * _scale_of(parameter)
        parameter.copy_(torch.from_numpy(values.astype(np.float32)))


@torch.no_grad()
def randomise(module: nn.Module, seed: int, prefix: str = "") -> None:
    """Fill a module with weights of the same scales, drawn on the device where each parameter lies.

    The same seed, device and dtype give the same weights, whatever the order of parameters; another device draws
    others. Arguments are those of `reference_weights`.
    """
    for name, parameter in module.named_parameters():
        randomise_parameter(parameter, prefix + name, seed)


@torch.no_grad()
def randomise_parameter(parameter: Tensor, name: str, seed: int) -> None:
    """Fill one parameter as `randomise` does."""
    generator = torch.Generator(parameter.device).manual_seed(_seed_of(name, seed))
    parameter.normal_(std=_scale_of(parameter), generator=generator)
