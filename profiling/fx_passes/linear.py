"""Passes for linear layers: parallel layers, activations in the library's call, and QuickGELU as SiLU.

QuickGELU, `x · sigmoid(c·x)`, equals `silu(c·x) / c`, and a matrix product applies a factor at no cost: the layer
before gives `c·x` and the one after divides by `c`. The factors apply to the sums in the product's own precision, so no
weight is rounded again; only the bias is.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from profiling.fx_passes.nodes import (
    NodeInfo,
    add_constant,
    arguments,
    constant,
    families,
    is_call,
    node_info,
    unscaled,
    written_in,
)
from profiling.fx_passes.passes import RewritePass

_ADDMM_ACTIVATION = torch._addmm_activation  # pyright: ignore[reportPrivateImportUsage]

#: Device types on which `_addmm_activation` is one kernel, whose GELU is the tanh approximation.
DEVICES = ("cuda",)


@dataclass(frozen=True)
class _Linear:
    """A linear layer whose weight [out, in] and bias [out] are constants."""

    node: fx.Node
    input: fx.Node
    weight: Tensor
    bias: Tensor | None
    output: NodeInfo

    def bias_or_zeros(self) -> Tensor:
        return self.weight.new_zeros(len(self.weight)) if self.bias is None else self.bias


def _linear(module: fx.GraphModule, node: Any) -> _Linear | None:
    """Return the layer that `node` calls, or None for another call, and for a weight or bias that is computed."""
    output = node_info(node)
    if output is None or not is_call(node, F.linear):
        return None
    args = arguments(node, "input", "weight", "bias")
    weight, bias = constant(module, args["weight"]), constant(module, args["bias"])
    if weight is None or weight.ndim != 2 or (args["bias"] is not None and bias is None):
        return None
    return _Linear(node, args["input"], weight, bias, output)


def _insert_product(
    module: fx.GraphModule, layer: _Linear, function: Callable[..., Tensor], bias: Tensor, **options: Any
) -> fx.Node:
    """Insert `function(bias, rows of the input, weightᵀ, **options)` in front of the layer; return its output's node.

    The transposed weight is a view, so its memory stays shared.
    """
    graph, node = module.graph, layer.node
    weight_node = add_constant(module, node, "weight", layer.weight.t())
    bias_node = add_constant(module, node, "bias", bias)
    with graph.inserting_before(node):
        rows = graph.call_function(torch.reshape, (layer.input, (-1, layer.weight.shape[1])))
        product = graph.call_function(function, (bias_node, rows, weight_node), options)
        return graph.call_function(torch.reshape, (product, layer.output.shape))


@dataclass(frozen=True, kw_only=True)
class FuseParallelLinears(RewritePass):
    """Replace linear layers of one input by one product over their stacked weights; its parts are views.

    A layer without a bias gets one of zeros if another has one. Counts the layers that were fused.
    """

    def rewrite(self, module: fx.GraphModule) -> int:
        """Fuse each group of two or more layers."""
        groups: dict[Hashable, list[_Linear]] = defaultdict(list)
        written = written_in(module.graph)
        for node in module.graph.find_nodes(op="call_function", target=F.linear):
            layer = _linear(module, node)
            if layer is not None and not (families(node) | families(layer.input)) & written:
                groups[layer.input, layer.weight.dtype, layer.weight.device].append(layer)
        return sum(_fuse_parallel(module, group) for group in groups.values() if len(group) > 1)


def _fuse_parallel(module: fx.GraphModule, group: list[_Linear]) -> int:
    first = group[0].node
    weight = add_constant(module, first, "parallel_weight", torch.cat([layer.weight for layer in group]))
    bias = None
    if any(layer.bias is not None for layer in group):
        biases = [layer.bias_or_zeros() for layer in group]
        bias = add_constant(module, first, "parallel_bias", torch.cat(biases))
    with module.graph.inserting_before(first):
        fused = module.graph.call_function(F.linear, (group[0].input, weight, bias))
        sizes = [len(layer.weight) for layer in group]
        parts = module.graph.call_function(torch.split, (fused, sizes, -1))
        for index, layer in enumerate(group):
            layer.node.replace_all_uses_with(module.graph.call_function(operator.getitem, (parts, index)))
    return len(group)


@dataclass(frozen=True, kw_only=True)
class FuseLinearEpilogues(RewritePass):
    """Fuse a linear layer with a bias and ReLU or GELU (tanh) into one call; exact GELU is another function."""

    def rewrite(self, module: fx.GraphModule) -> int:
        """Fuse each activation whose linear layer nothing else reads."""
        return sum(_fuse_activation(module, node) for node in list(module.graph.nodes))


def _fuse_activation(module: fx.GraphModule, activation: fx.Node) -> bool:
    tanh = is_call(activation, F.gelu) and arguments(activation, "input", "approximate")["approximate"] == "tanh"
    if not tanh and not is_call(activation, torch.relu):
        return False
    layer = _linear(module, activation.args[0])
    if layer is None or layer.bias is None or len(layer.node.users) != 1 or layer.output.device.type not in DEVICES:
        return False
    if layer.output.family in written_in(module.graph):
        return False
    fused = _insert_product(module, layer, _ADDMM_ACTIVATION, layer.bias, use_gelu=tanh)
    activation.replace_all_uses_with(fused)
    return True


@dataclass(frozen=True, kw_only=True)
class FuseQuickGelu(RewritePass):
    """Replace QuickGELU between two linear layers by SiLU with factors in both, and `x · sigmoid(x)` by SiLU."""

    def rewrite(self, module: fx.GraphModule) -> int:
        """Rewrite each product of a tensor and a sigmoid of itself."""
        written = written_in(module.graph)
        return sum(
            _replace_gate(module, node)
            for node in module.graph.find_nodes(op="call_function", target=torch.mul)
            if not any(families(argument) & written for argument in node.all_input_nodes)
        )


def _replace_gate(module: fx.GraphModule, product: fx.Node) -> bool:
    match = _gate(product)
    if match is None:
        return False
    x, gate, factor = match
    if factor == 1:
        with module.graph.inserting_before(product):
            product.replace_all_uses_with(module.graph.call_function(F.silu, (x,)))
        return True
    before, after = _linear(module, x), _only_reader(module, product)
    if before is None or after is None or factor == 0 or len(gate.users) != 1 or len(x.users) != 2:
        return False
    scaled = _insert_scaled(module, before, factor, scale_bias=True)
    with module.graph.inserting_before(product):
        product.replace_all_uses_with(module.graph.call_function(F.silu, (scaled,)))
    after = _linear(module, after.node)  # read again: its input is the SiLU now
    assert after is not None
    after.node.replace_all_uses_with(_insert_scaled(module, after, 1 / factor, scale_bias=False))
    return True


def _gate(product: Any) -> tuple[fx.Node, fx.Node, float] | None:
    """Return x, the sigmoid's node and c for `x · sigmoid(c·x)`."""
    if len(product.args) != 2 or product.kwargs:
        return None
    for x, gate in (product.args, product.args[::-1]):
        if is_call(gate, torch.sigmoid) and isinstance(x, fx.Node):
            inner, factor = unscaled(gate.args[0])
            if inner is x:
                return x, gate, factor
    return None


def _only_reader(module: fx.GraphModule, node: fx.Node) -> _Linear | None:
    """Return the linear layer that alone reads `node` as its input, or None."""
    readers: list[Any] = list(node.users)
    layer = _linear(module, readers[0]) if len(readers) == 1 else None
    return layer if layer is not None and layer.input is node else None


def _insert_scaled(module: fx.GraphModule, layer: _Linear, factor: float, *, scale_bias: bool) -> fx.Node:
    """Insert the layer with `factor` on its product, and on its bias with `scale_bias`."""
    bias = layer.bias_or_zeros()
    return _insert_product(module, layer, torch.addmm, bias * factor if scale_bias else bias, alpha=factor)
