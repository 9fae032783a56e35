"""Many linear layers that read the same vector, computed as one product.

The layers keep their names and their parameters, which become views of one tensor: nothing is held twice, and whatever
is loaded or drawn into a layer is in the product too.
"""

from collections.abc import Callable, Iterable
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F


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
