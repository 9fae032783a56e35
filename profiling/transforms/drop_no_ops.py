"""Calls that give back what they were given: views of the same form, idle copies, dropout in eval mode."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import fx

from profiling.transforms.facts import Facts, facts, family, mutated, mutates
from profiling.transforms.spelling import is_call
from profiling.transforms.transform import Transform


@dataclass(frozen=True, kw_only=True)
class DropNoOps(Transform):
    """Let the users of each such call read its input.

    Some of what is dropped depends on layouts, which other passes change, so this one stands last in a list.
    """

    def rewrite(self, module: fx.GraphModule) -> int:
        """Drop what returns its own input, and copies that keep nothing apart."""
        idle = [node for node in module.graph.nodes if _is_no_op(node)] + _idle_copies(module.graph)
        for node in idle:
            node.replace_all_uses_with(node.all_input_nodes[0])
        return len(idle)


def _is_no_op(node: fx.Node) -> bool:
    """Say whether the node's result is its first argument: the same memory, in the same form, and not written to."""
    if node.op not in ("call_function", "call_method") or not node.all_input_nodes or mutates(node):
        return False
    made, given = facts(node), facts(node.all_input_nodes[0])
    return made is not None and made == given and not made.dtype.is_complex


def _idle_copies(graph: fx.Graph) -> list[fx.Node]:
    """Return the copies in the same form of memory that nobody writes to, unless callers see both ends."""
    written, outside = mutated(graph), set(_outside_memory(graph))
    joined: dict[int, int] = {}  # the copy's family, when it is dropped → the one it was copied from
    found = []
    for node in graph.nodes:
        made, given = _copied(node)
        if made is None or given is None or {made.family, given.family} & written:
            continue
        source = joined.get(given.family, given.family)
        if {made.family, source} <= outside:
            continue
        joined[made.family] = source
        if made.family in outside:
            outside.add(source)
        found.append(node)
    return found


def _copied(node: fx.Node) -> tuple[Facts | None, Facts | None]:
    """Return the facts of a copy and of what it copies, where they differ in nothing but the memory."""
    if not is_call(node, torch.clone, "contiguous", "to"):
        return None, None
    made, given = facts(node), facts(node.all_input_nodes[0])
    if made is None or given is None or made.family == given.family:
        return None, None
    return (made, given) if made == replace(given, family=made.family, offset=made.offset) else (None, None)


def _outside_memory(graph: fx.Graph) -> frozenset[int]:
    """Return the families that callers see: inputs, constants, outputs. A copy from one to another keeps them apart."""
    (output,) = graph.find_nodes(op="output")
    ends = [node for node in graph.nodes if node.op in ("placeholder", "get_attr")] + list(output.all_input_nodes)
    return frozenset().union(*(family(node) for node in ends))
