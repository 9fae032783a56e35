"""Transforms of a recipe that change a module in place."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from profiling.components.component import Component
from profiling.errors import InputError
from profiling.variants.recipe import Outcome, Transform

_CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d)


@dataclass(frozen=True, kw_only=True)
class ChannelsLast(Transform):
    """Keep the weights of 2D convolutions in the memory layout that tensor cores prefer (NHWC).

    The outputs of these convolutions, and of elementwise operators after them, then have this layout, too.
    """

    def apply(self, module: nn.Module, component: Component) -> Outcome:
        """Change the layout of the weights in place, and count the convolutions.

        Raises:
            InputError: the module has none.

        """
        convolutions = [each for each in module.modules() if isinstance(each, _CONVOLUTIONS)]
        if not convolutions:
            raise InputError(
                f"ChannelsLast: {type(module).__name__} has no Conv2d or ConvTranspose2d. Leave the transform out."
            )
        for convolution in convolutions:
            convolution.weight.data = convolution.weight.data.contiguous(memory_format=torch.channels_last)
        return Outcome(module, changed=len(convolutions))
