"""Recognises attention that is written out, from its last matrix product backwards."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.nn import functional as F

from profiling.transforms.facts import Facts, facts
from profiling.transforms.spelling import arguments, is_call

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
