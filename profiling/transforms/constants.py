"""Tensors that a graph holds: how a pass reads one and adds one."""

from __future__ import annotations

from functools import reduce
from typing import Any

from torch import Tensor, fx

from profiling.transforms.facts import facts, mutated


def constant(module: fx.GraphModule, node: Any) -> Tensor | None:
    """Return the tensor that a `get_attr` node stands for, None for other nodes and where the graph writes to it."""
    if not isinstance(node, fx.Node) or node.op != "get_attr":
        return None
    known = facts(node)
    if known is None or known.family in mutated(module.graph):
        return None
    value = reduce(getattr, str(node.target).split("."), module)
    return value if isinstance(value, Tensor) else None


def add_constant(module: fx.GraphModule, before: fx.Node, name: str, value: Tensor) -> fx.Node:
    """Give the module a tensor under a free name like `name`, and return a node for it in front of `before`."""
    number = 0
    while hasattr(module, f"_{name}_{number}"):
        number += 1
    module.register_buffer(f"_{name}_{number}", value.detach(), persistent=False)
    with module.graph.inserting_before(before):
        return module.graph.get_attr(f"_{name}_{number}")
