"""AdaLN and gate vectors of all layers from one linear layer.

The layers that compute them read only the frame's condition and hold a third of the weights. Layer by layer that is a
hundred small products a pass. Here it is one product, which all passes of a frame share.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn

from models.kernels.eight_bits import concatenated
from models.skinny_linear import SkinnyLinear
from models.transformer import Modulation
from models.world_model import HEADS, WorldModel


def materialized(tensor: Tensor) -> Tensor:
    """Return `tensor` such that a compiled graph computes it once and stores it.

    Inductor recomputes a cheap tensor for each reader. Custom kernels read from memory, so each of them would get its
    own copy of the same numbers.

    Args:
        tensor: any shape and dtype; the result of an operation, not a view.
    """
    return tensor.as_strided(tensor.shape, tensor.stride())  # of this view inductor needs the memory itself


#: What is added to each vector of a block (in the order of `Modulation`) and of an output head: factors are 1 + scale.
BLOCK, HEAD = (1.0, 0.0, 0.0, 1.0, 0.0, 0.0), (1.0, 0.0)
#: The layers that are merged, in the order of the vectors: their names in a block, and those of the heads.
BLOCK_LAYERS, HEAD_LAYERS = ("adaln1.fc", "gate1.fc_c", "adaln2.fc", "gate2.fc_c"), ("norm.fc",)


class MergedModulation(nn.Module):
    """The modulations of all blocks and output heads by one layer `linear`, which takes the place of their own layers.

    State dicts keep the names of the layers that were merged: `state_dict()` of the model gives their rows of `linear`
    (views), and `load_state_dict` joins what it is given. The same holds once `linear` is quantised.

    Args:
        model: its layers are removed; the module that is made must become its attribute `modulation`.
    """

    linear: nn.Linear | SkinnyLinear
    offsets: Tensor

    def __init__(self, model: WorldModel) -> None:
        super().__init__()
        self.blocks, self.width = model.params.n_layers, model.params.d_model
        names = [f"transformer.blocks.{index}.{layer}" for index in range(self.blocks) for layer in BLOCK_LAYERS]
        names += [f"{head}.{layer}" for head in HEADS for layer in HEAD_LAYERS]
        layers = [cast(nn.Linear, model.get_submodule(name)) for name in names]
        self.rows = {name: layer.out_features for name, layer in zip(names, layers, strict=True)}
        linear = nn.Linear(self.width, sum(self.rows.values()), device="meta")  # no numbers are drawn for it
        linear.weight = nn.Parameter(torch.cat([layer.weight.detach() for layer in layers]))
        linear.bias = nn.Parameter(torch.cat([layer.bias.detach() for layer in layers]))
        self.linear = linear
        for name in names:
            owner, _, layer = name.rpartition(".")
            delattr(model.get_submodule(owner), layer)
        vectors = torch.tensor(BLOCK * self.blocks + HEAD * len(HEADS))
        self.register_buffer("offsets", vectors.repeat_interleave(self.width), persistent=False)
        model.register_state_dict_post_hook(_split)
        model.register_load_state_dict_pre_hook(_join)

    def forward(self, activated: Tensor) -> Tensor:
        """Map SiLU(condition) [b, n, d] to all vectors [b, n, (6·blocks + 2·heads)·d]; factors are 1 + scale."""
        return materialized(self.linear(activated) + self.offsets)

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


def _split(model: nn.Module, state_dict: dict[str, Any], prefix: str, _metadata: object) -> None:
    """Put the rows of `linear` into a state dict of the model under the names of the layers that were merged."""
    merged = cast(MergedModulation, model.modulation)
    for kind in merged.linear.state_dict():
        whole, start = state_dict.pop(f"{prefix}modulation.linear.{kind}"), 0
        for name, count in merged.rows.items():
            # A slice and not a split, which torchao's tensors do not have.
            state_dict[f"{prefix}{name}.{kind}"] = whole[start : start + count]
            start += count


def _join(
    model: nn.Module,
    state_dict: dict[str, Any],
    prefix: str,
    _metadata: object,
    _strict: bool,
    missing_keys: list[str],
    _unexpected_keys: list[str],
    error_msgs: list[str],
) -> None:
    """Join the tensors of the merged layers in a state dict to those of `linear`, before the model loads it."""
    merged = cast(MergedModulation, model.modulation)
    for kind, whole in merged.linear.state_dict().items():
        parts = []
        for name, own in zip(merged.rows, whole.split(list(merged.rows.values())), strict=True):
            given = state_dict.pop(f"{prefix}{name}.{kind}", None)
            if given is None:
                missing_keys.append(f"{prefix}{name}.{kind}")
            elif given.shape != own.shape:
                error_msgs.append(
                    f"size mismatch for {prefix}{name}.{kind}: {list(given.shape)}, and {list(own.shape)} is needed"
                )
            parts.append(own if given is None or given.shape != own.shape else given)
        state_dict[f"{prefix}modulation.linear.{kind}"] = concatenated(parts)
