"""The pass that puts a kernel in the place of a norm over channels, with what is around it.

The graph of `profiling.fx_passes.tracer` is the place to look, because it has a norm that five lines write out, or an
activation that a block calls as a function, as well as one that is a module; and what the pass returns runs eagerly,
under any compiler and in a capture. A norm is recognised by what it does: a region of the graph is called on random
numbers, and its result must be that of a norm with some gain and shift for each channel.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import pi
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from profiling.fx_passes.convolution import CONVOLUTION_ARGUMENTS, CONVOLUTIONS
from profiling.fx_passes.nodes import (
    add_constant,
    arguments,
    is_call,
    is_read_once,
    is_written,
    node_info,
    operands,
    unscaled,
)
from profiling.fx_passes.passes import RewritePass
from profiling.fx_passes.regions import Graph, name_of_call, same_form

#: Calls with which a norm begins.
_STATISTICS = frozenset(
    {"mean", "var", "std", "var_mean", "std_mean", "sum", "norm", "linalg_vector_norm"}
    | {"group_norm", "layer_norm", "rms_norm", "instance_norm", "normalize"}
)
#: What may lie between the tensor that is normalised and such a call.
_BEFORE = frozenset(
    {
        "float",
        "double",
        "to",
        "type",
        "reshape",
        "flatten",
        "unflatten",
        "permute",
        "transpose",
        "movedim",
        "contiguous",
    }
    | {"square", "pow", "__pow__", "mul", "abs", "sub", "unsqueeze"}
)
#: Numbers of calls in a norm and in an activation, at most.
_NORM, _ACTIVATION = 40, 12
#: Relative L2 distance from the function in float32, at most.
_SAME = 1e-4
#: Epsilons that functions have by default; 1e-24 stands for none.
_EPSILONS = (1e-24, 1e-12, 1e-8, 1e-6, 1e-5, torch.finfo(torch.float32).eps)
#: Scale of the numbers that tell which epsilon a norm has.
_SMALL = 1e-5


@dataclass(frozen=True)
class Norm:
    """A norm of [n, c, ...] with `gain` and `shift` [c].

    Statistics are of `groups` groups of channels and all positions, or with 0 of all channels at each position.
    """

    gain: Tensor
    shift: Tensor
    groups: int
    eps: float
    about_mean: bool
    subtract_mean: bool

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise `x` [n, c, ...] in its dtype."""
        normalised = _normalised(x, self.groups, self.eps, self.about_mean, self.subtract_mean)
        return normalised * _over(self.gain, x) + _over(self.shift, x)


@dataclass(frozen=True)
class Activation:
    """A function of each number that follows a norm; snake is `x + beta·sin²(alpha·x)` with alpha and beta [c]."""

    name: str = "none"
    slope: float = 0.0
    alpha: Tensor | None = None
    beta: Tensor | None = None


@dataclass(frozen=True)
class _Found:
    source: fx.Node
    region: list[fx.Node]
    norm: Norm


@dataclass(frozen=True, kw_only=True)
class FuseNorms(RewritePass):
    """Replace norms over channels, each with the activation after it, and the sum and the bias before it.

    The bias is that of a convolution that nothing else reads; the sum is returned, too, because others may read it.

    Attributes:
        norm: computes a norm of a tensor, as `models.kernels.fused_norm.fused_norm` does.
        add_norm: computes a sum and its norm.
        misfit: returns why they do not take a tensor of a form, on a device and with a number of groups, or None.

    """

    norm: Callable[..., Tensor]
    add_norm: Callable[..., tuple[Tensor, Tensor]]
    misfit: Callable[[Tensor, torch.device, int], str | None]

    def rewrite(self, module: fx.GraphModule) -> int:
        """Replace each norm that the kernel takes; `module.meta["left"]` counts why others stay."""
        graph, left, seen = Graph(module), Counter[str](), set[fx.Node]()
        taken: list[tuple[_Found, fx.Node, Activation]] = []
        for first in module.graph.nodes:
            if first in seen or first in graph.constants or name_of_call(first) not in _STATISTICS:
                continue
            try:
                found = _norm_at(graph, first)
                if found is None:
                    continue
                info: Any = node_info(found.source)
                reason = self.misfit(info.zeros("meta"), info.device, found.norm.groups)
                if reason is None:
                    taken.append((found, *_activation_after(graph, found.region[-1])))
            except torch.OutOfMemoryError:
                reason = "too little memory to try it on numbers"
            else:
                seen.update(found.region)
            if reason is not None:
                left[reason] += 1
        now: dict[fx.Node, fx.Node] = {}
        for found, last, activation in taken:
            self._replace(graph, now, found, last, activation)
            for node in reversed(found.region):  # one that writes to memory of the region is not pruned
                if not node.users:
                    module.graph.erase_node(node)
        module.meta["left"] = left
        return len(taken)

    def _replace(
        self, graph: Graph, now: dict[fx.Node, fx.Node], found: _Found, last: fx.Node, activation: Activation
    ) -> None:
        """Insert the call of a kernel; `now` has what replaced a node before."""
        nodes, norm = graph.module.graph, found.norm
        source = now.get(found.source, found.source)
        x, bias, added = _before(graph, source, found.region)

        def constant(name: str, value: Tensor | None) -> fx.Node | None:
            if value is None:
                return None
            return add_constant(graph.module, name, value if value.dtype == torch.float64 else value.float())

        with nodes.inserting_before(found.region[0] if added is None else source):
            vectors = [constant("gain", norm.gain), constant("shift", norm.shift)]
            vectors += [constant("alpha", activation.alpha), constant("beta", activation.beta)]
            options = (norm.groups, norm.eps, norm.about_mean, norm.subtract_mean, activation.name, activation.slope)
            if added is None:
                new = nodes.call_function(_function(self.norm), (x, constant("bias", bias), *vectors, *options))
            else:
                given = (x, constant("bias", bias), added, *vectors, *options)
                both = nodes.call_function(_function(self.add_norm), given)
                summed, new = (nodes.call_function(operator.getitem, (both, place)) for place in range(2))
                summed.meta = dict(source.meta)
                source.replace_all_uses_with(summed)
                now[found.source] = summed
        new.meta = dict(last.meta)
        last.replace_all_uses_with(new)
        now[last] = new


def _norm_at(graph: Graph, first: fx.Node) -> _Found | None:
    """Return the largest norm that begins with the call `first`."""
    for source in _sources(graph, first):
        found = None
        for region in graph.regions(source, first, _NORM):
            if not same_form(region[-1], source):
                continue
            norm = _norm_of(graph, source, region)
            if norm is None and found is not None:
                break
            found = found if norm is None else _Found(source, region, norm)
        if found is not None:
            return found
    return None


def _sources(graph: Graph, first: fx.Node) -> list[fx.Node]:
    """Return the tensors of which `first` may compute a statistic, the farthest from it first."""
    found, node = [], first
    while node is first or name_of_call(node) in _BEFORE:
        inputs = [each for each in node.all_input_nodes if each not in graph.constants and not is_written(each)]
        if len(inputs) != 1:
            break
        node = inputs[0]
        if (info := node_info(node)) is not None and len(info.shape) > 2 and info.dtype.is_floating_point:
            found.append(node)
    return found[::-1]


def _norm_of(graph: Graph, source: fx.Node, region: list[fx.Node]) -> Norm | None:
    """Return the norm that a region computes, or None if it computes another function."""
    x, results = _random(source, 1.0, 0.5), []
    for given in (x, -x):
        results.append(graph.values(region, source, given)[region[-1]])
    odd, even = (results[0] - results[1]) / 2, (results[0] + results[1]) / 2
    others = [dim for dim in range(x.dim()) if dim != 1]
    shift = even.mean(others)  # norms without a shift are odd functions

    def norm_with(groups: int, eps: float, about_mean: bool, subtract_mean: bool) -> Norm:
        z = _normalised(x, groups, eps, about_mean, subtract_mean)
        gain = (odd * z).sum(others) / z.square().sum(others)
        return Norm(gain, shift, groups, eps, about_mean, subtract_mean)

    forms = itertools.product(_groups(source, region), ((True, True), (True, False), (False, False)))
    for groups, form in forms:
        if _distance(norm_with(groups, _EPSILONS[0], *form)(x), results[0]) > 10 * _SAME:
            continue
        small = graph.values(region, source, _SMALL * x)[region[-1]]
        for eps in sorted({*_EPSILONS, *_numbers(region)}):
            norm = norm_with(groups, eps, *form)
            if _distance(norm(x), results[0]) < _SAME and _distance(norm(_SMALL * x), small) < 10 * _SAME:
                return norm
    return None


def _groups(source: fx.Node, region: list[fx.Node]) -> list[int]:
    """Return the numbers of groups that a norm may have: as many as a call in it has results for each batch."""
    info: Any = node_info(source)
    batch, channels = info.shape[:2]
    counts = [math.prod(found.shape) // batch for node in region if (found := node_info(node)) is not None]
    counts += [each for node in region for each in node.args if isinstance(each, int)]  # of F.group_norm
    return [0, *sorted({count for count in (*counts, channels) if 0 < count <= channels and not channels % count})]


def _numbers(region: list[fx.Node]) -> list[float]:
    """Return the small numbers in the calls of a region, among which is the epsilon."""
    given = [each for node in region for each in (*node.args, *node.kwargs.values())]
    return [each for each in given if isinstance(each, float) and 0 < each < 0.1]


def _activation_after(graph: Graph, out: fx.Node) -> tuple[fx.Node, Activation]:
    """Return the activation that alone reads `out`, and its last call; without one `out` itself."""
    first = min(out.users, key=graph.order.__getitem__)
    for region in graph.regions(out, first, _ACTIVATION):
        if same_form(region[-1], out) and out.users.keys() <= {*region}:
            activation = _activation_of(graph, out, region)
            if activation is not None:
                return region[-1], activation
    return out, Activation()


def _activation_of(graph: Graph, source: fx.Node, region: list[fx.Node]) -> Activation | None:
    """Return the activation that a region computes, or None if it computes another function."""

    def values(x: Tensor) -> dict[fx.Node, Any]:
        return graph.values(region, source, x)

    x, last = _random(source, 3.0, 0.0), region[-1]
    result = values(x)[last]
    functions = {"silu": F.silu, "gelu": F.gelu, "gelu_tanh": functools.partial(F.gelu, approximate="tanh")}
    for name, function in functions.items():
        if _distance(function(x), result) < _SAME:
            return Activation(name)
    ones = values(torch.ones_like(x))
    slope = round(-float(values(-torch.ones_like(x))[last].flatten()[0]), 6)
    if abs(slope) < 1 and _distance(F.leaky_relu(x, slope), result) < _SAME:
        return Activation("leaky_relu", slope)
    sines = [node for node in region if name_of_call(node) == "sin"]
    if len(sines) != 1 or ones[sines[0]].numel() != x.numel():
        return None
    alpha = ones[sines[0].all_input_nodes[0]].reshape(*x.shape[:2], -1)[0, :, 0]
    top = _over(torch.where(alpha.abs() < 1e-6, 1.0, pi / 2 / alpha), x).expand_as(x)  # where the sine is 1
    beta = (values(top)[last] - top).flatten(2)[0, :, 0]
    snake = x + _over(beta, x) * torch.sin(_over(alpha, x) * x).square()
    return Activation("snake", 0.0, alpha, beta) if _distance(snake, result) < _SAME else None


def _before(graph: Graph, source: fx.Node, region: list[fx.Node]) -> tuple[fx.Node, Tensor | None, fx.Node | None]:
    """Return what a kernel reads in place of `source`: a tensor, a bias that it adds, and another tensor, or None.

    A convolution whose bias the kernel adds has none afterwards: its library adds one in a kernel of its own.
    """
    below, factor = unscaled(source)
    if factor == 1 and (below is source or is_read_once(below)):
        for x, added in operands(below, torch.add):
            conv = _convolution(x) if same_form(x, source) and same_form(added, source) else None
            if conv is not None and x is not added and is_read_once(x) and not is_written(added):
                return x, _take_bias(graph, conv), added
    conv = _convolution(source) if source.users.keys() <= {*region} else None
    return source, None if conv is None else _take_bias(graph, conv), None


def _convolution(node: Any) -> fx.Node | None:
    """Return the convolution of which `node` is the result, or a view of another number of dims."""
    if is_call(node, "squeeze", torch.squeeze) and is_read_once(node.args[0]):
        node = node.args[0]
    return node if is_call(node, *CONVOLUTIONS) else None


def _take_bias(graph: Graph, conv: fx.Node) -> Tensor | None:
    args = arguments(conv, *CONVOLUTION_ARGUMENTS)
    bias = graph.constant(args["bias"])
    if bias is not None:
        conv.args = (args["input"], args["weight"], None, *conv.args[3:])
        conv.kwargs = {name: value for name, value in conv.kwargs.items() if name not in ("input", "weight", "bias")}
    return bias


def _normalised(x: Tensor, groups: int, eps: float, about_mean: bool, subtract_mean: bool) -> Tensor:
    rows, dim = (x.reshape(x.shape[0], groups, -1), -1) if groups else (x, 1)
    centred = rows - rows.mean(dim, keepdim=True) if about_mean else rows
    scale = torch.rsqrt(centred.square().mean(dim, keepdim=True) + eps)
    return ((centred if subtract_mean else rows) * scale).reshape(x.shape)


def _random(node: fx.Node, deviation: float, mean: float) -> Tensor:
    """Return random numbers of the form of a node, at least in float32."""
    info: Any = node_info(node)
    dtype = torch.promote_types(info.dtype, torch.float32)
    generator = torch.Generator(info.device).manual_seed(0)
    return mean + deviation * torch.randn(info.shape, dtype=dtype, device=info.device, generator=generator)


def _over(vector: Tensor, x: Tensor) -> Tensor:
    return vector.view(-1, *[1] * (x.dim() - 2))


def _distance(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm() / other.norm())


def _function(given: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that a config names, which a graph can call by its name."""
    return given.func if isinstance(given, functools.partial) else given
