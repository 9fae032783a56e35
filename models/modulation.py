"""AdaLN and gate vectors of all layers in one matrix product.

The layers that compute them read only the frame's condition and hold a third of the weights. Layer by layer that is a
hundred small products a pass. Here it is one product, which all passes of a frame share.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.kernels.skinny_linear import few_rows_linear
from models.skinny_linear import operands
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

    The layers keep their names and parameters, which become views of one tensor: no weight is held twice, and
    loading into a layer changes the product. Call `merge` again after casting or moving the layers, which gives each
    parameter its own memory. Layers that are quantised (all or none) are replaced: then `layers_replaced` is called.

    Args:
        owners: (module, attribute) of each layer, which stays a submodule there and may be replaced.
    """

    weight: Tensor  # as it is stored
    bias: Tensor
    scale: Tensor | None  # of quantised weights

    def __init__(self, owners: Iterable[tuple[nn.Module, str]]) -> None:
        super().__init__()
        self._owners = tuple(owners)  # a tuple: they stay submodules of another module
        self.register_buffer("scale", None, persistent=False)
        self.merge()

    @torch.no_grad()
    def merge(self) -> None:
        """Move all weights into one tensor and all biases (and scales) into another, unless they are there already.

        Raises:
            ValueError: some of the layers have quantised weights, and others do not.

        """
        layers = [operands(getattr(owner, name)) for owner, name in self._owners]
        if len(kinds := {str(weight.dtype).removeprefix("torch.") for weight, _, _ in layers}) > 1:
            raise ValueError(
                f"one product of {len(layers)} layers has weights in {' and '.join(sorted(kinds))}: quantise all of "
                "the layers that modulate (AdaLN and gates), or none"
            )
        self._dtype = layers[0][1].dtype
        for name, parts in zip(("weight", "bias", "scale"), zip(*layers, strict=True), strict=True):
            if parts[0] is not None and not self._is_merged(name, parts):
                whole = _concatenated(parts)
                self.register_buffer(name, whole, persistent=False)
                for part, view in zip(parts, whole.split([len(part) for part in parts]), strict=True):
                    part.data = view

    def layers_replaced(self) -> None:
        """Hold the weights of layers that a transform has put in the place of the former ones."""
        self.merge()

    def _is_merged(self, name: str, parts: Sequence[Tensor]) -> bool:
        whole, start = self._buffers.get(name), 0
        if whole is None:
            return False
        for part in parts:
            shares_storage = part.untyped_storage()._cdata == whole.untyped_storage()._cdata
            if not shares_storage or part.storage_offset() != start or part.dtype != whole.dtype:
                return False
            start += part.numel()
        return True

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        return self  # the tensors here are the layers' parameters, which their own modules move

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., in_features] to [..., sum of out_features]."""
        if self.scale is None:
            return F.linear(x, self.weight, self.bias)
        return few_rows_linear(x, self.weight, self.bias, self.scale, self._dtype)


def _concatenated(parts: Sequence[Tensor]) -> Tensor:
    """Return the parts in one tensor. float8 parts are concatenated as bytes, which every version of torch can do."""
    if parts[0].is_floating_point() and parts[0].itemsize == 1:
        return torch.cat([part.view(torch.uint8) for part in parts]).view(parts[0].dtype)
    return torch.cat(list(parts))


#: What is added to each vector of a block (in the order of `Modulation`) and of an output head: factors are 1 + scale.
BLOCK, HEAD = (1.0, 0.0, 0.0, 1.0, 0.0, 0.0), (1.0, 0.0)


class MergedModulation(nn.Module):
    """Modulations of all `blocks` and output `heads`, whose linear layers are merged into one."""

    offsets: Tensor

    def __init__(self, blocks: Sequence[Block], heads: Sequence[OutputHead]) -> None:
        super().__init__()
        owners = [
            owner
            for block in blocks
            for owner in ((block.adaln1, "fc"), (block.gate1, "fc_c"), (block.adaln2, "fc"), (block.gate2, "fc_c"))
        ]
        self.merged = MergedLinears([*owners, *((head.norm, "fc") for head in heads)])
        self.blocks, self.heads, self.width = len(blocks), len(heads), blocks[0].adaln1.fc.in_features
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
