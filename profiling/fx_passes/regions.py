"""Finds the part of a graph that computes one function of one tensor, and computes it alone.

A norm or an activation is written in many ways: a module, a function, or five lines of arithmetic. A pass that knows
the function and not the way it is written takes a region with one input and one output, calls it on numbers of its
own, and compares. The regions grow from a first call towards the graph's output.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_aggregate, map_arg

from profiling.fx_passes.nodes import families, is_written, node_info, written_by

#: Calls that cost more than reading their input: no part of a norm or an activation.
_HEAVY = frozenset(
    {"linear", "matmul", "addmm", "einsum", "bmm", "baddbmm", "scaled_dot_product_attention", "interpolate", "pad"}
    | {f"conv{transposed}{dims}d" for transposed in ("", "_transpose") for dims in (1, 2, 3)}
)
_CASTS = frozenset({"float", "half", "bfloat16", "double"})


def name_of_call(node: Any) -> str:
    """Return the name of the function or method that a node calls; empty for other nodes."""
    if not isinstance(node, fx.Node) or node.op not in ("call_function", "call_method"):
        return ""
    return str(getattr(node.target, "__name__", node.target))


def _is_heavy(node: fx.Node) -> bool:
    """Return whether a call cannot belong to a norm or an activation: a product, or a kernel from an earlier pass."""
    is_torch = not isinstance(node.target, FunctionType) or node.target.__module__.startswith("torch.")
    return name_of_call(node) in _HEAVY or not is_torch


@dataclass(frozen=True)
class Graph:
    """A module's graph, with what its regions need to know."""

    module: fx.GraphModule
    order: dict[fx.Node, int] = field(default_factory=dict)
    constants: set[fx.Node] = field(default_factory=set)  # nodes that depend on no input

    def __post_init__(self) -> None:
        for place, node in enumerate(self.module.graph.nodes):
            self.order[node] = place
            if is_written(node) or node.meta.get("random") or not families(node):
                continue
            is_call = name_of_call(node) and all(each in self.constants for each in node.all_input_nodes)
            if node.op == "get_attr" or is_call:
                self.constants.add(node)

    def constant(self, node: Any) -> Tensor | None:
        """Return the value of a node that depends on no input; None for others."""
        if node not in self.constants:
            return None
        value = self._values([node])[node]
        return value if isinstance(value, Tensor) else None

    def regions(self, source: fx.Node, first: fx.Node, limit: int) -> Iterator[list[fx.Node]]:
        """Yield the closed regions of at most `limit` calls that contain `first`, from the smallest on, in order.

        They read `source` and constants, and only their last node is read outside.
        """
        inside: set[fx.Node] = set()

        def admit(node: fx.Node) -> bool:
            if node is source or node in self.constants or node in inside:
                return True
            is_late = self.order.get(node, 0) > self.order[source]
            if not is_late or not name_of_call(node) or _is_heavy(node) or node.meta.get("random"):
                return False
            inside.add(node)
            return len(inside) <= limit and all(map(admit, node.all_input_nodes))

        while admit(first):
            outside = {node: [user for user in node.users if user not in inside] for node in inside}
            exits = [node for node, users in outside.items() if users]
            if len(exits) == 1 and self._is_private(inside):
                yield sorted(inside, key=self.order.__getitem__)
            readers = [user for users in outside.values() for user in users]
            if not readers:  # dead code, which stays where it writes to memory
                return
            first = min(readers, key=self.order.__getitem__)

    def _is_private(self, inside: set[fx.Node]) -> bool:
        """Return whether a region alone reads what it writes to, and alone writes to what it reads."""
        written = frozenset().union(*map(written_by, inside))
        readers = {node for node in self.order if families(node) & written} if written else set()
        return readers <= inside and not any(is_written(node) for node in inside - readers)

    def values(
        self, region: list[fx.Node], source: fx.Node, x: Tensor, keep: Collection[fx.Node] = ()
    ) -> dict[fx.Node, Any]:
        """Return the values of the last node of a region, and of those in `keep`, where `source` is `x`.

        All numbers have the dtype of `x`. Casts inside are ignored, so that the result is that of the function and not
        of its rounding. Other values are freed after their last reader: on large pictures they would be gigabytes.
        """
        last_reader = {node: reader for reader in region for node in reader.all_input_nodes}
        values: dict[fx.Node, Any] = {source: x}
        for node in region:
            values = self._values([node], values, x.dtype)
            for read in node.all_input_nodes:
                if last_reader[read] is node and read not in keep:
                    del values[read]
        return values

    def _values(
        self, nodes: list[fx.Node], given: dict[fx.Node, Any] | None = None, dtype: torch.dtype | None = None
    ) -> dict[fx.Node, Any]:
        values = dict(given or {})

        def cast(value: Any) -> Any:
            return value.to(dtype) if dtype and isinstance(value, Tensor) and value.is_floating_point() else value

        def argument(value: Any) -> Any:
            return dtype if dtype and isinstance(value, torch.dtype) and value.is_floating_point else value

        def of(node: fx.Node) -> Any:
            if node not in values:
                values[node] = cast(
                    attrgetter(str(node.target))(self.module) if node.op == "get_attr" else called(node)
                )
            return values[node]

        def called(node: fx.Node) -> Any:
            kwargs = {name: value for name, value in node.kwargs.items() if not (dtype and name == "out")}
            args, kwargs = map_aggregate(map_arg((node.args, kwargs), of), argument)
            if callable(node.target):
                return node.target(*args, **kwargs)
            return args[0] if dtype and node.target in _CASTS else getattr(args[0], node.target)(*args[1:], **kwargs)

        for node in nodes:
            of(node)
        return values


def same_form(one: Any, other: Any) -> bool:
    """Return whether two nodes hold tensors of one shape and dtype, on one device."""
    first, second = node_info(one), node_info(other)
    if first is None or second is None:
        return False
    return (first.shape, first.dtype, first.device) == (second.shape, second.dtype, second.device)
