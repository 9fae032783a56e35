"""AdaLN and gate vectors of all layers in one matrix product.

The layers that compute them read only the frame's condition and hold a third of the weights. Layer by layer that is a
hundred small products a pass. Here it is one product, which all passes of a frame share.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.transformer import Block, Modulation, OutputHead


def materialized(tensor: Tensor) -> Tensor:
    """Return `tensor` such that a compiled graph computes it once and stores it.

    Inductor recomputes a cheap tensor for each reader. Custom kernels read from memory, so each of them would get its
    own copy of the same numbers.

    Args:
        tensor: any shape and dtype; the result of an operation, not a view.
    """
    return tensor.as_strided(tensor.shape, tensor.stride())  # of this view inductor needs the memory itself


class MergedLinears(nn.Module):
    """Linear layers with a common input as one product; returns their outputs side by side.

    The layers keep their names and parameters, which become views of one tensor: no weight is held twice, and whatever
    is loaded into a layer changes the product. Casting or moving the layers gives each parameter its own memory again,
    so the owner calls `merge` afterwards.
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, layers: Iterable[nn.Linear]) -> None:
        super().__init__()
        self._layers = tuple(layers)  # a tuple: they stay submodules of another module
        self.merge()

    @torch.no_grad()
    def merge(self) -> None:
        """Move all weights into one tensor and all biases into another, unless they are there already."""
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
                shares_storage = part.untyped_storage()._cdata == whole.untyped_storage()._cdata
                if not shares_storage or part.storage_offset() != start or part.dtype != whole.dtype:
                    return False
                start += part.numel()
        return True

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        return self  # the tensors here are the layers' parameters, which their own modules move

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., in_features] to [..., sum of out_features]."""
        return F.linear(x, self.weight, self.bias)


#: What is added to each vector of a block (in the order of `Modulation`) and of an output head: factors are 1 + scale.
BLOCK, HEAD = (1.0, 0.0, 0.0, 1.0, 0.0, 0.0), (1.0, 0.0)


class MergedModulation(nn.Module):
    """Modulations of all `blocks` and output `heads`, whose linear layers are merged into one."""

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
        """Map SiLU(condition) [b, n, d] to all vectors [b, n, (6·blocks + 2·heads)·d]; factors are 1 + scale."""
        return materialized(self.merged(activated) + self.offsets)

    def block(self, vectors: Tensor, index: int) -> Modulation:
        """Return the modulation of block `index` from the vectors [b, n, …] of `forward`."""
        start = index * len(BLOCK)
        return Modulation(*self._slice(vectors, start, len(BLOCK)))

    def head(self, vectors: Tensor, index: int) -> tuple[Tensor, Tensor]:
        """Return (factor, shift) [b, n, 1, d] of the norm of head `index` from the vectors [b, n, …] of `forward`."""
        factor, shift = self._slice(vectors, self.blocks * len(BLOCK) + index * len(HEAD), len(HEAD))
        return factor, shift

    def _slice(self, vectors: Tensor, start: int, count: int) -> tuple[Tensor, ...]:
        part = vectors[..., start * self.width : (start + count) * self.width]
        return part.unflatten(-1, (count, 1, self.width)).unbind(-3)  # [b, n, 1, d] each
