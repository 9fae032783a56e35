"""The pass that puts a kernel in the place of a norm over channels, with what is around it.

The graph of `profiling.fx_passes.tracer` is the place to look, because it has a norm that five lines write out, or an
activation that a block calls as a function, as well as one that is a module; and what the pass returns runs eagerly,
under any compiler and in a capture. A norm is recognised by what it does: a region of the graph is called on random
numbers, and its result must be that of a norm with some gain and shift for each channel.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from profiling.fx_passes.activation import (
    SAME,
    Activation,
    activation_after,
    add_vector,
    distance,
    over_channels,
    random_numbers,
    tried,
)
from profiling.fx_passes.convolution import CONVOLUTION_ARGUMENTS, CONVOLUTIONS
from profiling.fx_passes.nodes import (
    arguments,
    is_call,
    is_read_once,
    is_written,
    node_info,
    operands,
    unscaled,
)
from profiling.fx_passes.passes import RewritePass, function_of
from profiling.fx_passes.regions import Graph, name_of_call, same_form

#: Calls with which a norm begins, and what may lie between the tensor that is normalised and such a call.
_STATISTICS = frozenset(
    {"mean", "var", "std", "var_mean", "std_mean", "sum", "norm", "linalg_vector_norm"}
    | {"group_norm", "layer_norm", "rms_norm", "instance_norm", "normalize"}
)
_BEFORE = frozenset(
    {"float", "double", "to", "type", "reshape", "flatten", "unflatten", "permute", "transpose", "movedim"}
    | {"contiguous", "unsqueeze", "square", "pow", "__pow__", "mul", "abs", "sub"}
)
#: Calls in a norm, at most.
_NORM = 40
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
        return normalised * over_channels(self.gain, x) + over_channels(self.shift, x)


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
        norm: computes a norm, and a sum before it, as `models.kernels.fused_norm.fused_norm` does.
        misfit: returns why it does not take a tensor of a form, on a device and with a number of groups, or None.

    """

    norm: Callable[..., list[Tensor]]
    misfit: Callable[[Tensor, torch.device, int], str | None]

    def rewrite(self, module: fx.GraphModule) -> int:
        """Replace each norm that the kernel takes; `module.meta["left"]` counts why others stay."""
        graph, left, seen = Graph(module), Counter[str](), set[fx.Node]()
        taken: list[tuple[_Found, list[fx.Node], Activation]] = []
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
                    taken.append((found, *activation_after(graph, found.region[-1])))
            except torch.OutOfMemoryError:
                reason = "too little memory to try it on numbers"
            else:
                seen.update(found.region)
            if reason is not None:
                left[reason] += 1
        now: dict[fx.Node, fx.Node] = {}
        for found, after, activation in taken:
            self._replace(graph, now, found, after[-1], activation)
            for node in reversed(dict.fromkeys([*found.region, *after])):  # what writes to memory is not pruned
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
        named = {"gain": norm.gain, "shift": norm.shift, "alpha": activation.alpha, "beta": activation.beta}
        options = (norm.groups, norm.eps, norm.about_mean, norm.subtract_mean, activation.name, activation.slope)
        with nodes.inserting_before(found.region[0] if added is None else source):
            bias = add_vector(graph.module, "bias", bias)
            vectors = [add_vector(graph.module, name, vector) for name, vector in named.items()]
            given = (x, bias, added, *vectors, *options)
            results = nodes.call_function(function_of(self.norm), given)
            new = nodes.call_function(operator.getitem, (results, 0))
            if added is not None:
                summed = nodes.call_function(operator.getitem, (results, 1))
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
            norm = tried(_norm_of, graph, source, region)
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
    x, results = random_numbers(source, 1.0, 0.5), []
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
        if distance(norm_with(groups, _EPSILONS[0], *form)(x), results[0]) > 10 * SAME:
            continue
        small = graph.values(region, source, _SMALL * x)[region[-1]]
        for eps in sorted({*_EPSILONS, *_numbers(region)}):
            norm = norm_with(groups, eps, *form)
            if distance(norm(x), results[0]) < SAME and distance(norm(_SMALL * x), small) < 10 * SAME:
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


def _before(graph: Graph, source: fx.Node, region: list[fx.Node]) -> tuple[fx.Node, Tensor | None, fx.Node | None]:
    """Return the inputs of the kernel that replaces `source`: the tensor, a bias and a second summand (None: without).

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
