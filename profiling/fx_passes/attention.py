"""Passes that replace attention in plain operations by the library's kernel, and simplify its masks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from profiling.fx_passes.nodes import (
    NodeInfo,
    arguments,
    constant,
    is_call,
    node_info,
    unscaled,
    written_in,
)
from profiling.fx_passes.passes import RewritePass

_CASTS = ("to", "float", "double", "half", "bfloat16", "type", "type_as")


@dataclass(frozen=True, kw_only=True)
class ReplaceAttention(RewritePass):
    """Replace `softmax(q @ kᵀ · scale + mask) @ v` of 3 or 4 dims by `F.scaled_dot_product_attention`.

    The scale may multiply the queries, the keys or the scores; the mask may be added, or fill with minus infinity; the
    softmax may be in a wider dtype. Unchanged are attention whose weights are used elsewhere or dropped out, an added
    mask of another dtype than the queries', heads that broadcast, and graphs that write to memory.
    """

    def rewrite(self, module: fx.GraphModule) -> int:
        """Replace each attention, recognised from its last product."""
        if written_in(module.graph):
            return 0
        replaced = 0
        for node in list(module.graph.nodes):
            if (attention := _matched(node)) is not None:
                with module.graph.inserting_before(node):
                    node.replace_all_uses_with(_library_call(module.graph, attention))
                replaced += 1
        return replaced


@dataclass(frozen=True)
class _Attention:
    """`softmax(query @ keyᵀ · scale, masked) @ value`; `key_transposed` is the node of keyᵀ."""

    query: fx.Node
    key_transposed: fx.Node
    value: fx.Node
    scale: float
    mask: fx.Node | None
    fills: bool  # True: the mask is true where masked. False: it is added, or is true where attended to


def _matched(last: fx.Node) -> _Attention | None:
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
    attention = _Attention(query, key_transposed, value, scale, mask, fills)
    return attention if _is_supported(attention, scores) else None


def _read_once(node: Any) -> bool:
    return isinstance(node, fx.Node) and len(node.users) == 1


def _operands(product: fx.Node) -> tuple[Any, Any]:
    names = ("input", "batch1", "batch2") if is_call(product, torch.baddbmm) else ("input", "other")
    args = arguments(product, *names)
    return args[names[-2]], args[names[-1]]


def _through_dropout(node: Any) -> Any:
    while is_call(node, F.dropout, torch.dropout) and _read_once(node):
        args = arguments(node, "input", "p", "training" if node.target is F.dropout else "train")
        training = args.get("training", args.get("train"))
        if args["p"] != 0 and training in (True, None):
            break
        node = args["input"]
    return node


def _through_casts(node: Any) -> Any:
    while is_call(node, *_CASTS) and _read_once(node) and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def _is_last_dim(softmax: fx.Node) -> bool:
    info = node_info(softmax)
    return info is not None and softmax.kwargs.get("dim") in (-1, len(info.shape) - 1)


def _unmasked(node: Any) -> tuple[Any, fx.Node | None, bool]:
    """Return the scores under a mask, the mask, and whether it fills."""
    if is_call(node, torch.add) and len(node.args) == 2 and not node.kwargs:
        for scores, mask in (node.args, node.args[::-1]):
            if _product(_through_casts(unscaled(_through_casts(scores))[0]))[0] is not None:
                return (scores, mask, False) if isinstance(mask, fx.Node) else (None, None, False)
    if is_call(node, torch.masked_fill):
        args = arguments(node, "input", "mask", "value")
        return (args["input"], args["mask"], True) if args["value"] == -math.inf else (None, None, False)
    if is_call(node, torch.where) and len(node.args) == 3:
        condition, chosen, other = node.args
        if other == -math.inf:
            return chosen, condition, False
        return (other, condition, True) if chosen == -math.inf else (None, None, False)
    return node, None, False


def _product(node: Any) -> tuple[fx.Node | None, float]:
    """Return the product of queries and keys, and the factor that the call itself applies."""
    if is_call(node, torch.matmul):
        return node, 1.0
    if is_call(node, torch.baddbmm) and node.kwargs.get("beta") == 0:
        return node, float(node.kwargs.get("alpha", 1.0))
    return None, 1.0


def _is_supported(attention: _Attention, scores: fx.Node) -> bool:
    """Return whether the library's kernel computes the same for these shapes and dtypes."""
    nodes = (attention.query, attention.key_transposed, attention.value, scores)
    query, key, value, product = (node_info(node) for node in nodes)
    if query is None or key is None or value is None or product is None or len(query.shape) not in (3, 4):
        return False
    if not query.shape[:-2] == key.shape[:-2] == value.shape[:-2] or not query.dtype == key.dtype == value.dtype:
        return False
    return query.dtype.is_floating_point and (attention.mask is None or _mask_fits(attention, query, product))


def _mask_fits(attention: _Attention, query: NodeInfo, scores: NodeInfo) -> bool:
    mask = node_info(attention.mask)
    if mask is None or not 2 <= len(mask.shape) <= len(scores.shape):
        return False
    if any(size not in (1, whole) for size, whole in zip(mask.shape[::-1], scores.shape[::-1], strict=False)):
        return False  # the scores would be repeated for it
    return mask.dtype == torch.bool or (not attention.fills and mask.dtype == query.dtype)


def _library_call(graph: fx.Graph, attention: _Attention) -> fx.Node:
    """Create the library's call; 3 dims get a fourth, since its fast kernels need batch and heads."""
    query, at_query = unscaled(attention.query)
    transposed, at_transposed = unscaled(attention.key_transposed)
    key, at_key = unscaled(_untransposed(transposed) or graph.call_function(torch.transpose, (transposed, -2, -1)))
    info = node_info(attention.query)
    flat = info is not None and len(info.shape) == 3
    heads = [graph.call_function(torch.unsqueeze, (x, 0)) if flat else x for x in (query, key, attention.value)]
    options: dict[str, Any] = {"scale": attention.scale * at_query * at_transposed * at_key}
    if attention.mask is not None:
        mask = attention.mask
        options["attn_mask"] = graph.call_function(torch.logical_not, (mask,)) if attention.fills else mask
    attended = graph.call_function(F.scaled_dot_product_attention, tuple(heads), options)
    return graph.call_function(torch.squeeze, (attended, 0)) if flat else attended


def _untransposed(node: fx.Node) -> fx.Node | None:
    """Return the node whose last two dims `node` swaps, or None where it does something else."""
    info = node_info(node)
    args: tuple[Any, ...] = node.args
    dims = len(info.shape) if info is not None else 0
    if is_call(node, torch.transpose) and len(args) == 3:
        return args[0] if {dim % dims for dim in args[1:]} == {dims - 2, dims - 1} else None
    if is_call(node, torch.permute):
        order = [dim % dims for dim in args[1]]
        return args[0] if order == [*range(dims - 2), dims - 1, dims - 2] else None
    return None


_SDPA_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


@dataclass(frozen=True, kw_only=True)
class SimplifyMasks(RewritePass):
    """Turn a constant mask that is exactly causal into `is_causal`, for flash attention; drop one that masks nothing.

    A number masks if it is minus infinity or the least of its dtype, whose exponential is 0 next to any score. Every
    query of a causal mask attends to itself, so no row is masked throughout.
    """

    def rewrite(self, module: fx.GraphModule) -> int:
        """Simplify the mask of each attention where it is a constant."""
        replaced = 0
        for node in module.graph.find_nodes(op="call_function", target=F.scaled_dot_product_attention):
            args = arguments(node, *_SDPA_ARGUMENTS)
            mask, query, key = constant(module, args["attn_mask"]), node_info(args["query"]), node_info(args["key"])
            if mask is None or query is None or key is None or args["is_causal"]:
                continue
            if (options := _simplified(mask, query.shape[-2], key.shape[-2])) is not None:
                kept = {name: args[name] for name in _SDPA_ARGUMENTS[4:] if args[name] is not None}
                node.args = tuple(args[name] for name in _SDPA_ARGUMENTS[:3])
                node.kwargs = {**kept, **options}
                replaced += 1
        return replaced


def _simplified(mask: Tensor, queries: int, keys: int) -> dict[str, Any] | None:
    """Return the arguments that mean the same as `mask`, or None."""
    attended = mask if mask.dtype == torch.bool else mask == 0
    if mask.dtype != torch.bool and not bool((attended | (mask <= torch.finfo(mask.dtype).min)).all()):
        return None  # it also shifts scores
    if bool(attended.all()):
        return {}
    causal = torch.ones(queries, keys, dtype=torch.bool, device=mask.device).tril()
    if queries == keys and bool((attended == causal).all()):
        return {"is_causal": True}
    return None
