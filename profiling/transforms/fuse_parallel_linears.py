"""Linear layers that read the same input, as one: queries, keys and values, or all that a condition vector steers."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass

import torch
from torch import fx
from torch.nn import functional as F

from profiling.transforms.constants import add_constant
from profiling.transforms.facts import family, mutated
from profiling.transforms.linear_product import LinearLayer, linear_layer
from profiling.transforms.transform import Transform


@dataclass(frozen=True, kw_only=True)
class FuseParallelLinears(Transform):
    """One matrix product over the weights one below the other; the parts of its output are views.

    A layer without a bias gets one of zeros where another has one. Counts the layers that went into fused ones.
    """

    def rewrite(self, module: fx.GraphModule) -> int:
        """Fuse each group of two and more."""
        groups: dict[Hashable, list[LinearLayer]] = defaultdict(list)
        written = mutated(module.graph)
        for node in module.graph.find_nodes(op="call_function", target=F.linear):
            layer = linear_layer(module, node)
            if layer is not None and not (family(node) | family(layer.input)) & written:
                groups[layer.input, layer.weight.dtype, layer.weight.device].append(layer)
        return sum(_fuse(module, group) for group in groups.values() if len(group) > 1)


def _fuse(module: fx.GraphModule, group: list[LinearLayer]) -> int:
    first = group[0].node
    weight = add_constant(module, first, "parallel_weight", torch.cat([layer.weight for layer in group]))
    bias = None
    if any(layer.bias is not None for layer in group):
        held = [layer.bias_or_zeros() for layer in group]
        bias = add_constant(module, first, "parallel_bias", torch.cat(held))
    with module.graph.inserting_before(first):
        fused = module.graph.call_function(F.linear, (group[0].input, weight, bias))
        sizes = [len(layer.weight) for layer in group]
        parts = module.graph.call_function(torch.split, (fused, sizes, -1))
        for index, layer in enumerate(group):
            layer.node.replace_all_uses_with(module.graph.call_function(operator.getitem, (parts, index)))
    return len(group)
