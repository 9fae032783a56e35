"""QuickGELU, `x · sigmoid(c·x)`, in one kernel instead of three.

`x · sigmoid(c·x) = silu(c·x) / c`, and matrix products take a factor for nothing: the layer before gives `c·x`, the one
after divides. The factors meet the sums in the product's own precision: no weight is rounded anew, the bias alone is.
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

from profiling.fx_passes.attention import unscaled
from profiling.fx_passes.canonical import arguments, is_call, positional
from profiling.fx_passes.graph_facts import Facts, add_constant, constant, facts, family, mutated
from profiling.fx_passes.passes import Transform


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


@dataclass(frozen=True, kw_only=True)
class FuseQuickGelu(Transform):
    """Write QuickGELU between two linear layers as SiLU with factors in those, `x · sigmoid(x)` anywhere as SiLU."""

    def rewrite(self, module: fx.GraphModule) -> int:
        """Rewrite each product of something with a sigmoid of itself."""
        written = mutated(module.graph)
        return sum(
            _rewritten(module, node)
            for node in module.graph.find_nodes(op="call_function", target=torch.mul)
            if not any(family(given) & written for given in node.all_input_nodes)
        )


def _rewritten(module: fx.GraphModule, product: fx.Node) -> bool:
    found = _gate(product)
    if found is None:
        return False
    x, gate, factor = found
    if factor == 1:
        with module.graph.inserting_before(product):
            product.replace_all_uses_with(module.graph.call_function(F.silu, (x,)))
        return True
    before, after = linear_layer(module, x), _only_reader(module, product)
    if before is None or after is None or factor == 0 or len(gate.users) != 1 or len(x.users) != 2:
        return False
    scaled = _scaled(module, before, factor, bias_too=True)
    with module.graph.inserting_before(product):
        product.replace_all_uses_with(module.graph.call_function(F.silu, (scaled,)))
    # Its input is the SiLU by now.
    after = linear_layer(module, after.node)
    assert after is not None
    after.node.replace_all_uses_with(_scaled(module, after, 1 / factor, bias_too=False))
    return True


def _gate(product: fx.Node) -> tuple[fx.Node, fx.Node, float] | None:
    """Return x, the sigmoid's node and c for `x · sigmoid(c·x)`."""
    if len(product.args) != 2 or product.kwargs:
        return None
    for x, gate in (positional(product), positional(product)[::-1]):
        if is_call(gate, torch.sigmoid) and isinstance(x, fx.Node):
            inner, factor = unscaled(positional(gate)[0])
            if inner is x:
                return x, gate, factor
    return None


def _only_reader(module: fx.GraphModule, node: fx.Node) -> LinearLayer | None:
    readers: list[Any] = list(node.users)
    layer = linear_layer(module, readers[0]) if len(readers) == 1 else None
    return layer if layer is not None and layer.input is node else None


def _scaled(module: fx.GraphModule, layer: LinearLayer, factor: float, *, bias_too: bool) -> fx.Node:
    """Write the layer with `factor` on its product, and on its bias where that is wanted."""
    bias = layer.bias_or_zeros()
    return write_product(module, layer, torch.addmm, bias * factor if bias_too else bias, alpha=factor)
