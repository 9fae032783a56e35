"""Says where a compiled graph must have a tensor in memory.

Inductor computes a cheap tensor again for each of its readers. That is right where it becomes part of the reader, but a
kernel of our own reads memory: for each one there would be another copy of the same numbers.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.transformer import Block, Modulation, OutputHead


def materialized(tensor: Tensor) -> Tensor:
    """Return `tensor`, of any shape and dtype; a result of arithmetic, not a part of another tensor."""
    return tensor.as_strided(tensor.shape, tensor.stride())  # the one view of which inductor needs the memory itself


class MergedLinears(nn.Module):
    """All layers' outputs, one after the other, for one input.

    Casting or moving a module gives every parameter memory of its own; whoever owns this one calls `merge` after that.
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, layers: Iterable[nn.Linear]) -> None:
        super().__init__()
        self._layers = tuple(layers)  # a tuple: they are submodules of another module
        self.merge()

    @torch.no_grad()
    def merge(self) -> None:
        """Lay all weights in one tensor, and all biases in another, where they do not lie in it already."""
        if self._is_merged():
            return
        for name in ("weight", "bias"):
            whole = torch.cat([getattr(layer, name) for layer in self._layers])
            self.register_buffer(name, whole, persistent=False)
            views = whole.split([layer.out_features for layer in self._layers])
            for layer, view in zip(self._layers, views, strict=True):
                getattr(layer, name).data = view

    def _is_merged(self) -> bool:
        if "weight" not in self._buffers:
            return False
        for name in ("weight", "bias"):
            whole, start = getattr(self, name), 0
            for layer in self._layers:
                part = getattr(layer, name)
                at_home = part.untyped_storage()._cdata == whole.untyped_storage()._cdata
                if not at_home or part.storage_offset() != start or part.dtype != whole.dtype:
                    return False
                start += part.numel()
        return True

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        return self  # what lies here are the layers' parameters, and they are moved where they belong

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., in_features] to [..., sum of out_features]."""
        return F.linear(x, self.weight, self.bias)


#: Vectors of a block, in the order of `Modulation`, and of an output head; the first of each norm is a factor.
BLOCK, HEAD = (1.0, 0.0, 0.0, 1.0, 0.0, 0.0), (1.0, 0.0)


class MergedModulation(nn.Module):
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
        return materialized(self.merged(activated) + self.offsets)

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
