"""Transforms of a user's own: a right one, a wrong one, and one that changes nothing."""

import torch
from torch import nn


def halved_twice(module: nn.Module, factor: float) -> nn.Module:
    """Scale the first layer, and take it back after the activation: the same result but for rounding."""
    with torch.no_grad():
        module.first.weight.mul_(factor)
        module.first.bias.mul_(factor)
    return Scaled(module, 1 / factor)


class Scaled(nn.Module):
    def __init__(self, module, gain):
        super().__init__()
        self.module, self.gain = module, gain

    def forward(self, x, gain):
        return self.module(x, gain * self.gain)


def wrong_in_place(module: nn.Module, rows: int) -> nn.Module:
    """Put a layer into the module that is wrong with so many rows, and return the module itself."""
    module.first = WrongWith(module.first, rows)
    return module


class WrongWith(nn.Module):
    def __init__(self, layer, rows):
        super().__init__()
        self.layer, self.rows = layer, rows

    def forward(self, x):
        return self.layer(x) * (2.0 if len(x) == self.rows else 1.0)


def unchanged(module: nn.Module) -> nn.Module:
    """Return any module as it is."""
    return module
