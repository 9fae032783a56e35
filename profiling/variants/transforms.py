"""Transforms of a recipe that change a module in place."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from profiling.components.component import Component
from profiling.variants.recipe import Outcome, Transform

_FLAT, _SOLID = (nn.Conv2d, nn.ConvTranspose2d), (nn.Conv3d, nn.ConvTranspose3d)


@dataclass(frozen=True, kw_only=True)
class ChannelsLast(Transform):
    """Keep the weights of 2D and 3D convolutions in the layout that tensor cores prefer (NHWC, NDHWC).

    Kernels that support the layout return it, too, and elementwise operators after them keep it.
    """

    def apply(self, module: nn.Module, component: Component) -> Outcome:
        """Convert the weights of all convolutions in place; `changed` is the number of convolutions."""
        convolutions = [each for each in module.modules() if isinstance(each, (*_FLAT, *_SOLID))]
        for convolution in convolutions:
            layout = torch.channels_last if isinstance(convolution, _FLAT) else torch.channels_last_3d
            convolution.weight.data = convolution.weight.data.contiguous(memory_format=layout)
        notes = () if convolutions else (f"{type(module).__name__} has no 2D or 3D convolution",)
        return Outcome(module, changed=len(convolutions), notes=notes)
