"""All that a frame's condition does to the network, as one product: AdaLN and gate vectors of every layer at once.

They read nothing but the condition and hold a third of the weights. Layer by layer that is a hundred small products
a pass; here it is one, and all passes of a frame share it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from models.in_memory import in_memory
from models.merged_linears import MergedLinears
from models.transformer import Block, Modulation, OutputHead

#: Vectors of a block, in the order of `Modulation`, and of an output head; the first of each norm is a factor.
BLOCK, HEAD = (1.0, 0.0, 0.0, 1.0, 0.0, 0.0), (1.0, 0.0)


class Steering(nn.Module):
    """Computes the modulations of all `blocks` and `heads`, whose linear layers it merges."""

    offsets: Tensor

    def __init__(self, blocks: Sequence[Block], heads: Sequence[OutputHead]) -> None:
        super().__init__()
        layers = [
            layer
            for block in blocks
            for layer in (block.adaln1.fc, block.gate1.fc_c, block.adaln2.fc, block.gate2.fc_c)
        ]
        self.merged = MergedLinears([*layers, *(head.norm.fc for head in heads)])
        self.blocks, self.heads, self.width = len(blocks), len(heads), layers[0].in_features
        vectors = torch.tensor(BLOCK * self.blocks + HEAD * self.heads)
        self.register_buffer("offsets", vectors.repeat_interleave(self.width), persistent=False)

    def forward(self, activated: Tensor) -> Tensor:
        """Return every vector for SiLU(condition) [b, n, d]: [b, n, (6·blocks + 2·heads)·d], factors (1 + scale)."""
        return in_memory(self.merged(activated) + self.offsets)

    def block(self, vectors: Tensor, index: int) -> Modulation:
        """Return what the condition does to a block, from `vectors` [b, n, …]."""
        start = index * len(BLOCK)
        return Modulation(*self._cut(vectors, start, len(BLOCK)))

    def head(self, vectors: Tensor, index: int) -> tuple[Tensor, Tensor]:
        """Return (factor, shift) of a head's norm, from `vectors` [b, n, …]."""
        factor, shift = self._cut(vectors, self.blocks * len(BLOCK) + index * len(HEAD), len(HEAD))
        return factor, shift

    def _cut(self, vectors: Tensor, start: int, count: int) -> tuple[Tensor, ...]:
        cut = vectors[..., start * self.width : (start + count) * self.width]
        return cut.unflatten(-1, (count, 1, self.width)).unbind(-3)  # [b, n, 1, d] each
