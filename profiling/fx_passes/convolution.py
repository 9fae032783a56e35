"""Passes for convolutions.

They fold the batch norm after one, fuse what is added to it and ReLU into cuDNN's call, and split one of few outputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_weights

from profiling.fx_passes.nodes import (
    add_constant,
    arguments,
    constants,
    is_call,
    is_read_once,
    is_written,
    node_info,
    operands,
)
from profiling.fx_passes.passes import RewritePass

CONVOLUTIONS = (torch.conv1d, torch.conv2d, torch.conv3d)
_TRANSPOSED = (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)
CONVOLUTION_ARGUMENTS = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED_ARGUMENTS = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups")
#: Most outputs of a convolution that is split; libraries compute a multiple of 32.
_FEW = 8
#: Numbers that a kernel reads and writes at once, in half precision.
_ALIGNED = 16
CHANNELS_LAST = {2: torch.channels_last, 3: torch.channels_last_3d}
_BATCH_NORM_ARGUMENTS = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")


@dataclass(frozen=True, kw_only=True)
class FoldBatchNorm(RewritePass):
    """Scale the convolution's weight and shift its bias, in float64; a norm in training mode is left alone."""

    def replacement(self, module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
        """Fold a norm whose input is the result of a convolution that nothing else reads, and return that."""
        if not is_call(node, F.batch_norm):
            return None
        norm = arguments(node, *_BATCH_NORM_ARGUMENTS)
        conv: Any = norm["input"]
        if norm["training"] or not is_call(conv, *CONVOLUTIONS, *_TRANSPOSED) or not is_read_once(conv):
            return None
        is_transposed = is_call(conv, *_TRANSPOSED)
        args = arguments(conv, *(_TRANSPOSED_ARGUMENTS if is_transposed else CONVOLUTION_ARGUMENTS))
        statistics = [norm[name] for name in ("running_mean", "running_var", "weight", "bias")]
        found = constants(module, args["weight"], args["bias"], *statistics)
        before, after = node_info(conv), node_info(node)
        if found is None:
            return None
        weight, bias, mean, variance, gain, offset = (None if value is None else value.double() for value in found)
        if weight is None or mean is None or variance is None:
            return None
        # In a convolution without a batch the norm is over another dimension than the channels.
        if before is None or after is None or before.dtype != after.dtype or len(before.shape) != weight.ndim:
            return None
        groups, eps = args["groups"] or 1, 1e-5 if norm["eps"] is None else norm["eps"]
        outputs_first = _transposed_groups(weight, groups) if is_transposed else weight
        folded, shift = fuse_conv_bn_weights(outputs_first, bias, mean, variance, eps, gain, offset)
        folded = _transposed_groups(folded, groups) if is_transposed else folded
        options = {name: value for name, value in conv.kwargs.items() if name not in ("input", "weight", "bias")}
        with module.graph.inserting_before(conv):
            new_weight = add_constant(module, "weight", folded.to(found[0].dtype))
            new_bias = add_constant(module, "bias", shift.to(found[0].dtype))
        conv.args, conv.kwargs = (args["input"], new_weight, new_bias, *conv.args[3:]), options
        return conv


def _transposed_groups(weight: Tensor, groups: int) -> Tensor:
    """Return a transposed convolution's weight [in, out/groups, …] as [out, in/groups, …], or the reverse."""
    return weight.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)


@dataclass(frozen=True, kw_only=True)
class FuseConvEpilogues(RewritePass):
    """Fuse `relu(conv(x))` and `relu(conv(x) + z)` in 2 and 3 dims, on CUDA, into one call of cuDNN.

    cuDNN lacks the fused kernel for some layouts and dtypes and reports that only when called, so each is tried once on
    zeros.
    """

    def replacement(self, module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
        """Return cuDNN's call for a ReLU whose convolution nothing else reads."""
        if not is_call(node, torch.relu):
            return None
        source: Any = node.args[0]
        sums = operands(source, torch.add) if is_read_once(source) else ()
        for conv, added in ((source, None), *sums):
            call = _convolution(module, conv)
            if call is not None and added is not conv and (added is None or _has_form_of(added, conv)):
                return _fused(module, call, added, node)
        return None


@dataclass(frozen=True, kw_only=True)
class SplitTaps(RewritePass):
    """Replace a convolution of few output channels by a 1×1 convolution and a sum.

    The 1×1 convolution computes, at each position, the output channels of each element of the kernel (tap) alone: 27
    channels for a 3×3 kernel with 3 outputs. The sum adds up the taps, each shifted to where its element lies.
    Libraries pad 3 output channels to 32 or more; this computes 27 in place of 9·32, and reads the input once. The 1×1
    results are rounded to the weight's dtype; the sum is in float32 for half precision.
    """

    def replacement(self, module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
        """Return the sum, for a convolution without stride and groups; None where it has too many outputs.

        All taps together may have as many outputs as there are inputs. In three dims the 1×1 convolution is a product
        of matrices, which leaves the memory format as it is.
        """
        if not is_call(node, *CONVOLUTIONS):
            return None
        args = arguments(node, *CONVOLUTION_ARGUMENTS)
        found, source, out = constants(module, args["weight"], args["bias"]), node_info(args["input"]), node_info(node)
        if found is None or found[0] is None or source is None or out is None or source.dtype != out.dtype:
            return None
        weight, bias = found
        sizes, dims = weight.shape[2:], weight.dim() - 2
        strides, dilations = (for_each_dim(args[name], dims, 1) for name in ("stride", "dilation"))
        outputs = -(-math.prod(sizes) * len(weight) // _ALIGNED) * _ALIGNED
        is_small = len(weight) <= _FEW and outputs <= weight.shape[1] and len(source.shape) == weight.dim()
        if math.prod(sizes) == 1 or {*strides, args["groups"] or 1} != {1} or not is_small:
            return None
        taps = weight.movedim(0, -1).flatten(1, -2).permute(1, 2, 0).flatten(0, 1)  # [tap · output, input]
        taps = F.pad(taps, (0, 0, 0, outputs - len(taps)))
        last = CHANNELS_LAST.get(dims, torch.contiguous_format)
        last = last if out.zeros("meta").is_contiguous(memory_format=last) else torch.contiguous_format
        graph, pads = module.graph, list[int]()
        shape = zip(source.shape[2:], out.shape[2:], sizes, dilations, zeros_before(args), strict=True)
        for length, results, size, dilation, before in shape:
            pads = [before, results + (size - 1) * dilation - before - length, *pads]
        if dims == 3:
            flat = graph.call_method("flatten", (args["input"], 2))
            products = graph.call_function(torch.matmul, (add_constant(module, "weight", taps), flat))
            products = graph.call_method("unflatten", (products, 2, source.shape[2:]))
        else:
            taps = taps[(..., *[None] * dims)].contiguous(memory_format=last)
            convolution: Any = node.target
            products = graph.call_function(convolution, (args["input"], add_constant(module, "weight", taps)))
        products = graph.call_function(F.pad, (products, pads))
        total, wide = None, torch.promote_types(out.dtype, torch.float32)
        for number, places in enumerate(product(*map(range, sizes))):
            term = graph.call_method("narrow", (products, 1, number * len(weight), len(weight)))
            for dim, (place, dilation, results) in enumerate(zip(places, dilations, out.shape[2:], strict=True)):
                term = graph.call_method("narrow", (term, 2 + dim, place * dilation, results))
            term = term if wide == out.dtype else graph.call_method("to", (term, wide))
            total = term if total is None else graph.call_function(torch.add, (total, term))
        if bias is not None:
            bias = add_constant(module, "bias", bias.to(wide)[(..., *[None] * dims)])
            total = graph.call_function(torch.add, (total, bias))
        total = total if wide == out.dtype else graph.call_method("to", (total, out.dtype))
        return graph.call_method("contiguous", (total,), {"memory_format": last})


def _convolution(module: fx.GraphModule, node: Any) -> tuple[Any, ...] | None:
    """Return what cuDNN takes for a convolution that one node reads: input, weight, bias, stride, padding, ..."""
    output = node_info(node)
    if output is None or not is_call(node, torch.conv2d, torch.conv3d) or not is_read_once(node):
        return None
    args = arguments(node, *CONVOLUTION_ARGUMENTS)
    source, found = node_info(args["input"]), constants(module, args["weight"], args["bias"])
    if source is None or found is None or found[0] is None or is_written(args["input"]):
        return None
    weight, bias = found
    if output.device.type != "cuda" or isinstance(args["padding"], str) or len(source.shape) != weight.ndim:
        return None
    if not source.dtype == weight.dtype == output.dtype:
        return None  # autocast knows the convolution, and not cuDNN's call
    sizes = (("stride", 1), ("padding", 0), ("dilation", 1))
    geometry = (for_each_dim(args[name], weight.ndim - 2, default) for name, default in sizes)
    bias = weight.new_zeros(len(weight)) if bias is None else bias
    return args["input"], weight, bias, *geometry, args["groups"] or 1


def for_each_dim(value: Any, dims: int, default: int) -> list[int]:
    """Return an option of a convolution for each dim."""
    values = [default if value is None else value] if not isinstance(value, tuple | list) else list(value)
    return values * dims if len(values) == 1 else values


def zeros_before(args: dict[str, Any]) -> list[int]:
    """Return the zeros that a convolution itself adds before the first element of each dim, from its `arguments`."""
    weight: Any = node_info(args["weight"])
    dims, padding = len(weight.shape) - 2, args["padding"]
    if padding == "same":
        reach = zip(for_each_dim(args["dilation"], dims, 1), weight.shape[2:], strict=True)
        return [dilation * (size - 1) // 2 for dilation, size in reach]
    return for_each_dim(0 if padding == "valid" else padding, dims, 0)


def _has_form_of(added: Any, conv: fx.Node) -> bool:
    one, other = node_info(added), node_info(conv)
    if one is None or other is None or is_written(added):
        return False
    return (one.shape, one.dtype, one.stride) == (other.shape, other.dtype, other.stride)


def _fused(module: fx.GraphModule, call: tuple[Any, ...], added: Any, relu: fx.Node) -> fx.Node | None:
    """Return cuDNN's call if it has a kernel for these layouts and dtypes."""
    source, weight, bias, *geometry = call
    function: Any
    factor: tuple[float, ...]
    function, factor = (
        (torch.cudnn_convolution_relu, ()) if added is None else (torch.cudnn_convolution_add_relu, (1.0,))
    )
    tensors = [source] if added is None else [source, added]
    zeros = [node.meta["info"].zeros() for node in tensors]
    try:
        function(zeros[0], weight, *zeros[1:], *factor, bias, *geometry)
    except RuntimeError:
        return None
    weight, bias = add_constant(module, "weight", weight), add_constant(module, "bias", bias)
    fused = module.graph.call_function(function, (source, weight, *tensors[1:], *factor, bias, *geometry))
    fused.meta = dict(relu.meta)  # the same values in the same layout, for the nodes after this one
    return fused
