"""The component of `slowdown.py`: a chain of equal links, so that 103 of them are 3% more device work than 100."""

from __future__ import annotations

import torch
from torch import nn


class Chain(nn.Module):
    """`links` times: a matrix product, a sum and a tanh, each of which writes [rows, width]."""

    def __init__(self, *, width: int, links: int) -> None:
        super().__init__()
        # One weight for all links, small enough that an error shrinks from link to link: bfloat16 stays near float32.
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
