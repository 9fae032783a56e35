"""In-place calls written as what they compute, where nothing looks at the memory that they overwrite.

A graph with writes in it can hardly be rewritten: a pass would have to follow every view. Most writes are there to save
memory alone (`nn.ReLU(inplace=True)`, a mask that is made, filled and cut), and are as well done out of place.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, fx

from profiling.transforms.facts import facts, family, mutates
from profiling.transforms.spelling import SPELLED

#: Fill a tensor with random numbers; without the underscore these are functions that mean something else.
_RANDOM = ("bernoulli_", "normal_", "uniform_", "random_", "exponential_", "geometric_", "cauchy_", "log_normal_")


def out_of_place(graph: fx.Graph) -> int:
    """Rewrite what can be, and return how many calls that were; the facts of the rewritten nodes are out of date."""
    order = {node: position for position, node in enumerate(graph.nodes)}
    kin: dict[int, list[fx.Node]] = defaultdict(list)
    for node in graph.nodes:
        for number in family(node):
            kin[number].append(node)
    rewritten = 0
    for node in graph.nodes:
        if len(mutates(node)) != 1 or not _is_private(node, kin[next(iter(mutates(node)))], order):
            continue
        if (call := _twin(node)) is not None:
            node.op, node.target, node.kwargs = call
            rewritten += 1
    return rewritten


def _is_private(node: fx.Node, family: list[fx.Node], order: dict[fx.Node, int]) -> bool:
    """Say whether only `node`, and what is made from its result, still reads the memory that it writes to."""
    before = [member for member in family if order[member] < order[node]]
    return all(
        member.op not in ("placeholder", "get_attr") and all(order[user] <= order[node] for user in member.users)
        for member in before
    )


def _twin(node: fx.Node) -> tuple[str, Any, Any] | None:
    """Return op, target and keyword arguments of the same call out of place, if there is one with the same result."""
    dtypes = {known.dtype for argument in node.all_input_nodes if (known := facts(argument))}
    if len(dtypes) != 1 or node.args[:1] != tuple(node.all_input_nodes[:1]):
        return None  # out of place, the result could be of another dtype
    if node.kwargs.get("inplace"):
        return node.op, node.target, {**node.kwargs, "inplace": False}
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if not name.endswith("_") or name.endswith("__") or name in _RANDOM:
        return None
    if hasattr(torch, name[:-1]):
        return "call_function", SPELLED.get(getattr(Tensor, name[:-1], None), getattr(torch, name[:-1])), node.kwargs
    return ("call_method", name[:-1], node.kwargs) if hasattr(Tensor, name[:-1]) else None
