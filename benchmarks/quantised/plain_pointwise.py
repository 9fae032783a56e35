"""A transform for the audio networks, so that their 1×1 convolutions can be quantised as linear layers."""

from torch import nn

from models.audio_vae import Conv1d


def plain_pointwise(module: nn.Module) -> nn.Module:
    """Turn the 1×1 convolutions of `module` into those of torch.nn, in place, with the same weights; return it.

    Quantisation knows those alone as linear layers. They compute the same, for contiguous inputs.
    """
    for layer in module.modules():
        if type(layer) is Conv1d and layer.kernel_size == (1,):
            layer.__class__ = nn.Conv1d  # pyright: ignore[reportAttributeAccessIssue] - of the same attributes
    return module
