"""What `forward` makes anew at each call although no input has a part in it, computed once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_arg

from profiling.transforms.constants import add_constant
from profiling.transforms.facts import family, mutated
from profiling.transforms.transform import Transform


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
