"""Transforms of a recipe that change a module in place."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from profiling.components.component import Component
from profiling.variants.recipe import Outcome, Transform

_FLAT, _SOLID = (nn.Conv2d, nn.ConvTranspose2d), (nn.Conv3d, nn.ConvTranspose3d)


@dataclass(frozen=True, kw_only=True)
class ChannelsLast(Transform):
    """Keep the weights of 2D and 3D convolutions in the layout that tensor cores prefer (NHWC, NDHWC).

    Kernels that support the layout return it, too, and elementwise operators after them keep it.
    """

    def apply(self, module: nn.Module, component: Component) -> Outcome:
        """Convert the weights of all convolutions in place; `changed` counts those whose weight has the layout."""
        convolutions = [each for each in module.modules() if isinstance(each, (*_FLAT, *_SOLID))]
        changed = sum(map(_converted, convolutions))
        notes = []
        if not convolutions:
            notes.append(f"{type(module).__name__} has no 2D or 3D convolution")
        if changed < len(convolutions):
            notes.append(
                f"{len(convolutions) - changed} of {len(convolutions)} convolutions keep their layout: each call "
                "computes their weight in it (a parametrisation or a hook, such as weight_norm)"
            )
        return Outcome(module, changed=changed, notes=tuple(notes))


def _converted(convolution: nn.Module) -> bool:
    """Convert what the weight is made of, unless the weight that calls read would not follow; return whether it did."""
    layout = torch.channels_last if isinstance(convolution, _FLAT) else torch.channels_last_3d
    dimensions = 4 if isinstance(convolution, _FLAT) else 5
    before = {each: each.data for each in convolution.parameters() if each.dim() == dimensions}
    for parameter, data in before.items():
        # A copy has the strides of the layout also where a kernel of one element fits both: libraries look at them.
        parameter.data = torch.empty_like(data, memory_format=layout).copy_(data)
    weight = convolution.weight  # of a parametrisation: computed anew
    is_read = isinstance(weight, nn.Parameter) or hasattr(convolution, "parametrizations")
    if is_read and isinstance(weight, Tensor) and weight.is_contiguous(memory_format=layout):
        return True
    for parameter, data in before.items():
        parameter.data = data
    return False
