"""Passes for convolutions: fold the batch norm after one, and fuse what is added to it and ReLU into cuDNN's call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_weights

from profiling.fx_passes.nodes import (
    NodeInfo,
    add_constant,
    arguments,
    constant,
    families,
    is_call,
    node_info,
    written_in,
)
from profiling.fx_passes.passes import RewritePass

_CONVOLUTIONS = (torch.conv1d, torch.conv2d, torch.conv3d)
_TRANSPOSED = (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)
_CONVOLUTION_ARGUMENTS = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED_ARGUMENTS = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups")
_BATCH_NORM_ARGUMENTS = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")


@dataclass(frozen=True, kw_only=True)
class FoldBatchNorm(RewritePass):
    """Scale the convolution's weight and shift its bias, in float64; a norm in training mode is left alone."""

    def rewrite(self, module: fx.GraphModule) -> int:
        """Fold each norm whose input is the result of a convolution that nothing else reads."""
        norms = module.graph.find_nodes(op="call_function", target=F.batch_norm)
        return sum(_fold_batch_norm(module, norm) for norm in norms)


def _fold_batch_norm(module: fx.GraphModule, norm: fx.Node) -> bool:
    norm_args = arguments(norm, *_BATCH_NORM_ARGUMENTS)
    conv = norm_args["input"]
    if norm_args["training"] or not is_call(conv, *_CONVOLUTIONS, *_TRANSPOSED) or len(conv.users) != 1:
        return False
    transposed = is_call(conv, *_TRANSPOSED)
    conv_args = arguments(conv, *(_TRANSPOSED_ARGUMENTS if transposed else _CONVOLUTION_ARGUMENTS))
    weight, before, after = constant(module, conv_args["weight"]), node_info(conv), node_info(norm)
    present = [conv_args["bias"], *(norm_args[name] for name in ("running_mean", "running_var", "weight", "bias"))]
    values = [constant(module, node) if node else None for node in present]
    if weight is None or any(node and value is None for node, value in zip(present, values, strict=True)):
        return False
    if before is None or after is None or before.dtype != after.dtype or families(conv) & written_in(module.graph):
        return False
    bias, mean, variance, gain, offset = (None if value is None else value.double() for value in values)
    if mean is None or variance is None:
        return False
    groups, eps = conv_args["groups"] or 1, 1e-5 if norm_args["eps"] is None else norm_args["eps"]
    outputs_first = _transposed_groups(weight, groups) if transposed else weight
    folded_weight, folded_bias = fuse_conv_bn_weights(outputs_first.double(), bias, mean, variance, eps, gain, offset)
    if transposed:
        folded_weight = _transposed_groups(folded_weight, groups)
    new_weight = add_constant(module, conv, "weight", folded_weight.to(weight.dtype))
    new_bias = add_constant(module, conv, "bias", folded_bias.to(weight.dtype))
    options = {name: value for name, value in conv.kwargs.items() if name not in ("input", "weight", "bias")}
    conv.args, conv.kwargs = (conv_args["input"], new_weight, new_bias, *conv.args[3:]), options
    norm.replace_all_uses_with(conv)
    return True


def _transposed_groups(weight: Tensor, groups: int) -> Tensor:
    """Return a transposed convolution's weight [in, out/groups, …] as [out, in/groups, …], or the reverse."""
    return weight.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)


@dataclass(frozen=True, kw_only=True)
class FuseConvEpilogues(RewritePass):
    """Fuse `relu(conv(x))` and `relu(conv(x) + z)` in 2 and 3 dims, on CUDA, into one call of cuDNN.

    cuDNN lacks the fused kernel for some layouts and dtypes and reports that only when called, so each is tried once on
    zeros.
    """

    def rewrite(self, module: fx.GraphModule) -> int:
        """Fuse each ReLU whose convolution nothing else reads."""
        if written_in(module.graph):
            return 0
        activations = module.graph.find_nodes(op="call_function", target=torch.relu)
        return sum(_fuse_epilogue(module, relu) for relu in activations)


@dataclass(frozen=True)
class _Convolution:
    """A convolution with constant weight and bias that one node reads."""

    input: fx.Node
    input_info: NodeInfo
    output: NodeInfo
    weight: Tensor
    bias: Tensor
    geometry: tuple[list[int], list[int], list[int], int]  # stride, padding, dilation, groups


def _fuse_epilogue(module: fx.GraphModule, relu: fx.Node) -> bool:
    source: Any = relu.args[0]
    added: Any = None
    conv = _convolution(module, source)
    if conv is None and is_call(source, torch.add) and len(source.args) == 2 and not source.kwargs:
        if len(source.users) != 1:
            return False
        for first, second in (source.args, source.args[::-1]):
            conv, added = _convolution(module, first), second
            if conv is not None:
                break
    if conv is None or (added is not None and not _same_form(added, conv.output)) or not _is_supported(conv, added):
        return False
    weight = add_constant(module, relu, "weight", conv.weight)
    bias = add_constant(module, relu, "bias", conv.bias)
    with module.graph.inserting_before(relu):
        function, middle = _fused_function(added)
        fused = module.graph.call_function(function, (conv.input, weight, *middle, bias, *conv.geometry))
    fused.meta = dict(relu.meta)  # the same values in the same layout, for the passes after this one
    relu.replace_all_uses_with(fused)
    return True


def _convolution(module: fx.GraphModule, node: Any) -> _Convolution | None:
    output = node_info(node)
    if output is None or not is_call(node, torch.conv2d, torch.conv3d) or len(node.users) != 1:
        return None
    args = arguments(node, *_CONVOLUTION_ARGUMENTS)
    input_info = node_info(args["input"])
    weight, bias = constant(module, args["weight"]), constant(module, args["bias"])
    if input_info is None or weight is None or (args["bias"] is not None and bias is None):
        return None
    if output.device.type != "cuda" or isinstance(args["padding"], str) or len(input_info.shape) != weight.ndim:
        return None
    dims = weight.ndim - 2
    stride, padding, dilation = (
        _for_each_dim(args[name], dims, default) for name, default in (("stride", 1), ("padding", 0), ("dilation", 1))
    )
    bias = weight.new_zeros(len(weight)) if bias is None else bias
    geometry = (stride, padding, dilation, args["groups"] or 1)
    return _Convolution(args["input"], input_info, output, weight, bias, geometry)


def _for_each_dim(value: Any, dims: int, default: int) -> list[int]:
    """Return an option of a convolution for each dim."""
    values = [default if value is None else value] if not isinstance(value, tuple | list) else list(value)
    return values * dims if len(values) == 1 else values


def _same_form(node: Any, output: NodeInfo) -> bool:
    info = node_info(node)
    return info is not None and (info.shape, info.dtype, info.stride) == (output.shape, output.dtype, output.stride)


def _fused_function(added: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the function, and its arguments between weight and bias (what is added, and its factor)."""
    return (torch.cudnn_convolution_relu, ()) if added is None else (torch.cudnn_convolution_add_relu, (added, 1.0))


def _is_supported(conv: _Convolution, added: Any) -> bool:
    function, middle = _fused_function(None if added is None else _zeros(conv.output))
    try:
        function(_zeros(conv.input_info), conv.weight, *middle, conv.bias, *conv.geometry)
    except RuntimeError:
        return False
    return True


def _zeros(info: NodeInfo) -> Tensor:
    return torch.empty_strided(info.shape, info.stride, dtype=info.dtype, device=info.device).zero_()
