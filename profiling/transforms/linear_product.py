"""A linear layer as the matrix product under it, which takes a factor and an epilogue where `linear` does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from profiling.transforms.constants import add_constant, constant
from profiling.transforms.facts import Facts, facts
from profiling.transforms.spelling import arguments, is_call


@dataclass(frozen=True)
class LinearLayer:
    """A linear layer whose weight and bias are constants: [out, in] and [out]."""

    node: fx.Node
    input: fx.Node
    weight: Tensor
    bias: Tensor | None
    output: Facts

    def bias_or_zeros(self) -> Tensor:
        """Return a bias for calls that ask for one."""
        return self.weight.new_zeros(len(self.weight)) if self.bias is None else self.bias


def linear_layer(module: fx.GraphModule, node: Any) -> LinearLayer | None:
    """Return the layer that `node` calls, or None: another call, or a weight or bias that is computed."""
    output = facts(node)
    if output is None or not is_call(node, F.linear):
        return None
    given = arguments(node, "input", "weight", "bias")
    weight, bias = constant(module, given["weight"]), constant(module, given["bias"])
    if weight is None or weight.ndim != 2 or (given["bias"] is not None and bias is None):
        return None
    return LinearLayer(node, given["input"], weight, bias, output)


def write_product(
    module: fx.GraphModule, layer: LinearLayer, function: Callable[..., Tensor], bias: Tensor, **options: Any
) -> fx.Node:
    """Write `function(bias, rows of the input, weightᵀ, **options)` in front of the layer; return its output's node.

    The weight's transpose is a view: its memory stays shared.
    """
    graph, node = module.graph, layer.node
    weight = add_constant(module, node, "weight", layer.weight.t())
    shift = add_constant(module, node, "bias", bias)
    with graph.inserting_before(node):
        rows = graph.call_function(torch.reshape, (layer.input, (-1, layer.weight.shape[1])))
        product = graph.call_function(function, (shift, rows, weight), options)
        return graph.call_function(torch.reshape, (product, layer.output.shape))
