"""Findings: kernels of a call that could take less time at the ceilings, or be left out, and what that saves.

The rules read names of kernels (ATen, cuDNN, cuBLAS, CUTLASS, inductor) and the shapes of the operators that launched
them. A kernel whose bytes and FLOPs are not known is listed only if it can be left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Any

import torch

from profiling.results.environment import NEAR_CEILING, Ceilings
from profiling.results.explanations import FindingKind, KernelFinding
from profiling.trace.attribution import KernelAttribution, mean, microseconds, rate
from profiling.trace.events import TRANSFERS
from profiling.trace.operator_costs import product_dtype_of, recorded_tensors

#: Shortest duration of a kernel in microseconds: a saving that assumes less is none.
SHORTEST_US = 2.0
#: Rows of a matrix product up to which its weights decide its time.
FEW_ROWS = 64
#: Least saving of a finding, as a share of all kernel time (0 to 1).
WORTH = 0.01
#: Kernel names that a finding keeps, the longest first.
_NAMES, _NAME_LENGTH = 3, 120

_FUSED = re.compile(r"triton_(?:poi|red|per|tem|split)\w*?_fused_(?P<operators>\w*?)_?\d*$")
_MOVES = "clone|copy|permute|transpose|contiguous|view|to_copy"
_ACTIVATIONS = "add|relu|leaky_relu|silu|gelu|sigmoid|tanh|hardtanh|elu|clamp"
#: Kernels that better code would not launch, by their names: (kind, words, pattern). The first that matches counts.
_BY_NAME: tuple[tuple[FindingKind, str, re.Pattern[str]], ...] = (
    ("memset", "memsets and fills", re.compile("FillFunctor|^Memset", re.IGNORECASE)),
    ("split-K", "split-K reductions", re.compile("split_?k_?reduce|reduce_?split_?k", re.IGNORECASE)),
    (
        *("layout conversion", "layout conversions"),
        re.compile("nchwToNhwc|nhwcToNchw|nchw2nhwc|nhwc2nchw|transpose(?!d?_?conv)|permute", re.IGNORECASE),
    ),
)
#: The operators that only move a tensor, those that only cast, and biases and activations that the product's own kernel
#: could do: by what a generated kernel fuses, or else by the operator that launched it.
_COPIES = re.compile(
    rf"_*(convolution|addmm|mm|bmm|{_MOVES})(_+({_MOVES}|unsqueeze|expand))*|aten::(copy_?|_to_copy|clone|contiguous|to)"
)
_CASTS = re.compile(r"_*(to_copy|convert_element_type)(_+(view|clone|permute|unsqueeze|expand))*")
_EPILOGUES = re.compile(rf"_*(convolution|addmm|mm|bmm|linear)(_+({_ACTIVATIONS}))*|aten::({_ACTIVATIONS})_?")
_REDUCTIONS = re.compile(
    r"(?<![a-z])((?:group|layer|batch|rms|instance|weight|vector)_norm|log_softmax|softmax|var_mean|var|mean|sum|amax|amin"
    r"|argmax|argmin|logsumexp|cumsum|prod|norm|std|max|min|any|all|topk|sort)(?![a-z])"
)


def kernel_findings(
    calls: Sequence[Sequence[KernelAttribution]],
    ceilings: Ceilings,
    *,
    parts: int = 1,
) -> tuple[KernelFinding, ...]:
    """Return the findings of traced calls, the largest saving first; times are per call, or per part of a call."""
    total_us, count = sum(map(microseconds, calls)), max(1, len(calls) * parts)
    groups: dict[tuple[FindingKind, str], list[tuple[KernelAttribution, float]]] = {}
    for call in calls:
        for before, item in zip((None, *call), call, strict=False):
            if (judged := _judged(item, before, ceilings)) is not None:
                kind, what, least_us = judged
                groups.setdefault((kind, what), []).append((item, least_us))
    found = [_finding(kind, what, pieces, total_us, count, ceilings) for (kind, what), pieces in groups.items()]
    worth = [finding for finding in found if finding.saves_ms >= WORTH * total_us / 1e3 / count > 0]
    return tuple(sorted(worth, key=lambda finding: -finding.saves_ms))


def _judged(
    item: KernelAttribution, before: KernelAttribution | None, ceilings: Ceilings
) -> tuple[FindingKind, str, float] | None:
    """Return (kind, words, microseconds at the ceilings, 0 where it can be left out) of a kernel; None: no finding."""
    if TRANSFERS.match(item.work.name):
        return None  # the bus bounds it, and no ceiling of the memory
    avoidable = _avoidable(item, before)
    if avoidable is not None:
        return *avoidable, 0.0
    least_us = _least_us(item, ceilings)
    if not least_us or least_us >= NEAR_CEILING * item.work.length:
        return None
    return *_slow(item), min(item.work.length, max(least_us, SHORTEST_US))


def _least_us(item: KernelAttribution, ceilings: Ceilings) -> float:
    """Return the microseconds at the ceilings of the kernel's bytes or FLOPs, the longer; 0 where none is known."""
    return max(ceilings.times_us(item.bytes or 0, item.flops or 0, product_dtype_of(item.arguments)))


def _avoidable(item: KernelAttribution, before: KernelAttribution | None) -> tuple[FindingKind, str] | None:
    """Return (kind, words) of a kernel that better code would not launch; None for all others."""
    for kind, words, pattern in _BY_NAME:
        if pattern.search(item.work.name) and (kind != "layout conversion" or item.kind in ("copy", "conv", "other")):
            return kind, words
    generated = _FUSED.match(item.work.name)
    does = generated["operators"] if generated else item.operator or ""
    if _COPIES.fullmatch(does) and (copied := _copied(item.arguments)) is not None:
        return copied
    if generated and _CASTS.fullmatch(does):
        return "cast", "casts"
    after = generated or (before is not None and before.kind in ("gemm", "conv"))
    if after and item.kind == "pointwise" and _EPILOGUES.fullmatch(does):
        return "bias or activation", "bias and activation"
    return None


def _copied(arguments: Mapping[str, Any]) -> tuple[FindingKind, str] | None:
    """Return whether a kernel that writes a tensor of the shape that it reads casts it or converts its layout."""
    tensors = [tensor for tensor in recorded_tensors(arguments) if tensor.is_floating_point() and tensor.dim()]
    if len(tensors) != 2 or tensors[0].numel() != tensors[1].numel():
        return None
    one, other = tensors
    if one.dtype != other.dtype:
        sizes = sorted(8 * tensor.element_size() for tensor in tensors)
        return "cast", "casts" if sizes[0] == sizes[1] else f"casts between {sizes[0]} and {sizes[1]} bits"
    if one.dim() == other.dim() and _order(one.shape, one.stride()) != _order(one.shape, other.stride()):
        return "layout conversion", "layout conversions"
    return None


def _order(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Return the dimensions of more than one element, the largest stride first."""
    return tuple(sorted((place for place, size in enumerate(shape) if size > 1), key=lambda place: -strides[place]))


def _slow(item: KernelAttribution) -> tuple[FindingKind, str]:
    """Return (kind, words) of a kernel that takes longer than the ceilings allow."""
    generated = _FUSED.match(item.work.name)
    does = generated["operators"] if generated else (item.operator or "").removeprefix("aten::")
    words = does.removeprefix("native_").strip("_").replace("_", " ")
    if item.kind == "reduction":
        reduction = _REDUCTIONS.search(does.replace("native_", ""))
        return "reduction", f"{reduction[1].replace('_', ' ') if reduction else words[:24]} reductions"
    if item.kind == "conv":
        return _convolution(item)
    if item.kind == "gemm":
        rows = _rows(item.arguments)
        return ("few rows", f"GEMM M={rows}") if rows is not None and rows <= FEW_ROWS else ("product", "GEMM")
    if item.kind == "attention":
        return "attention", "attention"
    if item.kind != "pointwise":
        return "elementwise", "copies"
    if generated:
        by_index = re.search("index|gather|embedding|arange", does)
        return "elementwise", "fused indexing" if by_index else "fused pointwise"
    return "elementwise", f"{words} kernels" if words else "pointwise"


def _convolution(item: KernelAttribution) -> tuple[FindingKind, str]:
    """Return the kind of a convolution, by the groups that its operator was given and the shape of its weight."""
    shapes = [tensor.shape for tensor in recorded_tensors(item.arguments) if tensor.dim() >= 3]
    if len(shapes) < 2:
        return "convolution", "convolutions"
    (_, channels, *_), (_, per_group, *kernel) = shapes[:2]
    packet = getattr(torch.ops.aten, (item.operator or "").removeprefix("aten::"), None)
    names = [] if packet is None else [argument.name for argument in packet.default._schema.arguments]
    recorded = dict(zip(names, item.arguments.get("Concrete Inputs", ()), strict=False)).get("groups")
    if (int(recorded) if recorded else channels // max(1, per_group)) > 1:
        return "grouped convolution", "grouped convolutions"
    if all(size == 1 for size in kernel):
        return "1x1 convolution", "1 × 1 convolutions"
    return "convolution", "convolutions"


def _rows(arguments: Mapping[str, Any]) -> int | None:
    """Return the rows of a matrix product's first factor; None where its shapes were not recorded."""
    shapes = [tensor.shape for tensor in recorded_tensors(arguments) if tensor.dim() >= 2]
    for left, right in pairwise(shapes):
        if left[-1] in (right[-2], right[-1]) and len(left) >= len(right):
            return prod(left[:-1]) if len(right) == 2 else left[-2]
    return None


def _finding(
    kind: FindingKind,
    what: str,
    pieces: Sequence[tuple[KernelAttribution, float]],
    total_us: float,
    calls: int,
    ceilings: Ceilings,
) -> KernelFinding:
    """Return the finding of `pieces`, kernels with their least microseconds."""
    items = [item for item, _ in pieces]
    spent = microseconds(items)
    known = [item for item in items if item.bytes or item.flops]
    by_name: dict[str, float] = {}
    for item in items:
        by_name[item.work.name] = by_name.get(item.work.name, 0.0) + item.work.length
    return KernelFinding(
        kind=kind,
        what=what,
        ms=spent / 1e3 / calls,
        saves_ms=(spent - sum(least_us for _, least_us in pieces)) / 1e3 / calls,
        share=spent / total_us if total_us else 0.0,
        count=len(pieces) / calls,
        gbps=rate(items, "bytes", 1e3),
        tflops=rate(items, "flops", 1e6),
        of_ceiling=sum(_least_us(item, ceilings) for item in known) / microseconds(known) if known else None,
        blocks=mean(item.work.blocks for item in items),
        kernels=tuple(name[:_NAME_LENGTH] for name in sorted(by_name, key=lambda name: -by_name[name])[:_NAMES]),
    )
