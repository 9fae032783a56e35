"""A convolution, what is added to it, and ReLU in one call of cuDNN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from profiling.fx_passes.canonical import arguments, is_call, positional
from profiling.fx_passes.graph_facts import Facts, add_constant, constant, facts, family, mutated
from profiling.fx_passes.passes import Transform

CONVOLUTIONS = (torch.conv1d, torch.conv2d, torch.conv3d)
TRANSPOSED = (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)
BATCH_NORM = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")


@dataclass(frozen=True, kw_only=True)
class FoldBatchNorm(Transform):
    """Scale the convolution's weight and move its bias, in float64; a norm in training mode is left alone."""

    def rewrite(self, module: fx.GraphModule) -> int:
        """Fold each norm whose input is the result of a convolution that nothing else reads."""
        return sum(_folded(module, node) for node in module.graph.find_nodes(op="call_function", target=F.batch_norm))


def _folded(module: fx.GraphModule, norm: fx.Node) -> bool:
    given = arguments(norm, *BATCH_NORM)
    conv = given["input"]
    if given["training"] or not is_call(conv, *CONVOLUTIONS, *TRANSPOSED) or len(conv.users) != 1:
        return False
    held = arguments(conv, "input", "weight", "bias")
    weight, before, after = constant(module, held["weight"]), facts(conv), facts(norm)
    statistics = {
        name: constant(module, given[name]) for name in ("running_mean", "running_var", "weight", "bias") if given[name]
    }
    bias = constant(module, held["bias"]) if held["bias"] else None
    if weight is None or any(value is None for value in statistics.values()) or (held["bias"] and bias is None):
        return False
    if before is None or after is None or before.dtype != after.dtype or family(conv) & mutated(module.graph):
        return False
    scale, shift = _affine({name: value for name, value in statistics.items() if value is not None}, given["eps"])
    moved = shift if bias is None else bias.double() * scale + shift
    new = {
        "weight": _scaled(weight, scale, is_call(conv, *TRANSPOSED), arguments(conv, *TRANSPOSED_ARGUMENTS)["groups"]),
        "bias": moved.to(weight.dtype),
    }
    nodes = {name: add_constant(module, conv, name, value) for name, value in new.items()}
    rest = {name: value for name, value in conv.kwargs.items() if name not in ("input", "weight", "bias")}
    conv.args, conv.kwargs = (held["input"], nodes["weight"], nodes["bias"], *conv.args[3:]), rest
    norm.replace_all_uses_with(conv)
    return True


TRANSPOSED_ARGUMENTS = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups")


def _affine(norm: dict[str, Tensor], eps: float | None) -> tuple[Tensor, Tensor]:
    """Return scale and shift of a channel, float64 [channels]."""
    scale = torch.rsqrt(norm["running_var"].double() + (1e-5 if eps is None else eps))
    if "weight" in norm:
        scale = scale * norm["weight"].double()
    shift = -norm["running_mean"].double() * scale
    return scale, shift + norm["bias"].double() if "bias" in norm else shift


def _scaled(weight: Tensor, scale: Tensor, transposed: bool, groups: int | None) -> Tensor:
    """Multiply the output channels of `weight`, [out, in/groups, …] or transposed [in, out/groups, …]."""
    if not transposed:
        factors = scale.view(-1, *[1] * (weight.ndim - 1))
        return (weight.double() * factors).to(weight.dtype)
    groups = groups or 1
    grouped = weight.double().unflatten(0, (groups, -1))  # [groups, in/groups, out/groups, …]
    factors = scale.view(groups, 1, -1, *[1] * (weight.ndim - 2))
    return (grouped * factors).flatten(0, 1).to(weight.dtype)


CONVOLUTION = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")


@dataclass(frozen=True)
class _Convolution:
    node: fx.Node
    input: fx.Node
    shape: Facts  # of the input
    output: Facts
    weight: Tensor
    bias: Tensor
    geometry: tuple[list[int], list[int], list[int], int]  # stride, padding, dilation, groups


@dataclass(frozen=True, kw_only=True)
class FuseConvEpilogues(Transform):
    """`relu(conv(x))` and `relu(conv(x) + z)` in 2 and 3 dims, on CUDA, where cuDNN has the fused kernel.

    cuDNN lacks it for some layouts and dtypes and says so only when it is called, so each is tried once on zeros.
    """

    def rewrite(self, module: fx.GraphModule) -> int:
        """Fuse each ReLU whose convolution nothing else reads."""
        if mutated(module.graph):
            return 0
        found = module.graph.find_nodes(op="call_function", target=torch.relu)
        return sum(_fused(module, relu) for relu in found)


def _fused(module: fx.GraphModule, relu: fx.Node) -> bool:
    source, added = positional(relu)[0], None
    conv = _convolution(module, source)
    if conv is None and is_call(source, torch.add) and len(positional(source)) == 2 and not source.kwargs:
        if len(source.users) != 1:
            return False
        for first, second in (positional(source), positional(source)[::-1]):
            conv, added = _convolution(module, first), second
            if conv is not None:
                break
    if conv is None or (added is not None and not _is_alike(added, conv.output)) or not _is_supported(conv, added):
        return False
    weight = add_constant(module, relu, "weight", conv.weight)
    bias = add_constant(module, relu, "bias", conv.bias)
    with module.graph.inserting_before(relu):
        target, middle = _target(added)
        fused = module.graph.call_function(target, (conv.input, weight, *middle, bias, *conv.geometry))
    fused.meta = dict(relu.meta)  # the same values in the same layout, for the passes over what follows
    relu.replace_all_uses_with(fused)
    return True


def _target(added: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the function, and its arguments between weight and bias (what is added, and its factor)."""
    return (torch.cudnn_convolution_relu, ()) if added is None else (torch.cudnn_convolution_add_relu, (added, 1.0))


def _convolution(module: fx.GraphModule, node: Any) -> _Convolution | None:
    output = facts(node)
    if output is None or not is_call(node, torch.conv2d, torch.conv3d) or len(node.users) != 1:
        return None
    given = arguments(node, *CONVOLUTION)
    shape, weight, bias = facts(given["input"]), constant(module, given["weight"]), constant(module, given["bias"])
    if shape is None or weight is None or (given["bias"] is not None and bias is None) or output.device.type != "cuda":
        return None
    if isinstance(given["padding"], str) or len(shape.shape) != weight.ndim:
        return None
    dims = weight.ndim - 2
    stride, padding, dilation = (_each(given[name], dims, 0 if name == "padding" else 1) for name in CONVOLUTION[3:6])
    bias = weight.new_zeros(len(weight)) if bias is None else bias
    return _Convolution(
        node, given["input"], shape, output, weight, bias, (stride, padding, dilation, given["groups"] or 1)
    )


def _each(value: Any, dims: int, default: int) -> list[int]:
    """Return an option of a convolution for each dim."""
    values = [default if value is None else value] if not isinstance(value, tuple | list) else list(value)
    return values * dims if len(values) == 1 else values


def _is_alike(node: Any, output: Facts) -> bool:
    known = facts(node)
    return known is not None and (known.shape, known.dtype, known.stride) == (output.shape, output.dtype, output.stride)


def _is_supported(conv: _Convolution, added: Any) -> bool:
    target, middle = _target(None if added is None else _zeros(conv.output))
    try:
        target(_zeros(conv.shape), conv.weight, *middle, conv.bias, *conv.geometry)
    except RuntimeError:
        return False
    return True


def _zeros(known: Facts) -> Tensor:
    return torch.empty_strided(known.shape, known.stride, dtype=known.dtype, device=known.device).zero_()
