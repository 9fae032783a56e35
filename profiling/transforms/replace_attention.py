"""Attention written out in matrix products and a softmax, replaced by `scaled_dot_product_attention`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.nn import functional as F

from profiling.transforms.attention_pattern import Attention, matched, unscaled
from profiling.transforms.facts import facts, mutated
from profiling.transforms.spelling import is_call, positional
from profiling.transforms.transform import Transform


@dataclass(frozen=True, kw_only=True)
class ReplaceAttention(Transform):
    """Replace `softmax(q @ kᵀ · scale + mask) @ v` of 3 or 4 dims, in its usual spellings.

    The scale may stand at the queries, the keys or the scores; the mask may be added, or fill with minus infinity; the
    softmax may be in a wider dtype. Left alone: attention whose weights are used elsewhere or dropped out, an added
    mask of another dtype than the queries', heads that broadcast, and graphs that write to memory.
    """

    def rewrite(self, module: fx.GraphModule) -> int:
        """Replace each attention, found from its last product."""
        if mutated(module.graph):
            return 0
        replaced = 0
        for node in list(module.graph.nodes):
            if (found := matched(node)) is not None:
                with module.graph.inserting_before(node):
                    node.replace_all_uses_with(_attention(module.graph, found))
                replaced += 1
        return replaced


def _attention(graph: fx.Graph, found: Attention) -> fx.Node:
    """Write the library's call; three dims get a fourth, since its fast kernels want batch and heads."""
    query, at_query = unscaled(found.query)
    transposed, at_transposed = unscaled(found.key_transposed)
    key, at_key = unscaled(_untransposed(transposed) or graph.call_function(torch.transpose, (transposed, -2, -1)))
    known = facts(found.query)
    flat = known is not None and len(known.shape) == 3
    heads = [graph.call_function(torch.unsqueeze, (x, 0)) if flat else x for x in (query, key, found.value)]
    options: dict[str, Any] = {"scale": found.scale * at_query * at_transposed * at_key}
    if found.mask is not None:
        options["attn_mask"] = graph.call_function(torch.logical_not, (found.mask,)) if found.fills else found.mask
    attended = graph.call_function(F.scaled_dot_product_attention, tuple(heads), options)
    return graph.call_function(torch.squeeze, (attended, 0)) if flat else attended


def _untransposed(node: fx.Node) -> fx.Node | None:
    """Return the node whose last two dims `node` swaps, or None where it does something else."""
    known = facts(node)
    given, dims = positional(node), len(known.shape) if known is not None else 0
    if is_call(node, torch.transpose) and len(given) == 3:
        return given[0] if {dim % dims for dim in given[1:]} == {dims - 2, dims - 1} else None
    if is_call(node, torch.permute):
        order = [dim % dims for dim in given[1]]
        return given[0] if order == [*range(dims - 2), dims - 1, dims - 2] else None
    return None
