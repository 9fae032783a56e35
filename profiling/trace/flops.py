"""FLOPs by class of operator and by dtype: `counted_flops` counts those that run in a block.

torch's counter has the formulas of products, convolutions and attention. Here are those of operators that it lacks or
counts wrongly: fused layers, recurrent layers, sparse and complex products, products of 8-bit integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count
from torch.utils.module_tracker import ModuleTracker

from profiling.components.trees import stored_parts

_aten = torch.ops.aten

#: Classes of FLOPs by a part of the operator's name; the first that matches counts.
_FLOP_CLASSES = {"attention": "atten", "convolution": "conv", "matmul": ""}


def _attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return sdpa_flop_count(query, key, value)


def _attention_backward(gradient: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return sdpa_backward_flop_count(gradient, query, key, value)


Formula = Callable[..., int]


def _of_tensors(formula: Formula) -> Formula:
    """Mark a formula that is to be given tensors; torch's counter gives the others their shapes."""
    formula._get_raw = True  # type: ignore[attr-defined]
    return formula


@_of_tensors
def _product(a: Tensor, b: Tensor, *_: Any, **__: Any) -> int:
    """Return the FLOPs of a product of matrices or vectors, or of batches of them.

    Of a sparse matrix the stored values count; of two, whose common places are not known, nothing does. A complex
    multiply-add is four of real numbers.
    """
    columns = b.shape[-1] if b.dim() > 1 else 1
    if a.layout != torch.strided and b.layout != torch.strided:
        return 0
    if a.layout != torch.strided:
        pairs = stored_parts(a)[-1].numel() * columns
    elif b.layout != torch.strided:
        pairs = stored_parts(b)[-1].numel() * a.shape[-2]
    else:
        pairs = a.numel() * columns
    return 2 * pairs * (4 if a.is_complex() else 1)


@_of_tensors
def _product_by_rows(a: Tensor, b: Tensor, *_: Any, **__: Any) -> int:
    """Return the FLOPs of a product with a matrix that is stored transposed."""
    return 2 * a.numel() * b.shape[0]


@_of_tensors
def _distances(a: Tensor, b: Tensor, *_: Any, **__: Any) -> int:
    """Return the FLOPs of the distances between all rows of two matrices: a product, whatever the norm."""
    return 2 * a.numel() * b.shape[-2]


@_of_tensors
def _trilinear(a: Tensor, b: Tensor, c: Tensor, *expand: Sequence[int], **__: Any) -> int:
    """Return the FLOPs of a sum of products of three, which is how nn.Bilinear computes: two for each product.

    `expand` are the axes along which each of the three is repeated.
    """
    sizes = []
    for tensor, axes in zip((a, b, c), expand, strict=False):
        size = list(tensor.shape)
        for axis in sorted(axes):
            size.insert(axis, 1)
        sizes.append(size)
    return 2 * prod(torch.broadcast_shapes(*sizes))


@_of_tensors
def _added_batches(_: Any, a: Tensor, b: Tensor, *__: Any, **___: Any) -> int:
    return 2 * a.numel() * b.shape[-1]


@_of_tensors
def _packed_product(a: Tensor, _packed: Tensor, _group: int, scales: Tensor, *_: Any, **__: Any) -> int:
    """Return the FLOPs of a product with int4 weights in tiles; `scales` is [groups, columns, 2]."""
    return 2 * a.numel() * scales.shape[-2]


@_of_tensors
def _added_product(_: Any, a: Tensor, b: Tensor, *__: Any, **___: Any) -> int:
    return _product(a, b)


@_of_tensors
def _mkldnn_rnn(x: Tensor, input_weight: Tensor, hidden_weight: Tensor, *_: Any, **__: Any) -> int:
    """Return the FLOPs of one direction of an LSTM layer: both matrices are read for each input."""
    return _linears(x, (input_weight, hidden_weight))


@_of_tensors
def _cudnn_rnn(x: Tensor, weights: Sequence[Tensor], *_: Any, **__: Any) -> int:
    """Return the FLOPs of all layers and directions of an LSTM, GRU or RNN."""
    return _linears(x, weights)


@_of_tensors
def _fused_attention(
    query: Tensor,
    _key: Any,
    _value: Any,
    _dim: Any,
    _heads: Any,
    into: Tensor,
    _bias: Any,
    out: Tensor,
    *_: Any,
    **__: Any,
) -> int:
    """Return the FLOPs of self-attention with its projections, as nn.MultiheadAttention calls it in eval mode."""
    return _linears(query, (into, out)) + _scores(query)


@_of_tensors
def _fused_transformer_layer(x: Tensor, *weights: Any, **__: Any) -> int:
    """Return the FLOPs of nn.TransformerEncoderLayer as one operator, which it calls in eval mode."""
    return _linears(x, [each for each in weights if isinstance(each, Tensor)][:_LAYER_WEIGHTS]) + _scores(x)


#: Tensors of a transformer layer before its masks: weights and biases of two projections, two norms, two linears.
_LAYER_WEIGHTS = 12


def _linears(x: Tensor, weights: Iterable[Tensor]) -> int:
    """Return the FLOPs of applying each of the matrices among `weights` once to each vector of `x`."""
    vectors = sum(part.numel() // part.shape[-1] for part in _sequences(x))
    return 2 * vectors * sum(weight.numel() for weight in weights if weight.dim() == 2)


def _scores(x: Tensor) -> int:
    """Return the FLOPs of attention within each sequence of `x`: the scores, and their product with the values."""
    return sum(2 * (2 * part.shape[-2] * part.numel()) for part in _sequences(x))


def _sequences(x: Tensor) -> Sequence[Tensor]:
    """Return the sequences of different lengths in a nested tensor, else `x` itself."""
    return x.unbind() if x.is_nested else (x,)


#: FLOP formulas, by name, for operators that torch's counter lacks or counts as real and dense; some versions of torch
#: lack some of the operators.
_FLOP_FORMULAS: Mapping[str, Formula] = {
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_fused_attention_overrideable": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "_scaled_dot_product_fused_attention_overrideable_backward": _attention_backward,
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "vdot", "_sparse_mm", "_int_mm", "_scaled_mm_v2"), _product),
    **dict.fromkeys(("cdist", "_cdist_forward", "_euclidean_dist"), _distances),
    "_trilinear": _trilinear,
    "addbmm": _added_batches,
    "_weight_int8pack_mm": _product_by_rows,
    **dict.fromkeys(("_weight_int4pack_mm", "_weight_int4pack_mm_for_cpu"), _packed_product),
    **dict.fromkeys(("addmm", "baddbmm", "addmv", "_sparse_addmm", "_addmm_activation"), _added_product),
    "mkldnn_rnn_layer": _mkldnn_rnn,
    "_cudnn_rnn": _cudnn_rnn,
    "_native_multi_head_attention": _fused_attention,
    "_transformer_encoder_layer_fwd": _fused_transformer_layer,
}


class _NoModules(ModuleTracker):
    """Leaves the counter with the sum of all modules, without torch's hooks on each.

    In inference mode those fail where a module returns a view of a parameter.
    """

    def __enter__(self) -> ModuleTracker:
        return self

    def __exit__(self, *_: object) -> None:
        return None


@dataclass
class FlopCount:
    """FLOPs by class of operator (matmul, convolution, attention), and by dtype of the operands, without those of 0."""

    by_class: dict[str, int] = field(default_factory=dict)
    by_dtype: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """All counted FLOPs."""
        return sum(self.by_class.values())

    def add(self, operator: str, dtype: str, flops: int) -> None:
        """Count the FLOPs of a call of the operator."""
        name = next(name for name, part in _FLOP_CLASSES.items() if part in operator)
        for group, key in ((self.by_class, name), (self.by_dtype, dtype)):
            if flops:
                group[key] = group.get(key, 0) + flops


@contextmanager
def counted_flops() -> Iterator[FlopCount]:
    """Count FLOPs inside the block, into what it yields.

    A multiply-add counts as two. Matrix products, convolutions and attention are counted. Elementwise operators,
    reductions and custom operators without a registered formula are not, so the count is a lower bound. A convolution
    is counted as the direct algorithm, of whose FLOPs Winograd needs a fraction.
    """
    count = FlopCount()
    extra = {packet: formula for name, formula in _FLOP_FORMULAS.items() if (packet := getattr(_aten, name, None))}
    counter = FlopCounterMode(display=False, custom_mapping=extra)
    counter.mod_tracker = _NoModules()
    formulas = counter.flop_registry.items()
    counter.flop_registry = {operator: _noting(count, str(operator), formula) for operator, formula in formulas}
    with counter:
        yield count


def _noting(count: FlopCount, operator: str, formula: Formula) -> Formula:
    """Return the formula of an operator, which also adds its result to `count`."""

    def noting(*args: Any, **kwargs: Any) -> int:
        flops = formula(*args, **kwargs)
        dtype = next((each.dtype for each in args if isinstance(each, Tensor)), None)
        count.add(operator, product_dtype(dtype), flops)
        return flops

    return noting


def product_dtype(dtype: torch.dtype | None) -> str:
    """Return the name by which the rate of products of `dtype` is known: one for all float8, of complex its parts."""
    name = str(dtype).removeprefix("torch.")
    if name.startswith("float8"):
        return "float8"
    return str(dtype.to_real()).removeprefix("torch.") if dtype is not None and dtype.is_complex else name
