"""A linear layer and the activation after it in one call of the matrix library, on CUDA."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx
from torch.nn import functional as F

from profiling.transforms.facts import mutated
from profiling.transforms.linear_product import linear_layer, write_product
from profiling.transforms.spelling import arguments, is_call, positional
from profiling.transforms.transform import Transform

ADDMM_ACTIVATION = torch._addmm_activation  # pyright: ignore[reportPrivateImportUsage]

#: Where that is one kernel, and where its GELU is the one by tanh.
DEVICES = ("cuda",)


@dataclass(frozen=True, kw_only=True)
class FuseLinearEpilogues(Transform):
    """Linear with a bias, then ReLU or GELU by tanh. The exact GELU is another function and stays as it is."""

    def rewrite(self, module: fx.GraphModule) -> int:
        """Fuse each activation whose linear layer nothing else reads."""
        return sum(_fused(module, node) for node in list(module.graph.nodes))


def _fused(module: fx.GraphModule, activation: fx.Node) -> bool:
    by_tanh = is_call(activation, F.gelu) and arguments(activation, "input", "approximate")["approximate"] == "tanh"
    if not by_tanh and not is_call(activation, torch.relu):
        return False
    layer = linear_layer(module, positional(activation)[0])
    if layer is None or layer.bias is None or len(layer.node.users) != 1 or layer.output.device.type not in DEVICES:
        return False
    if layer.output.family in mutated(module.graph):
        return False
    fused = write_product(module, layer, ADDMM_ACTIVATION, layer.bias, use_gelu=by_tanh)
    activation.replace_all_uses_with(fused)
    return True
