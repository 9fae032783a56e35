"""Passes that compute once what does not depend on the inputs, and drop calls that change nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_arg

from profiling.fx_passes.nodes import (
    NodeInfo,
    add_constant,
    arguments,
    attribute,
    constant,
    families,
    is_call,
    node_info,
    written_by,
    written_in,
)
from profiling.fx_passes.passes import RewritePass

_WEIGHT_NORM = torch._weight_norm  # pyright: ignore[reportPrivateImportUsage]


@dataclass(frozen=True, kw_only=True)
class FoldWeightNorm(RewritePass):
    """Compute weight norm, `g · v / ‖v‖`, once: that of `torch.nn.utils.parametrizations` and of the older hook."""

    def rewrite(self, module: fx.GraphModule) -> int:
        """Replace each weight norm of constants."""
        replaced = 0
        for node in module.graph.find_nodes(op="call_function", target=_WEIGHT_NORM):
            args = arguments(node, "v", "g", "dim")
            direction, gain = constant(module, args["v"]), constant(module, args["g"])
            if direction is None or gain is None:
                continue
            weight = _WEIGHT_NORM(direction, gain, 0 if args["dim"] is None else args["dim"])
            node.replace_all_uses_with(add_constant(module, node, "weight", weight))
            replaced += 1
        return replaced


@dataclass(frozen=True, kw_only=True)
class FoldConstants(RewritePass):
    """Replace position ids, masks, embeddings of positions, casts and views of weights by their values.

    Random numbers, memory that is written to and the module's state stay as they are. Counts the calls that are
    removed.
    """

    def rewrite(self, module: fx.GraphModule) -> int:
        """Replace the last constant of each chain; the calls before it are then unused."""
        values = _constant_values(module)
        calls = [node for node in values if node.op != "get_attr"]
        for node in calls:
            if isinstance(values[node], Tensor) and any(user not in values for user in node.users):
                folded = add_constant(module, node, "folded", values[node])
                node.replace_all_uses_with(folded, delete_user_cb=lambda user: user not in values)
        return len(calls)


def _constant_values(module: fx.GraphModule) -> dict[fx.Node, Any]:
    """Return the values of all nodes that do not depend on an input, in the graph's order."""
    written = written_in(module.graph)
    values: dict[fx.Node, Any] = {}
    for node in module.graph.nodes:
        if not node.meta.get("families") or families(node) & written:
            continue
        if node.op == "get_attr":
            values[node] = attribute(module, node)
        elif node.op in ("call_function", "call_method") and all(arg in values for arg in node.all_input_nodes):
            value, random = _evaluate(node, values)
            if not random:
                values[node] = value
    return values


def _evaluate(node: fx.Node, values: dict[fx.Node, Any]) -> tuple[Any, bool]:
    """Return the result of the node's call, and whether it drew random numbers; restores the generators."""
    args, kwargs = map_arg(node.args, values.__getitem__), map_arg(node.kwargs, values.__getitem__)
    before = _generator_states()
    if node.op == "call_method":
        value = getattr(args[0], node.target)(*args[1:], **kwargs)  # pyright: ignore
    else:
        value = node.target(*args, **kwargs)  # pyright: ignore
    after = _generator_states()
    random = any(not torch.equal(old, new) for old, new in zip(before, after, strict=True))
    if random:
        torch.set_rng_state(before[0])
        if len(before) > 1:
            torch.cuda.set_rng_state(before[1])
    return value, random


def _generator_states() -> list[Tensor]:
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else [])]


@dataclass(frozen=True, kw_only=True)
class DropNoOps(RewritePass):
    """Drop calls that return their own input, and copies of memory that nothing writes to.

    What is a copy depends on layouts, which other passes change, so this pass belongs last in the list.
    """

    def rewrite(self, module: fx.GraphModule) -> int:
        """Let the users of each such call read its input."""
        no_ops = [node for node in module.graph.nodes if _returns_its_input(node)] + _needless_copies(module.graph)
        for node in no_ops:
            node.replace_all_uses_with(node.all_input_nodes[0])
        return len(no_ops)


def _returns_its_input(node: fx.Node) -> bool:
    """Return whether the result is the first argument: the same memory in the same form, and not written to."""
    if node.op not in ("call_function", "call_method") or not node.all_input_nodes or written_by(node):
        return False
    result, source = node_info(node), node_info(node.all_input_nodes[0])
    return result is not None and result == source and not result.dtype.is_complex


def _needless_copies(graph: fx.Graph) -> list[fx.Node]:
    """Return copies, in the same form, of memory that nothing writes to, unless callers see both ends."""
    written, visible = written_in(graph), set(_visible_families(graph))
    source_of: dict[int, int] = {}  # family of a dropped copy → family that it was copied from
    copies = []
    for node in graph.nodes:
        result, copied = _copy(node)
        if result is None or copied is None or {result.family, copied.family} & written:
            continue
        source = source_of.get(copied.family, copied.family)
        if {result.family, source} <= visible:
            continue
        source_of[result.family] = source
        if result.family in visible:
            visible.add(source)
        copies.append(node)
    return copies


def _copy(node: fx.Node) -> tuple[NodeInfo | None, NodeInfo | None]:
    """Return the info of a copy and of what it copies, if they differ in their memory only."""
    if not is_call(node, torch.clone, "contiguous", "to"):
        return None, None
    result, source = node_info(node), node_info(node.all_input_nodes[0])
    if result is None or source is None or result.family == source.family:
        return None, None
    same_form = result == replace(source, family=result.family, offset=result.offset)
    return (result, source) if same_form else (None, None)


def _visible_families(graph: fx.Graph) -> frozenset[int]:
    """Return the families that callers see: inputs, constants and outputs. A copy between two of them must stay."""
    (output,) = graph.find_nodes(op="output")
    ends = [node for node in graph.nodes if node.op in ("placeholder", "get_attr")] + list(output.all_input_nodes)
    return frozenset().union(*(families(node) for node in ends))
