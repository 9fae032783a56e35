"""Recognises an activation by what it computes; `regions` says why its name is not enough."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from math import pi
from typing import Any, TypeVar

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from profiling.fx_passes.nodes import add_constant, node_info
from profiling.fx_passes.regions import Graph, name_of_call, same_form

_T = TypeVar("_T")

#: Calls in an activation, at most.
_ACTIVATION = 12
#: Relative L2 distance of a region from the function that it computes, in float32, at most.
SAME = 1e-4


@dataclass(frozen=True)
class Activation:
    """A function of each number that follows a call; snake is `x + beta·sin²(alpha·x)` with alpha and beta [c]."""

    name: str = "none"
    slope: float = 0.0
    alpha: Tensor | None = None
    beta: Tensor | None = None


def activation_after(graph: Graph, out: fx.Node) -> tuple[list[fx.Node], Activation]:
    """Return the calls of the activation that alone reads `out`, and its function; `out` itself if there is none."""
    first = min(out.users, key=lambda user: graph.order.get(user, 0))  # 0: inserted since, and in no region
    for region in graph.regions(out, first, _ACTIVATION):
        if same_form(region[-1], out) and out.users.keys() <= {*region}:
            activation = tried(_activation_of, graph, out, region)
            if activation is not None:
                return region, activation
    return [out], Activation()


def _activation_of(graph: Graph, source: fx.Node, region: list[fx.Node]) -> Activation | None:
    """Return the activation that a region computes, or None if it computes another function."""
    sines = [node for node in region if name_of_call(node) == "sin"]

    def values(x: Tensor) -> dict[fx.Node, Any]:
        return graph.values(region, source, x, [*sines, *(each for sine in sines for each in sine.all_input_nodes)])

    x, last = random_numbers(source, 3.0, 0.0), region[-1]
    result = values(x)[last]
    functions = {"silu": F.silu, "gelu": F.gelu, "gelu_tanh": functools.partial(F.gelu, approximate="tanh")}
    for name, function in functions.items():
        if distance(function(x), result) < SAME:
            return Activation(name)
    ones = values(torch.ones_like(x))
    slope = round(-float(values(-torch.ones_like(x))[last].flatten()[0]), 6)
    if abs(slope) < 1 and distance(F.leaky_relu(x, slope), result) < SAME:
        return Activation("leaky_relu", slope)
    if len(sines) != 1 or ones[sines[0]].numel() != x.numel():
        return None
    alpha = ones[sines[0].all_input_nodes[0]].reshape(*x.shape[:2], -1)[0, :, 0]
    top = over_channels(torch.where(alpha.abs() < 1e-6, 1.0, pi / 2 / alpha), x).expand_as(x)  # where the sine is 1
    beta = (values(top)[last] - top).flatten(2)[0, :, 0]
    snake = x + over_channels(beta, x) * torch.sin(over_channels(alpha, x) * x).square()
    return Activation("snake", 0.0, alpha, beta) if distance(snake, result) < SAME else None


def random_numbers(node: fx.Node, deviation: float, mean: float) -> Tensor:
    """Return random numbers of the form of a node, at least in float32."""
    info: Any = node_info(node)
    dtype = torch.promote_types(info.dtype, torch.float32)
    generator = torch.Generator(info.device).manual_seed(0)
    return mean + deviation * torch.randn(info.shape, dtype=dtype, device=info.device, generator=generator)


def over_channels(vector: Tensor, x: Tensor) -> Tensor:
    """Reshape `vector` [c] so that it broadcasts over `x` [n, c, ...]."""
    return vector.view(-1, *[1] * (x.dim() - 2))


def distance(one: Tensor, other: Tensor) -> float:
    """Return the relative L2 distance of `one` from `other`; NaN where a number is NaN."""
    return float((one - other).norm() / other.norm())


def add_vector(module: fx.GraphModule, name: str, value: Tensor | None) -> fx.Node | None:
    """Return a node that reads `value`, contiguous and at least in float32, at the graph's insert point, or None."""
    if value is None:
        return None
    return add_constant(module, name, value.to(torch.promote_types(value.dtype, torch.float32)).contiguous())


def tried(recognise: Callable[..., _T | None], graph: Graph, source: fx.Node, region: list[fx.Node]) -> _T | None:
    """Return what `recognise` finds in a region; None also where its calls do not take numbers in float32.

    Raises:
        OutOfMemoryError: there is too little memory to try it.

    """
    try:
        return recognise(graph, source, region)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, ValueError):
        return None
