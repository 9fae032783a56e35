"""Kernel findings: kernels of a call that could take less time at the ceilings, or be left out, and what that saves.

The rules read names of kernels (ATen, cuDNN, cuBLAS, CUTLASS, inductor) and the shapes of the operators that launched
them. A kernel whose bytes and FLOPs are not known is listed only if it can be left out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

from profiling.results.environment import Ceilings
from profiling.results.record import FindingKind, KernelFinding
from profiling.trace.attribution import KernelAttribution
from profiling.trace.events import TRANSFERS
from profiling.trace.operator_costs import product_dtype_of

#: A kernel at this share of a ceiling, or more, is as fast as kernels get.
FAST = 0.7
#: Shortest duration of a kernel in microseconds: a saving that assumes less is none.
SHORTEST_US = 2.0
#: Rows of a matrix product up to which its weights decide its time.
FEW_ROWS = 64
#: Least saving of a finding, as a share of all kernel time (0 to 1).
WORTH = 0.01
#: Kernel names that a finding keeps, the longest first.
_NAMES, _NAME_LENGTH = 3, 120

_LAYOUT = re.compile(r"nchwToNhwc|nhwcToNchw|nchw2nhwc|nhwc2nchw|transpose(?!d?_?conv)|permute", re.IGNORECASE)
_SPLIT_K = re.compile(r"split_?k_?reduce|reduce_?split_?k", re.IGNORECASE)
_FILL = re.compile(r"FillFunctor|^Memset", re.IGNORECASE)
_COPIES = re.compile(r"aten::(copy_?|_to_copy|clone|contiguous|to)")
_TRITON = re.compile(r"triton_(?:poi|red|per|tem|split)\w*?_fused_(?P<operators>\w*?)_?\d*$")
#: What a compiler fuses behind a product only because the product's kernel does not do it: bias and activation.
_EPILOGUE = re.compile(
    r"_*(convolution|addmm|mm|bmm|linear)(_+(add|relu|leaky_relu|silu|gelu|sigmoid|tanh|hardtanh|elu|clamp))*"
)
_EPILOGUE_OPERATOR = re.compile(r"aten::(add|relu|leaky_relu|silu|gelu|sigmoid|tanh|hardtanh|elu|clamp)_?")
_MOVES = re.compile(
    r"_*(convolution|addmm|mm|bmm|clone|copy|permute|transpose|contiguous|view|to_copy)"
    r"(_+(clone|copy|permute|transpose|contiguous|view|to_copy|unsqueeze|expand))*"
)
_CAST = re.compile(r"_*(to_copy|convert_element_type)(_+(view|clone|permute|unsqueeze|expand))*")
_REDUCTIONS = re.compile(
    r"(?<![a-z])((?:group|layer|batch|rms|instance|weight|vector)_norm|log_softmax|softmax|var_mean|var|mean|sum|amax|amin"
    r"|argmax|argmin|logsumexp|cumsum|prod|norm|std|max|min|any|all|topk|sort)(?![a-z])"
)
#: Reduction kernels of CUDA libraries by their names.
_REDUCTION_NAMES = (
    *(("RowwiseMoments", "group norm"), ("GroupNorm", "group norm"), ("layer_norm", "layer norm")),
    *(("LayerNorm", "layer norm"), ("batch_norm", "batch norm"), ("softmax", "softmax"), ("SoftMax", "softmax")),
    *(("MeanOps", "mean"), ("WelfordOps", "variance"), ("sum_functor", "sum"), ("NormTwoOps", "norm")),
)
#: Bytes of an element, by the names of floating-point dtypes in a trace.
_ITEM_BYTES = {
    **{"c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1, "c10::BFloat16": 2, "c10::Half": 2},
    **{"float": 4, "double": 8},
}


@dataclass(frozen=True)
class _Piece:
    """A kernel of a finding: what it is, and its duration at the ceilings (0 where it can be left out)."""

    kind: FindingKind
    what: str
    item: KernelAttribution
    least_us: float


def kernel_findings(
    calls: Sequence[Sequence[KernelAttribution]],
    ceilings: Ceilings,
    *,
    parts: int = 1,
) -> tuple[KernelFinding, ...]:
    """Return the findings of traced calls, the largest saving first; times are per call, or per part of a call."""
    total_us = sum(item.work.length for call in calls for item in call)
    groups: dict[tuple[FindingKind, str], list[_Piece]] = {}
    for call in calls:
        before: KernelAttribution | None = None
        for item in call:
            piece = _judged(item, before, ceilings)
            if piece is not None:
                groups.setdefault((piece.kind, piece.what), []).append(piece)
            before = item
    found = [_finding(pieces, total_us, len(calls) * parts, ceilings) for pieces in groups.values()]
    whole_ms = total_us / 1e3 / max(1, len(calls) * parts)
    worth = [finding for finding in found if finding.saves_ms >= WORTH * whole_ms > 0]
    return tuple(sorted(worth, key=lambda finding: -finding.saves_ms))


def _judged(item: KernelAttribution, before: KernelAttribution | None, ceilings: Ceilings) -> _Piece | None:
    if TRANSFERS.match(item.work.name):
        return None  # the bus bounds it, and no ceiling of the memory
    avoidable = _avoidable(item, before)
    if avoidable is not None:
        return _Piece(*avoidable, item, 0.0)
    least_us = _least_us(item, ceilings)
    if least_us is None or least_us >= FAST * item.work.length:
        return None
    kind, what = _slow(item)
    return _Piece(kind, what, item, min(item.work.length, max(least_us, SHORTEST_US)))


def _least_us(item: KernelAttribution, ceilings: Ceilings) -> float | None:
    """Return the microseconds at the ceilings of the kernel's bytes or FLOPs, the longer; None where none is known."""
    if not item.bytes and not item.flops:
        return None
    moved = 1e6 * item.bytes / ceilings.bytes_per_s(item.bytes) if item.bytes else 0.0
    return max(moved, 1e6 * (item.flops or 0) / ceilings.flops_ceiling(product_dtype_of(item.arguments)))


def _avoidable(item: KernelAttribution, before: KernelAttribution | None) -> tuple[FindingKind, str] | None:
    """Return (kind, words) of a kernel that better code would not launch; None for all others."""
    name, operator = item.work.name, item.operator or ""
    generated = _TRITON.match(name)
    fused = generated["operators"] if generated else None
    if item.work.kind == "gpu_memset" or _FILL.search(name):
        return "memset", "memsets and fills"
    if _SPLIT_K.search(name):
        return "split-K", "split-K reductions"
    if _LAYOUT.search(name) and item.kind in ("copy", "conv", "other"):
        return "layout conversion", "layout conversions"
    if _COPIES.fullmatch(operator) or (fused is not None and _MOVES.fullmatch(fused)):
        copied = _copied(item.arguments)
        if copied is not None:
            return copied
    if fused is not None and _CAST.fullmatch(fused):
        return "cast", "casts"
    after = before is not None and before.kind in ("gemm", "conv")
    epilogue = _EPILOGUE.fullmatch(fused) if fused is not None else _EPILOGUE_OPERATOR.fullmatch(operator)
    if epilogue and item.kind == "pointwise" and (after or fused is not None):
        return "bias or activation", "bias and activation"
    return None


def _copied(arguments: Mapping[str, Any]) -> tuple[FindingKind, str] | None:
    """Return whether a kernel that writes a tensor of the shape that it reads casts it or converts its layout."""
    tensors = [
        (kind, tuple(shape), tuple(strides))
        for kind, shape, strides in zip(
            *(arguments.get(name, ()) for name in ("Input type", "Input Dims", "Input Strides")), strict=False
        )
        if kind in _ITEM_BYTES and shape
    ]
    if len(tensors) != 2 or prod(tensors[0][1]) != prod(tensors[1][1]):
        return None
    (one, shape, strides), (other, _, other_strides) = tensors
    if one != other:
        sizes = sorted((_ITEM_BYTES[one], _ITEM_BYTES[other]))
        return "cast", "casts" if sizes[0] == sizes[1] else f"casts between {8 * sizes[0]} and {8 * sizes[1]} bits"
    if len(strides) == len(other_strides) and _order(shape, strides) != _order(shape, other_strides):
        return "layout conversion", "layout conversions"
    return None


def _order(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Return the dimensions of more than one element, the largest stride first."""
    return tuple(sorted((place for place, size in enumerate(shape) if size > 1), key=lambda place: -strides[place]))


def _slow(item: KernelAttribution) -> tuple[FindingKind, str]:
    """Return (kind, words) of a kernel that takes longer than the ceilings allow."""
    if item.kind == "reduction":
        return "reduction", f"reductions ({_reduction(item)})"
    if item.kind == "conv":
        return _convolution(item.arguments)
    if item.kind == "gemm":
        rows = _rows(item.arguments)
        if rows is not None and rows <= FEW_ROWS:
            return "few rows", f"products of {rows} row{'' if rows == 1 else 's'}"
        return "product", "matrix products"
    if item.kind == "attention":
        return "attention", "attention"
    return "elementwise", _elementwise(item) if item.kind == "pointwise" else "copies"


def _reduction(item: KernelAttribution) -> str:
    """Return the word for what a reduction computes: `group norm`, `var`."""
    for name, word in _REDUCTION_NAMES:
        if name in item.work.name:
            return word
    operator = (item.operator or item.work.name).removeprefix("aten::").removeprefix("native_")
    word = _REDUCTIONS.search(operator.replace("native_", ""))
    return word[1].replace("_", " ") if word else operator.strip("_").replace("_", " ")[:24]


def _elementwise(item: KernelAttribution) -> str:
    """Return words for an elementwise kernel: by its operator, or for a fused one whether it reads by an index."""
    generated = _TRITON.match(item.work.name)
    if generated:
        by_index = re.search("index|gather|embedding|arange", generated["operators"])
        return "fused kernels that index" if by_index else "fused elementwise kernels"
    operator = (item.operator or "").removeprefix("aten::").strip("_").replace("_", " ")
    return f"{operator} kernels" if operator else "elementwise kernels"


def _convolution(arguments: Mapping[str, Any]) -> tuple[FindingKind, str]:
    """Return the kind of a convolution, from the shapes of its input and weight."""
    shapes = [shape for shape in arguments.get("Input Dims", ()) if _is_shape(shape) and len(shape) >= 3]
    if len(shapes) >= 2:
        (_, channels, *_), (_, per_group, *kernel) = shapes[:2]
        transposed = shapes[1][0] == channels != per_group and _is_true(arguments, 6)
        groups = _integer(arguments, 8) or (1 if transposed or not per_group else channels // per_group)
        if groups > 1:
            return "grouped convolution", "grouped convolutions"
        if all(size == 1 for size in kernel):
            return "1x1 convolution", "1 × 1 convolutions"
    return "convolution", "convolutions"


def _rows(arguments: Mapping[str, Any]) -> int | None:
    """Return the rows of a matrix product's first factor; None where its shapes were not recorded."""
    shapes = [shape for shape in arguments.get("Input Dims", ()) if _is_shape(shape) and len(shape) >= 2]
    for left, right in pairwise(shapes):
        if left[-1] in (right[-2], right[-1]) and len(left) >= len(right):
            return prod(left[:-1]) if len(right) == 2 else left[-2]
    return None


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, list) and bool(shape) and all(isinstance(size, int) for size in shape)


def _integer(arguments: Mapping[str, Any], place: int) -> int | None:
    """Return the recorded integer at `place` of a convolution's nine arguments; None for anything else."""
    values = arguments.get("Concrete Inputs", ())
    if len(values) <= place or len(values) not in (9, 12, 13):
        return None
    try:
        value = ast.literal_eval(values[place])
    except (ValueError, SyntaxError):
        return None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _is_true(arguments: Mapping[str, Any], place: int) -> bool:
    values = arguments.get("Concrete Inputs", ())
    return len(values) > place and str(values[place]) == "True"


def _finding(pieces: Sequence[_Piece], total_us: float, calls: int, ceilings: Ceilings) -> KernelFinding:
    """Return the finding of kernels of the same kind; rates cover those whose bytes or FLOPs are known."""
    spent = sum(piece.item.work.length for piece in pieces)
    saved = sum(piece.item.work.length - piece.least_us for piece in pieces)
    moving = [piece.item for piece in pieces if piece.item.bytes]
    computing = [piece.item for piece in pieces if piece.item.flops]
    launches = [piece.item.work.blocks for piece in pieces if piece.item.work.blocks is not None]
    longest: dict[str, float] = {}
    for piece in pieces:
        longest[piece.item.work.name] = longest.get(piece.item.work.name, 0.0) + piece.item.work.length
    known = [piece.item for piece in pieces if piece.item.bytes or piece.item.flops]
    least = sum(_least_us(item, ceilings) or 0.0 for item in known)
    return KernelFinding(
        kind=pieces[0].kind,
        what=pieces[0].what,
        ms=spent / 1e3 / calls,
        saves_ms=saved / 1e3 / calls,
        share=spent / total_us if total_us else 0.0,
        count=len(pieces) / calls,
        gbps=_rate(moving, "bytes", 1e3),
        tflops=_rate(computing, "flops", 1e6),
        of_ceiling=least / sum(item.work.length for item in known) if known else None,
        blocks=sum(launches) / len(launches) if launches else None,
        kernels=tuple(name[:_NAME_LENGTH] for name in sorted(longest, key=lambda name: -longest[name])[:_NAMES]),
    )


def _rate(items: Sequence[KernelAttribution], attribute: str, unit: float) -> float | None:
    spent = sum(item.work.length for item in items)
    return sum(getattr(item, attribute) for item in items) / spent / unit if spent > 0 else None
