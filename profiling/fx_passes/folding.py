"""Weight norm, folded into the weight: the norm of a constant is a constant."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_arg

from profiling.fx_passes.canonical import arguments, is_call
from profiling.fx_passes.graph_facts import Facts, add_constant, constant, facts, family, mutated, mutates
from profiling.fx_passes.passes import Transform


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


@dataclass(frozen=True, kw_only=True)
class FoldConstants(Transform):
    """Replace position ids, masks, embeddings of positions, casts and views of weights by their values.

    Random numbers, memory that is written to, and modules' state stay as they are. Counts the calls that go.
    """

    def rewrite(self, module: fx.GraphModule) -> int:
        """Replace the last constant of each chain; the rest of it is then unused."""
        values = _constant_values(module)
        calls = [node for node in values if node.op != "get_attr"]
        for node in calls:
            if isinstance(values[node], Tensor) and any(user not in values for user in node.users):
                folded = add_constant(module, node, "folded", values[node])
                node.replace_all_uses_with(folded, delete_user_cb=lambda user: user not in values)
        return len(calls)


def _constant_values(module: fx.GraphModule) -> dict[fx.Node, Any]:
    """Return the values of all nodes that no input has a part in, in the graph's order."""
    written = mutated(module.graph)
    values: dict[fx.Node, Any] = {}
    for node in module.graph.nodes:
        if not node.meta.get("families") or family(node) & written:
            continue
        if node.op == "get_attr":
            values[node] = reduce(getattr, str(node.target).split("."), module)
        elif node.op in ("call_function", "call_method") and all(given in values for given in node.all_input_nodes):
            value, random = _called(node, values)
            if not random:
                values[node] = value
    return values


def _called(node: fx.Node, values: dict[fx.Node, Any]) -> tuple[Any, bool]:
    """Return what the node's call gives, and whether it drew random numbers; the generators are put back."""
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


WEIGHT_NORM = torch._weight_norm  # pyright: ignore[reportPrivateImportUsage]


@dataclass(frozen=True, kw_only=True)
class FoldWeightNorm(Transform):
    """Compute `g · v / ‖v‖` once; of `torch.nn.utils.parametrizations.weight_norm` and of the older hook."""

    def rewrite(self, module: fx.GraphModule) -> int:
        """Replace each weight norm of constants."""
        replaced = 0
        for node in module.graph.find_nodes(op="call_function", target=WEIGHT_NORM):
            given = arguments(node, "v", "g", "dim")
            direction, gain = constant(module, given["v"]), constant(module, given["g"])
            if direction is None or gain is None:
                continue
            weight = WEIGHT_NORM(direction, gain, 0 if given["dim"] is None else given["dim"])
            node.replace_all_uses_with(add_constant(module, node, "weight", weight))
            replaced += 1
        return replaced
