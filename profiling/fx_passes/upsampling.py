"""Two passes for upsampling: convolutions are computed before it, and interpolation is replaced by a kernel.

The second is for bilinear and bicubic interpolation, and explained in `models.kernels.resize`. The first is for
nearest-neighbour upsampling, which copies each number, and the convolution multiplies the copies by different
weights. One product of the number with the sum of these weights gives the same. For each result it takes 4 products
instead of 9 for a 3×3 kernel and a factor of 2, and 3 instead of 14 for a kernel of 14 and a factor of 7. Each place
among the copies of a number has sums of its own: they are output channels of one convolution, which a reshape then
puts side by side.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from profiling.fx_passes.activation import random_numbers, tried
from profiling.fx_passes.convolution import (
    CHANNELS_LAST,
    CONVOLUTION_ARGUMENTS,
    CONVOLUTIONS,
    for_each_dim,
    zeros_before,
)
from profiling.fx_passes.nodes import add_constant, arguments, is_call, is_written, node_info
from profiling.fx_passes.passes import RewritePass, function_of
from profiling.fx_passes.regions import Graph, name_of_call

_INTERPOLATE = ("input", "size", "scale_factor", "mode", "align_corners", "recompute_scale_factor", "antialias")
#: Calls of which upsampling, and zeros around it, may consist; what they compute is tried on numbers.
_COPIES = frozenset(
    {"interpolate", "pad", "repeat_interleave", "expand", "expand_as", "repeat", "unsqueeze", "squeeze", "reshape"}
    | {"flatten", "unflatten", "contiguous", "clone", "to", "type", "type_as", "float", "double", "half", "bfloat16"}
)
#: Calls in them, at most.
_MOST_CALLS = 10


@dataclass(frozen=True)
class _Upsampling:
    """A tensor whose numbers a convolution reads `factors` times in each dim, with `before` zeros before them."""

    source: fx.Node
    factors: list[int]
    before: list[int]

    def sizes(self, dims: int) -> list[int]:
        """Return the size of the source in each dim; a sequence read as a picture has one row."""
        sizes = _shape(self.source)[2:]
        return [*[1] * (dims - len(sizes)), *sizes]


@dataclass(frozen=True, kw_only=True)
class FoldUpsampling(RewritePass):
    """Replace convolutions after nearest-neighbour upsampling, also written out, where that takes fewer products.

    A 1×1 convolution moves before the upsampling: the same numbers, from fewer. A larger one gets sums of its weights,
    added up in fp64 and rounded to the weight's dtype; infinite inputs may make results NaN that were not.
    """

    def rewrite(self, module: fx.GraphModule) -> int:
        """Replace each such convolution; count the reasons why others stay in `module.meta["left"]`."""
        graph, left, replaced = Graph(module), Counter[str](), 0
        for node in list(module.graph.nodes):
            args: Any = arguments(node, *CONVOLUTION_ARGUMENTS) if is_call(node, *CONVOLUTIONS) else {}
            infos = [node_info(each) for each in (node, args.get("input"), args.get("weight"))]
            if None in infos or len({len(info.shape) for info in infos if info is not None}) > 1:
                continue
            try:
                found = _upsampling_before(graph, node, args["input"])
                reason = None if found is None else _misfit(graph, args, found)
            except torch.OutOfMemoryError:
                found, reason = None, "too little memory to try what is before it on numbers"
            if reason is not None:
                left[reason] += 1
            elif found is not None:
                with module.graph.inserting_before(node):
                    new = _replacement(graph, node, args, found)
                new.meta = dict(node.meta)
                node.replace_all_uses_with(new)
                replaced += 1
        module.meta["left"] = left
        return replaced


@dataclass(frozen=True, kw_only=True)
class ReplaceInterpolation(RewritePass):
    """Replace bilinear and bicubic interpolation of pictures by a kernel; `module.meta["left"]` counts why some stay.

    Attributes:
        resize: computes it, as `models.kernels.resize.resize` does.
        tables: returns what it needs of the weights, as `models.kernels.resize.tables` does.
        misfit: returns why it does not take a tensor of a form, on a device, with such tables, or None.

    """

    resize: Callable[..., Tensor]
    tables: Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor, Tensor]]
    misfit: Callable[[Tensor, torch.device, Tensor, Tensor], str | None]

    def rewrite(self, module: fx.GraphModule) -> int:
        """Replace each interpolation that the kernel takes."""
        left, replaced = Counter[str](), 0
        for node in list(module.graph.nodes):
            args: Any = arguments(node, *_INTERPOLATE) if is_call(node, F.interpolate) else {"mode": None}
            info, out = node_info(args.get("input")), node_info(node)
            if args["mode"] not in ("bilinear", "bicubic") or info is None or out is None:
                continue
            weights = (_weights(args, dim, info.shape[2 + dim], out.shape[2 + dim]) for dim in range(2))
            first_row, rows, first_column, columns = self.tables(*weights)
            reason = self.misfit(info.zeros("meta"), info.device, rows, columns)
            if reason is None and is_written(args["input"]):
                reason = "the memory of its input is written to"
            if reason is not None:
                left[reason] += 1
                continue
            named = {"first_row": first_row, "rows": rows, "first_column": first_column, "columns": columns}
            with module.graph.inserting_before(node):
                given = [add_constant(module, name, value.to(info.device)) for name, value in named.items()]
                size = list(out.shape[2:])
                new = module.graph.call_function(function_of(self.resize), (args["input"], *given, size))
            new.meta = dict(node.meta)
            node.replace_all_uses_with(new)
            replaced += 1
        module.meta["left"] = left
        return replaced


def _weights(args: dict[str, Any], dim: int, inputs: int, results: int) -> Tensor:
    """Return the weights [results, inputs] of an interpolation in one dim of pictures: its results for unit vectors."""
    size, factors = args["size"], args["scale_factor"]
    options = {name: args[name] for name in ("mode", "align_corners", "recompute_scale_factor")}
    vectors = torch.eye(inputs)[None, :, None]  # one is the only row of a channel
    factor = None if factors is None else (factors[dim] if isinstance(factors, list | tuple) else factors)
    out: Any = F.interpolate(
        vectors,
        None if size is None else [1, results],
        None if factor is None else [1.0, float(factor)],
        **options,
        antialias=bool(args["antialias"]),
    )
    return out[0, :, 0].T


def _shape(node: Any) -> tuple[int, ...]:
    info: Any = node_info(node)
    return info.shape


def _upsampling_before(graph: Graph, conv: fx.Node, last: fx.Node) -> _Upsampling | None:
    """Return the longest chain of upsampling calls that ends in `last`, the input of `conv`; None if there is none."""
    found, source = None, last
    while name_of_call(source) in _COPIES and isinstance(source.args[0], fx.Node):
        source = source.args[0]
        region = _calls_between(graph, source, last)
        info = node_info(source)
        if not region or info is None or is_written(source) or not info.dtype.is_floating_point:
            continue
        if not all(_keeps(node, source, last) for node in region):
            continue
        if len(info.shape) > 2 and len(_shape(conv)) - len(info.shape) in (0, 1):
            found = tried(_upsampling_of, graph, source, region) or found
    return found


def _keeps(node: fx.Node, source: fx.Node, last: fx.Node) -> bool:
    """Return whether a call copies numbers unchanged, apart from a cast to the dtype of `last`."""
    copy, given, result = (info.dtype for info in map(node_info, (node, source, last)) if info is not None)
    return copy == result or torch.promote_types(copy, given) == copy


def _calls_between(graph: Graph, source: fx.Node, last: fx.Node) -> list[fx.Node] | None:
    """Return the calls that compute `last` from `source` and constants, in order, or None."""
    inside = set[fx.Node]()

    def admit(node: fx.Node) -> bool:
        if node is source or node in graph.constants or node in inside:
            return True
        is_copy = name_of_call(node) in _COPIES and node in graph.order  # others were inserted by this pass
        if not is_copy or is_written(node) or len(inside) == _MOST_CALLS:
            return False
        inside.add(node)
        return all(map(admit, node.all_input_nodes))

    return sorted(inside, key=graph.order.__getitem__) if admit(last) else None


def _upsampling_of(graph: Graph, source: fx.Node, region: list[fx.Node]) -> _Upsampling | None:
    """Return the factors by which a region upsamples `source`, or None if it computes anything else."""
    x = random_numbers(source, 1.0, 0.0).abs() + 1  # no zeros: those of the result are what the region adds
    result = graph.values(region, source, x)[region[-1]]
    x = x.unsqueeze(2) if result.dim() > x.dim() else x
    factors, before, pads = list[int](), list[int](), list[int]()
    for dim in range(2, x.dim()):
        filled = (result != 0).movedim(dim, 0).flatten(1).any(1).nonzero()
        if not len(filled):
            return None
        first, (factor, rest) = int(filled[0]), divmod(len(filled), x.shape[dim])
        if rest:
            return None
        x = x.repeat_interleave(factor, dim)
        factors.append(factor)
        before.append(first)
        pads = [first, result.shape[dim] - first - len(filled), *pads]
    is_same = math.prod(factors) > 1 and torch.equal(F.pad(x, pads), result)
    return _Upsampling(source, factors, before) if is_same else None


def _misfit(graph: Graph, args: dict[str, Any], found: _Upsampling) -> str | None:
    """Return why a convolution after upsampling stays, or None."""
    sizes = _shape(args["weight"])[2:]
    strides, dilations = (for_each_dim(args[name], len(sizes), 1) for name in ("stride", "dilation"))
    if {*strides, *dilations, args["groups"] or 1} != {1}:
        return "it has groups, or a stride or dilation of more than 1"
    if graph.constant(args["weight"]) is None or (args["bias"] and graph.constant(args["bias"]) is None):
        return "its weight or its bias is computed"
    if math.prod(sizes) == 1:
        upsampled = list(map(operator.mul, found.sizes(len(sizes)), found.factors))
        is_padded = any(zeros_before(args)) or list(_shape(args["input"])[2:]) != upsampled
        return "zeros are added before it" if is_padded else None
    if math.prod(map(_window, sizes, found.factors)) >= math.prod(sizes):
        return "before the upsampling it takes as many products"
    return None


def _window(size: int, factor: int) -> int:
    """Return the size of the kernel before upsampling: how many numbers a kernel of `size` reads copies of, at most."""
    return (factor + size - 2) // factor + 1


def _summed(weight: Tensor, factors: list[int]) -> Tensor:
    """Return the sums of a weight [outputs, inputs, *kernel] for each place: [*factors, outputs, inputs, *window].

    At place `r` between two numbers, element `t` of the kernel reads the number `(r + t) // factor`.
    """
    sums = weight.double()
    for factor in factors:
        size = sums.shape[2]
        place, element = (torch.arange(length, device=weight.device) for length in (factor, size))
        is_read = F.one_hot((place[:, None] + element) // factor, _window(size, factor))  # [place, element, number]
        sums = torch.tensordot(sums, is_read.to(sums), dims=([2], [1]))  # pyright: ignore[reportArgumentType]
    dims = len(factors)
    return sums.permute(*range(2, 2 + 2 * dims, 2), 0, 1, *range(3, 3 + 2 * dims, 2)).to(weight.dtype)


def _replacement(graph: Graph, node: fx.Node, args: dict[str, Any], found: _Upsampling) -> fx.Node:
    """Insert the convolution of `found.source`, and what puts its results in order; return the last node."""
    nodes, source, factors = graph.module.graph, found.source, found.factors
    given: Any = node_info(args["input"])
    out: Any = node_info(node)
    info: Any = node_info(source)
    weight: Any = graph.constant(args["weight"])
    bias = graph.constant(args["bias"])
    dims, outputs = len(factors), len(weight)
    last = CHANNELS_LAST.get(dims, torch.contiguous_format)
    if len(info.shape) < len(given.shape):
        source = nodes.call_method("unsqueeze", (source, 2))
    if info.dtype != given.dtype:
        source = nodes.call_method("to", (source, given.dtype))
    if last != torch.contiguous_format and given.zeros("meta").is_contiguous(memory_format=last):
        source = nodes.call_method("contiguous", (source,), {"memory_format": last})
    convolution: Any = node.target
    if weight[0, 0].numel() == 1:
        small = nodes.call_function(convolution, (source, args["weight"], args["bias"]))
        # "nearest" computes the index in fp32, whose rounding picks a wrong pixel for some factors, such as 41.
        return nodes.call_function(F.interpolate, (small, list(out.shape[2:])), {"mode": "nearest-exact"})
    pads, starts, counts = list[int](), list[int](), list[int]()
    zeros = [own + added for own, added in zip(zeros_before(args), found.before, strict=True)]
    sizes = zip(found.sizes(dims), factors, weight.shape[2:], zeros, out.shape[2:], strict=True)
    for size, factor, kernel, zero, results in sizes:  # result `i` is in the window at `(i - zero) // factor`
        window = _window(kernel, factor)
        pad = max(-(-zero // factor), (results - 1 - zero) // factor + window - size, 0)
        pads.append(pad)
        starts.append(factor * pad - zero)
        counts.append((size + 2 * pad - window + 1) * factor)
    summed = _summed(weight, factors).flatten(0, dims)
    if weight.is_contiguous(memory_format=last):
        summed = summed.contiguous(memory_format=last)
    repeated = None if bias is None else add_constant(graph.module, "bias", bias.repeat(math.prod(factors)))
    new = nodes.call_function(convolution, (source, add_constant(graph.module, "weight", summed), repeated, 1, pads))
    new = nodes.call_method("unflatten", (new, 1, (*factors, outputs)))
    placed = [each for dim in range(dims) for each in (dims + 2 + dim, dim + 1)]
    if last != torch.contiguous_format and out.zeros("meta").is_contiguous(memory_format=last):
        new = nodes.call_function(torch.permute, (new, (0, *placed, dims + 1)))
        new = nodes.call_function(torch.reshape, (new, (-1, *counts, outputs)))
        new = nodes.call_method("movedim", (new, -1, 1))
    else:
        last = torch.contiguous_format
        new = nodes.call_function(torch.permute, (new, (0, dims + 1, *placed)))
        new = nodes.call_function(torch.reshape, (new, (-1, outputs, *counts)))
    for dim, (start, results) in enumerate(zip(starts, out.shape[2:], strict=True)):
        new = nodes.call_method("narrow", (new, dim + 2, start, results))
    return nodes.call_method("contiguous", (new,), {"memory_format": last})
