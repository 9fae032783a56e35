"""Passes that replace attention in plain operations by the library's kernel, and simplify its masks."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from profiling.fx_passes.nodes import (
    NodeInfo,
    arguments,
    constant,
    is_call,
    is_read_once,
    is_written,
    node_info,
    operands,
    returns_its_input,
    unscaled,
)
from profiling.fx_passes.passes import RewritePass

_CASTS = ("to", "float", "double", "half", "bfloat16", "type", "type_as")

#: What a mask does: it is added to the scores, or is true where they are hidden, or where they are attended to.
_MaskKind = Literal["added", "hidden", "attended"]


@dataclass(frozen=True, kw_only=True)
class ReplaceAttention(RewritePass):
    """Replace `softmax(q @ kᵀ · scale + mask) @ v` of 3 or 4 dims by `F.scaled_dot_product_attention`.

    The scale may multiply the queries, the keys or the scores; the mask may be added, or fill with minus infinity; the
    softmax may be in a wider dtype. Unchanged are attention whose weights are used elsewhere or dropped out, scales
    that are not positive, an added mask of another dtype than the queries', heads that broadcast, and memory that is
    written to. A query with all keys hidden by minus infinity gets 0, where plain operations give NaN.
    """

    def replacement(self, module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
        """Return the call of the library for an attention, recognised from its last product."""
        output = node_info(node)
        if output is None or not is_call(node, torch.matmul):
            return None
        weights, value = _factors(node)
        softmax = _below_casts(weights, output.dtype)
        if not is_call(softmax, F.softmax) or not _is_wide_over_keys(softmax, output.dtype):
            return None
        masked = _below_casts(softmax.args[0], output.dtype)
        scores, mask, mask_kind = _unmasked(masked, output.dtype)
        product, scale = _scaled_product(scores, output.dtype)
        if product is None or not all(is_read_once(each) for each in (weights, softmax, masked, product)):
            return None
        (query, at_query), (keys_across, at_keys) = map(unscaled, _factors(product))
        scale *= at_query * at_keys
        heads = (query, keys_across, value)
        if scale <= 0 or not _are_heads(*heads) or any(map(is_written, heads)):
            return None
        if mask is not None and not _mask_fits(mask, mask_kind, node_info(query), node_info(product)):
            return None
        if mask is not None and mask_kind == "hidden":
            mask = module.graph.call_function(torch.logical_not, (mask,))
        return _library_call(module.graph, heads, scale, mask)


def _factors(product: fx.Node) -> tuple[Any, Any]:
    names = ("input", "batch1", "batch2") if is_call(product, torch.baddbmm) else ("input", "other")
    args = arguments(product, *names)
    return args[names[-2]], args[names[-1]]


def _below_casts(node: Any, dtype: torch.dtype) -> Any:
    """Return the node below dropout in eval mode and casts to `dtype` or wider; others round (to integers, 8 bits)."""
    while is_read_once(node) and (returns_its_input(node) or (is_call(node, *_CASTS) and _is_wide(node, dtype))):
        node = node.all_input_nodes[0]
    return node


def _is_wide(node: fx.Node, dtype: torch.dtype) -> bool:
    info = node_info(node)
    return info is not None and info.dtype in (dtype, torch.float32, torch.float64)


def _is_wide_over_keys(softmax: fx.Node, dtype: torch.dtype) -> bool:
    info = node_info(softmax)
    return info is not None and softmax.kwargs["dim"] in (-1, len(info.shape) - 1) and _is_wide(softmax, dtype)


def _unmasked(node: Any, dtype: torch.dtype) -> tuple[Any, Any, _MaskKind]:
    """Return the scores under a mask, the mask, and its kind; no mask where none is found."""
    for scores, mask in operands(node, torch.add):
        if _scaled_product(scores, dtype)[0] is not None:
            return scores, mask, "added"
    if is_call(node, torch.masked_fill):
        args = arguments(node, "input", "mask", "value")
        if args["value"] == -math.inf:
            return args["input"], args["mask"], "hidden"
    if is_call(node, torch.where) and len(node.args) == 3:
        condition, chosen, other = node.args
        if other == -math.inf:
            return chosen, condition, "attended"
        if chosen == -math.inf:
            return other, condition, "hidden"
    return node, None, "added"


def _scaled_product(scores: Any, dtype: torch.dtype) -> tuple[fx.Node | None, float]:
    """Return the product of queries and keys in the scores, and the factor on it."""
    below, scale = unscaled(_below_casts(scores, dtype))
    product = _below_casts(below, dtype)
    if is_call(product, torch.matmul):
        return product, scale
    if is_call(product, torch.baddbmm) and product.kwargs.get("beta") == 0:
        return product, scale * float(product.kwargs.get("alpha", 1.0))
    return None, scale


def _are_heads(*nodes: fx.Node) -> bool:
    """Return whether the library takes these queries, keys and values: of one dtype and device, not broadcast."""
    infos = [info for node in nodes if (info := node_info(node)) is not None]
    if len(infos) < len(nodes) or len(infos[0].shape) not in (3, 4) or not infos[0].dtype.is_floating_point:
        return False
    return len({(info.shape[:-2], info.dtype, info.device) for info in infos}) == 1


def _mask_fits(mask: Any, kind: _MaskKind, query: NodeInfo | None, scores: NodeInfo | None) -> bool:
    """Return whether the library takes a mask as it is; not one for which the scores would be repeated."""
    info = node_info(mask)
    if info is None or query is None or scores is None or is_written(mask):
        return False
    sizes = zip(info.shape[::-1], scores.shape[::-1], strict=False)
    is_small = 2 <= len(info.shape) <= len(scores.shape) and all(size in (1, whole) for size, whole in sizes)
    return is_small and info.dtype == (query.dtype if kind == "added" else torch.bool)


def _library_call(graph: fx.Graph, heads: tuple[fx.Node, ...], scale: float, mask: fx.Node | None) -> fx.Node:
    """Create the library's call; 3 dims get a fourth, since its fast kernels need batch and heads."""
    query, keys_across, value = heads
    key, at_key = unscaled(_transposed(graph, keys_across))
    options: dict[str, Any] = {"scale": scale * at_key} | ({} if mask is None else {"attn_mask": mask})
    info = node_info(query)
    if info is None or len(info.shape) == 4:
        return graph.call_function(F.scaled_dot_product_attention, (query, key, value), options)
    flat = tuple(graph.call_function(torch.unsqueeze, (each, 0)) for each in (query, key, value))
    return graph.call_function(torch.squeeze, (graph.call_function(F.scaled_dot_product_attention, flat, options), 0))


def _transposed(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """Return `node` with its last two dims swapped: the node below where it is such a view itself."""
    info, below = node_info(node), next(iter(node.all_input_nodes), None)
    if info is not None and node_info(below) == replace(info, shape=_swapped(info.shape), stride=_swapped(info.stride)):
        return cast(fx.Node, below)
    return graph.call_function(torch.transpose, (node, -2, -1))


def _swapped(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return (*sizes[:-2], *sizes[:-3:-1])


_SDPA_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


@dataclass(frozen=True, kw_only=True)
class SimplifyMasks(RewritePass):
    """Turn a constant mask that is exactly causal into `is_causal`, for flash attention; drop one that masks nothing.

    A number masks if it is minus infinity or the least of its dtype, whose exponential is 0 next to any score. Every
    query of a causal mask attends to itself, so no row is masked throughout.
    """

    def replacement(self, module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
        """Return the same attention with arguments in place of a constant mask."""
        if not is_call(node, F.scaled_dot_product_attention):
            return None
        args = arguments(node, *_SDPA_ARGUMENTS)
        mask, query, key = constant(module, args["attn_mask"]), node_info(args["query"]), node_info(args["key"])
        if mask is None or query is None or key is None or args["is_causal"]:
            return None
        if (options := _simplified(mask, query.shape[-2], key.shape[-2])) is None:
            return None
        kept = {name: args[name] for name in _SDPA_ARGUMENTS[4:] if args[name] is not None}
        heads = tuple(args[name] for name in _SDPA_ARGUMENTS[:3])
        return module.graph.call_function(F.scaled_dot_product_attention, heads, {**kept, **options})


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
