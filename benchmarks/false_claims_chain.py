"""The component of `false_claims.py`, a chain of equal steps, and a recipe that adds steps: the planted slowdown."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from profiling.components.component import Component
from profiling.variants.recipe import Recipe
from profiling.variants.variant import Step


class Chain(nn.Module):
    """`links` times: a matrix product, a sum and a tanh, each of which writes [rows, width]."""

    def __init__(self, *, width: int, links: int) -> None:
        super().__init__()
        # One weight for all links, small enough that an error shrinks from link to link: bfloat16 stays near float32,
        # and some links more do not change the output.
        self.weight = nn.Parameter(torch.randn(width, width) * 0.5 / width**0.5)
        self.links = links

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the first 256 rows, [<= 256, width], for x [rows, width].

        Each link adds x, so that none works on zeros. Parity compares on the host, where all rows would take longer
        than the timing.
        """
        state, weight = x, self.weight
        for _ in range(self.links):
            state = torch.tanh(x + state @ weight)
        return state[:256]


@dataclass(frozen=True, kw_only=True)
class Longer(Recipe):
    """Run the chain with `planted` links more; with 0 it is the same code as the recipe alone.

    It explains nothing after the timing: what a graph gains would take as long as the comparison.
    """

    planted: int = 0

    def __call__(self, component: Component, folder: Path) -> Step:
        """Prepare a chain with the same weight and the planted additional links.

        It must be another module: a reset of the cell's own module would remove the links.
        """
        chain = component.module
        assert isinstance(chain, Chain)
        longer = copy(chain)
        longer.links += self.planted
        return replace(super().__call__(replace(component, module=longer), folder), explain=dict)
