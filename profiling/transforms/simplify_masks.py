"""Masks of attention that are constants and say what the kernel can be told in a word: causal, or nothing at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from profiling.transforms.constants import constant
from profiling.transforms.facts import facts
from profiling.transforms.spelling import arguments
from profiling.transforms.transform import Transform

ATTENTION = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


@dataclass(frozen=True, kw_only=True)
class SimplifyMasks(Transform):
    """Turn a mask that is exactly causal into `is_causal`, which flash attention takes; drop one that masks nothing.

    A number masks when it is minus infinity or the least of its dtype, whose exponential is 0 next to any score; every
    query of a causal mask attends to itself, so no row is without one.
    """

    def rewrite(self, module: fx.GraphModule) -> int:
        """Simplify each attention's mask that is a constant."""
        replaced = 0
        for node in module.graph.find_nodes(op="call_function", target=F.scaled_dot_product_attention):
            given = arguments(node, *ATTENTION)
            mask, query, key = constant(module, given["attn_mask"]), facts(given["query"]), facts(given["key"])
            if mask is None or query is None or key is None or given["is_causal"]:
                continue
            if (simpler := _simpler(mask, query.shape[-2], key.shape[-2])) is not None:
                kept = {name: given[name] for name in ATTENTION[4:] if given[name] is not None}
                node.args = tuple(given[name] for name in ATTENTION[:3])
                node.kwargs = {**kept, **simpler}
                replaced += 1
        return replaced


def _simpler(mask: Tensor, queries: int, keys: int) -> dict[str, Any] | None:
    """Return the arguments that say the same as `mask`, or None."""
    attended = mask if mask.dtype == torch.bool else mask == 0
    if mask.dtype != torch.bool and not bool((attended | (mask <= torch.finfo(mask.dtype).min)).all()):
        return None  # it moves the scores, too
    if bool(attended.all()):
        return {}
    causal = torch.ones(queries, keys, dtype=torch.bool, device=mask.device).tril()
    if queries == keys and bool((attended == causal).all()):
        return {"is_causal": True}
    return None
