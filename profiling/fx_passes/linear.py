"""Passes for linear layers: parallel layers, activations in the library's call, and QuickGELU as SiLU.

QuickGELU, `x · sigmoid(c·x)`, equals `silu(c·x) / c`, and a matrix product applies a factor at no cost: the layer
before gives `c·x` and the one after divides by `c`. The factors apply to the sums in the product's own precision, so no
weight is rounded again; only the bias is.
"""

from __future__ import annotations

import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from profiling.fx_passes.nodes import (
    NodeInfo,
    add_constant,
    arguments,
    constants,
    is_call,
    is_read_once,
    is_written,
    node_info,
    operands,
    unscaled,
)
from profiling.fx_passes.passes import RewritePass, function_of

_ADDMM_ACTIVATION = torch._addmm_activation  # pyright: ignore[reportPrivateImportUsage]

#: Device types on which `_addmm_activation` is one kernel, whose GELU is the tanh approximation.
DEVICES = ("cuda",)

#: Sizes of the factor of a QuickGELU: beyond them `c·x` and its SiLU leave the range of float16.
_FACTORS = (0.1, 10.0)


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
    weight, bias = constants(module, args["weight"], args["bias"]) or (None, None)
    if weight is None or weight.ndim != 2 or (bias is not None and bias.shape != weight.shape[:1]):
        return None
    return _Linear(node, args["input"], weight, bias, output)


def _insert_product(
    module: fx.GraphModule, layer: _Linear, function: Callable[..., Tensor], bias: Tensor, **options: Any
) -> fx.Node:
    """Insert `function(bias, rows of the input, weightᵀ, **options)` in front of the layer; return its output's node.

    The transposed weight is a view, so its memory stays shared.
    """
    graph = module.graph
    with graph.inserting_before(layer.node):
        weight_node = add_constant(module, "weight", layer.weight.t())
        bias_node = add_constant(module, "bias", bias)
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
        for node in module.graph.nodes:
            layer = _linear(module, node)
            if layer is not None and not is_written(layer.input):
                groups[layer.input, layer.weight.dtype, layer.weight.device].append(layer)
        return sum(_fuse_parallel(module, group) for group in groups.values() if len(group) > 1)


def _fuse_parallel(module: fx.GraphModule, group: list[_Linear]) -> int:
    graph, bias = module.graph, None
    with graph.inserting_before(group[0].node):
        weight = add_constant(module, "parallel_weight", torch.cat([layer.weight for layer in group]))
        if any(layer.bias is not None for layer in group):
            bias = add_constant(module, "parallel_bias", torch.cat([layer.bias_or_zeros() for layer in group]))
        fused = graph.call_function(F.linear, (group[0].input, weight, bias))
        parts = graph.call_function(torch.split, (fused, [len(layer.weight) for layer in group], -1))
        for index, layer in enumerate(group):
            layer.node.replace_all_uses_with(graph.call_function(operator.getitem, (parts, index)))
    return len(group)


@dataclass(frozen=True, kw_only=True)
class ReplaceFewRows(RewritePass):
    """Compute linear layers of few rows by a kernel; `module.meta["left"]` counts why others stay.

    Attributes:
        linear: computes one, as `models.kernels.skinny_linear.few_rows_linear` does.
        misfit: returns why it does not take a tensor of a form, on a device, with a weight, in a dtype, or None.

    """

    linear: Callable[..., Tensor]
    misfit: Callable[[Tensor, torch.device, Tensor, torch.dtype], str | None]

    def rewrite(self, module: fx.GraphModule) -> int:
        """Replace each layer that the kernel takes."""
        left, replaced = Counter[str](), 0
        for node in list(module.graph.nodes):
            layer = _linear(module, node)
            given = node_info(layer.input) if layer is not None else None
            if layer is None or given is None:
                continue
            reason = self.misfit(given.zeros("meta"), given.device, layer.weight, layer.output.dtype)
            if reason is not None:
                left[reason] += 1
                continue
            args = arguments(node, "input", "weight", "bias")
            with module.graph.inserting_before(node):
                call = (args["input"], args["weight"], args["bias"], None, layer.output.dtype)
                node.replace_all_uses_with(module.graph.call_function(function_of(self.linear), call))
            replaced += 1
        module.meta["left"] = left
        return replaced


@dataclass(frozen=True, kw_only=True)
class FuseLinearEpilogues(RewritePass):
    """Fuse a linear layer with a bias and ReLU or GELU (tanh) into one call; exact GELU is another function."""

    def replacement(self, module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
        """Return the fused call for an activation whose linear layer nothing else reads."""
        args = arguments(node, "input", "approximate")
        is_tanh = is_call(node, F.gelu) and args["approximate"] == "tanh"
        layer = _linear(module, args["input"]) if is_tanh or is_call(node, torch.relu) else None
        if layer is None or layer.bias is None or not is_read_once(layer.node):
            return None
        if layer.output.device.type not in DEVICES or layer.output.dtype != layer.weight.dtype:
            return None  # of another dtype under autocast, which does not know the fused call
        return _insert_product(module, layer, _ADDMM_ACTIVATION, layer.bias, use_gelu=is_tanh)


@dataclass(frozen=True, kw_only=True)
class FuseQuickGelu(RewritePass):
    """Replace QuickGELU between two linear layers by SiLU with factors in both, and `x · sigmoid(x)` by SiLU."""

    def replacement(self, module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
        """Return the SiLU for a product of a tensor and a sigmoid of itself."""
        x, gate, factor = _gate(node)
        if x is None or gate is None:
            return None
        if factor == 1:
            return module.graph.call_function(F.silu, (x,))
        before = _linear(module, x)
        after = _linear(module, next(iter(node.users))) if is_read_once(node) else None
        if before is None or after is None or after.input is not node or not is_read_once(gate) or len(x.users) != 2:
            return None
        if not _FACTORS[0] <= abs(factor) <= _FACTORS[1]:
            return None
        bias = before.bias_or_zeros() * factor
        silu = module.graph.call_function(F.silu, (_insert_product(module, before, torch.addmm, bias, alpha=factor),))
        reader = replace(after, input=silu)
        divided = _insert_product(module, reader, torch.addmm, after.bias_or_zeros(), alpha=1 / factor)
        after.node.replace_all_uses_with(divided)
        return silu


def _gate(product: fx.Node) -> tuple[fx.Node | None, fx.Node | None, float]:
    """Return x, the sigmoid's node and c for `x · sigmoid(c·x)`; None for another call."""
    for x, gate in operands(product, torch.mul):
        info = node_info(x)
        if info is None or not info.dtype.is_floating_point or is_written(x) or not is_call(gate, torch.sigmoid):
            continue
        inner, factor = unscaled(gate.args[0])
        if inner is x:
            return x, gate, factor
    return None, None, 1.0
