"""Masks of attention that are constants and say what the kernel can be told in a word: causal, or nothing at all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from profiling.fx_passes.canonical import arguments, is_call, positional
from profiling.fx_passes.graph_facts import Facts, constant, facts, mutated
from profiling.fx_passes.passes import Transform

CASTS = ("to", "float", "double", "half", "bfloat16", "type", "type_as")


@dataclass(frozen=True)
class Attention:
    """`softmax(query @ keyᵀ · scale, masked) @ value`; `key_transposed` is the node of keyᵀ."""

    query: fx.Node
    key_transposed: fx.Node
    value: fx.Node
    scale: float
    mask: fx.Node | None
    fills: bool  # the mask is true where nothing is attended to; else it is added, or true where something is


def matched(last: fx.Node) -> Attention | None:
    """Return the attention whose output is the product `last`, or None."""
    if not is_call(last, torch.matmul):
        return None
    weights, value = _operands(last)
    softmax = _through_casts(_through_dropout(weights))
    if not is_call(softmax, F.softmax) or not _is_last_dim(softmax):
        return None
    masked = _through_casts(softmax.args[0])
    scores, mask, fills = _unmasked(masked)
    scores, scale = unscaled(_through_casts(scores))
    scores, product_scale = _product(_through_casts(scores))
    if scores is None or not all(_read_once(node) for node in (weights, softmax, masked, scores)):
        return None
    (query, key_transposed), scale = _operands(scores), scale * product_scale
    found = Attention(query, key_transposed, value, scale, mask, fills)
    return found if _fits(found, scores) else None


def unscaled(node: Any) -> tuple[Any, float]:
    """Return what is under multiplications and divisions by numbers, and their product."""
    scale = 1.0
    while is_call(node, torch.mul, torch.div) and len(node.args) == 2 and not node.kwargs:
        left, right = node.args
        if is_call(node, torch.mul) and isinstance(left, int | float):
            left, right = right, left
        if isinstance(right, bool) or not isinstance(right, int | float):
            break
        node, scale = left, scale * right if is_call(node, torch.mul) else scale / right
    return node, scale


def _read_once(node: Any) -> bool:
    return isinstance(node, fx.Node) and len(node.users) == 1


def _operands(product: fx.Node) -> tuple[Any, Any]:
    names = ("input", "batch1", "batch2") if is_call(product, torch.baddbmm) else ("input", "other")
    given = arguments(product, *names)
    return given[names[-2]], given[names[-1]]


def _through_dropout(node: Any) -> Any:
    while is_call(node, F.dropout, torch.dropout) and _read_once(node):
        given = arguments(node, "input", "p", "training" if node.target is F.dropout else "train")
        training = given.get("training", given.get("train"))
        if given["p"] != 0 and training in (True, None):
            break
        node = given["input"]
    return node


def _through_casts(node: Any) -> Any:
    while is_call(node, *CASTS) and _read_once(node) and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def _is_last_dim(softmax: fx.Node) -> bool:
    known = facts(softmax)
    return known is not None and softmax.kwargs.get("dim") in (-1, len(known.shape) - 1)


def _unmasked(node: Any) -> tuple[Any, fx.Node | None, bool]:
    """Return the scores under a mask, the mask, and whether it fills."""
    if is_call(node, torch.add) and len(node.args) == 2 and not node.kwargs:
        for scores, mask in (node.args, node.args[::-1]):
            if _product(_through_casts(unscaled(_through_casts(scores))[0]))[0] is not None:
                return (scores, mask, False) if isinstance(mask, fx.Node) else (None, None, False)
    if is_call(node, torch.masked_fill):
        given = arguments(node, "input", "mask", "value")
        return (given["input"], given["mask"], True) if given["value"] == -math.inf else (None, None, False)
    if is_call(node, torch.where) and len(node.args) == 3:
        condition, chosen, other = node.args
        if other == -math.inf:
            return chosen, condition, False
        return (other, condition, True) if chosen == -math.inf else (None, None, False)
    return node, None, False


def _product(node: Any) -> tuple[fx.Node | None, float]:
    """Return the product of queries and keys, and the factor that the call itself puts on it."""
    if is_call(node, torch.matmul):
        return node, 1.0
    if is_call(node, torch.baddbmm) and node.kwargs.get("beta") == 0:
        return node, float(node.kwargs.get("alpha", 1.0))
    return None, 1.0


def _fits(found: Attention, scores: fx.Node) -> bool:
    """Say whether the library's kernel computes the same for these shapes and dtypes."""
    query, key, value, product = (facts(node) for node in (found.query, found.key_transposed, found.value, scores))
    if query is None or key is None or value is None or product is None or len(query.shape) not in (3, 4):
        return False
    if not query.shape[:-2] == key.shape[:-2] == value.shape[:-2] or not query.dtype == key.dtype == value.dtype:
        return False
    return query.dtype.is_floating_point and (found.mask is None or _mask_fits(found, query, product))


def _mask_fits(found: Attention, query: Facts, scores: Facts) -> bool:
    mask = facts(found.mask)
    if mask is None or not 2 <= len(mask.shape) <= len(scores.shape):
        return False
    if any(size not in (1, whole) for size, whole in zip(mask.shape[::-1], scores.shape[::-1], strict=False)):
        return False  # the scores would be repeated for it
    return mask.dtype == torch.bool or (not found.fills and mask.dtype == query.dtype)


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
