"""Passes that compute once what does not depend on the inputs, and drop calls that change nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_arg

from profiling.fx_passes.nodes import add_constant, families, is_call, is_written, node_info, returns_its_input
from profiling.fx_passes.passes import RewritePass


@dataclass(frozen=True, kw_only=True)
class FoldWeightNorm(RewritePass):
    """Compute weight norm, `g · v / ‖v‖`, once: that of `torch.nn.utils.parametrizations` and of the older hook."""

    def rewrite(self, module: fx.GraphModule) -> int:
        """Replace each weight norm of constants."""
        weight_norm = torch._weight_norm  # pyright: ignore[reportPrivateImportUsage]
        return _fold(module, lambda node: is_call(node, weight_norm))


@dataclass(frozen=True, kw_only=True)
class FoldConstants(RewritePass):
    """Replace position ids, masks, embeddings of positions, casts and views of weights by their values.

    Random numbers, memory that is written to and the module's state stay as they are; so does a new tensor that the
    graph returns, since its caller may write to it. Counts the calls that are removed.
    """

    def rewrite(self, module: fx.GraphModule) -> int:
        """Replace the last constant of each chain; the calls before it are then unused."""
        return _fold(module, lambda node: node.op in ("call_function", "call_method"))


def _fold(module: fx.GraphModule, is_folded: Callable[[fx.Node], bool]) -> int:
    """Replace the calls for which `is_folded` holds, and which do not depend on an input; return their number."""
    graph, interpreter = module.graph, fx.Interpreter(module)
    fresh = _families_of(graph, "output") - _families_of(graph, "get_attr")
    values: dict[fx.Node, Any] = {}
    calls = []
    for node in graph.nodes:
        if not families(node) or is_written(node) or families(node) & fresh or node.meta["random"]:
            continue
        if node.op != "get_attr":
            if not is_folded(node) or not all(arg in values for arg in node.all_input_nodes):
                continue
            calls.append(node)
        args, kwargs = map_arg(node.args, values.__getitem__), map_arg(node.kwargs, values.__getitem__)
        values[node] = getattr(interpreter, node.op)(node.target, args, kwargs)
    for node in calls:
        if isinstance(values[node], Tensor) and any(user not in values for user in node.users):
            with graph.inserting_before(node):
                folded = add_constant(module, "folded", values[node])
            node.replace_all_uses_with(folded, delete_user_cb=lambda user: user not in values)
    return len(calls)


def _families_of(graph: fx.Graph, *ops: str) -> frozenset[int]:
    return frozenset().union(*(families(node) for node in graph.nodes if node.op in ops))


@dataclass(frozen=True, kw_only=True)
class DropNoOps(RewritePass):
    """Drop calls that return their own input, and copies of memory that nothing writes to.

    What is a copy depends on layouts, which other passes change, so this pass belongs last in the list.
    """

    def rewrite(self, module: fx.GraphModule) -> int:
        """Let the users of each such call read its input."""
        returned = _families_of(module.graph, "output")  # a copy that callers get is theirs
        no_ops = [
            node
            for node in module.graph.nodes
            if returns_its_input(node) or (_is_needless_copy(node) and not families(node) & returned)
        ]
        for node in no_ops:
            node.replace_all_uses_with(node.all_input_nodes[0])
        return len(no_ops)


def _is_needless_copy(node: fx.Node) -> bool:
    """Return whether a call copies memory that nothing writes to, in the same form."""
    if not is_call(node, torch.clone, "contiguous", "to") or is_written(node.all_input_nodes[0]):
        return False
    result, source = node_info(node), node_info(node.all_input_nodes[0])
    if result is None or source is None:
        return False
    return result == replace(source, family=result.family, offset=result.offset)
