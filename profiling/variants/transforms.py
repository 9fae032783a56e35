"""Transforms of a recipe that change a module in place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from profiling.components.component import Component
from profiling.variants.recipe import Outcome, Transform

_FLAT, _SOLID = (nn.Conv2d, nn.ConvTranspose2d), (nn.Conv3d, nn.ConvTranspose3d)


@dataclass(frozen=True, kw_only=True)
class ChannelsLast(Transform):
    """Keep the weights of 2D and 3D convolutions in the layout that tensor cores prefer (NHWC, NDHWC).

    Kernels that support the layout return it, too, and elementwise operators after them keep it. So tensors that calls
    write to get it where they have the dims and the channels of a convolution (features of earlier frames): in another
    layout, each copy would reorder them.
    """

    def apply(self, module: nn.Module, component: Component) -> Outcome:
        """Convert the weights of all convolutions in place; `changed` counts those whose weight has the layout."""
        convolutions = [each for each in module.modules() if isinstance(each, (*_FLAT, *_SOLID))]
        changed = sum(map(_converted, convolutions))
        features = [each for each in _own_memory(component) if _is_read_by(convolutions, each)]
        with torch.inference_mode(False), torch.no_grad():  # a module that writes to them may be called outside it
            for each in features:
                each.data = _in_layout(each)
        notes = [f"tensors of its state that are kept in this layout, too: {len(features)}"] if features else []
        if not convolutions:
            notes.append(f"{type(module).__name__} has no 2D or 3D convolution")
        if changed < len(convolutions):
            notes.append(
                f"{len(convolutions) - changed} of {len(convolutions)} convolutions keep their layout: each call "
                "computes their weight in it (a parametrisation or a hook, such as weight_norm)"
            )
        return Outcome(module, changed=changed, notes=tuple(notes))


def _own_memory(component: Component) -> list[Tensor]:
    """Return the tensors, no weights, that calls write to and that share their memory with no other tensor."""
    plain = [
        each for _, each in component.kept.named_tensors() if type(each) is Tensor and each.layout == torch.strided
    ]
    users = Counter(each.untyped_storage().data_ptr() for each in plain)
    written = {id(each) for each in component.kept.written().values()}
    alone = (each for each in plain if id(each) in written and users[each.untyped_storage().data_ptr()] == 1)
    return [each for each in alone if each.untyped_storage().nbytes() == each.nbytes]


def _is_read_by(convolutions: Sequence[nn.Module], state: Tensor) -> bool:
    """Return whether a tensor may be what one of the convolutions reads or returns."""
    return any(
        state.dim() == (4 if isinstance(each, _FLAT) else 5) and state.shape[1] in (each.in_channels, each.out_channels)
        for each in convolutions
    )


def _in_layout(tensor: Tensor) -> Tensor:
    """Return a copy of a tensor with channels last: also where one element a channel fits both, for libraries look."""
    layout = torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d
    return torch.empty_like(tensor, memory_format=layout).copy_(tensor)


def _converted(convolution: nn.Module) -> bool:
    """Convert what the weight is made of, unless the weight that calls read would not follow; return whether it did."""
    layout = torch.channels_last if isinstance(convolution, _FLAT) else torch.channels_last_3d
    dimensions = 4 if isinstance(convolution, _FLAT) else 5
    before = {each: each.data for each in convolution.parameters() if each.dim() == dimensions}
    for parameter, data in before.items():
        parameter.data = _in_layout(data)
    weight = convolution.weight  # of a parametrisation: computed anew
    is_read = isinstance(weight, nn.Parameter) or hasattr(convolution, "parametrizations")
    if is_read and isinstance(weight, Tensor) and weight.is_contiguous(memory_format=layout):
        return True
    for parameter, data in before.items():
        parameter.data = data
    return False
