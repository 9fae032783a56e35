"""Batch norm in eval mode, folded into the convolution before it: both are a scale and a shift a channel."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from profiling.transforms.constants import add_constant, constant
from profiling.transforms.facts import facts, family, mutated
from profiling.transforms.spelling import arguments, is_call
from profiling.transforms.transform import Transform

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
