"""FLOPs by class of operator and by dtype: `counted_flops` counts those that run in a block.

torch's counter has the formulas of products and convolutions. Here are those of operators that it lacks or counts
wrongly: attention (causal, grouped heads, FlexAttention), fused layers, recurrent layers, sparse and complex products,
products of 8-bit integers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops.flex_attention import flex_attention
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.module_tracker import ModuleTracker

from profiling.components.trees import stored_parts

_aten = torch.ops.aten

#: Classes of FLOPs by a part of the operator's name; the first that matches counts.
_FLOP_CLASSES = {"attention": "atten", "convolution": "conv", "matmul": ""}


Formula = Callable[..., int]


def _attention(packet: Any, *, backward: bool = False, heads_first: bool = True) -> Formula:
    """Return the formula of an attention operator: two products for each pair of a query and a key that it attends.

    Tensors are [..., heads, tokens, depth], without `heads_first` [..., tokens, heads, depth], or sequences of
    different lengths one after the other, [tokens, heads, depth], with their offsets. The backward pass has five
    products. A mask that is passed as a tensor leaves out no pair: kernels compute them all.
    """
    names = [argument.name for argument in packet.default._schema.arguments]

    def formula(*args: Any, **kwargs: Any) -> int:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        query, key, value = (given[name] for name in ("query", "key", "value"))
        offsets = [given.get(f"cum_seq_{side}", given.get(f"cu_seqlens_{side}")) for side in "qk"]
        place = -2 if heads_first else -3
        if isinstance(offsets[0], Tensor) and isinstance(offsets[1], Tensor):
            sides = [_lengths(query, offsets[0]), _lengths(key, offsets[1])]
            heads = query.shape[-2]
        else:
            sides = [[part.shape[place] for part in _sequences(side)] for side in (query, key)]
            parts = [_sequences(side)[0] for side in (query, key)]
            heads = max(prod(part.shape[:-1]) // max(1, part.shape[place]) for part in parts)
        causal = given.get("is_causal") is True or given.get("custom_mask_type") == 1
        pairs = sum(_pairs(*lengths, causal=causal) for lengths in zip(*sides, strict=True))
        depth, width = query.size(-1), value.size(-1)
        return 2 * heads * pairs * (3 * depth + 2 * width if backward else depth + width)

    return formula


def _pairs(queries: int, keys: int, *, causal: bool) -> int:
    """Return the number of pairs of a query and a key that it attends: with `causal`, query i the first i + 1 keys."""
    if not causal:
        return queries * keys
    fewer = min(queries, keys)
    return fewer * (fewer + 1) // 2 + (queries - fewer) * keys


def _lengths(tokens: Tensor, offsets: Tensor) -> list[int]:
    """Return the lengths of sequences from their offsets; where a trace recorded no values, equal ones."""
    count = offsets.shape[0] - 1
    return [tokens.shape[-3] // count] * count if offsets.is_meta else offsets.diff().tolist()


@dataclass(frozen=True)
class FlexBlocks:
    """The work of a FlexAttention call by its block mask, of which each block counts whole.

    `pairs` is the number of pairs of a query and a key in blocks that are not masked, over all batches and heads;
    `keys` the part (0 to 1) of the keys and values in such blocks.
    """

    pairs: int
    keys: float

    @classmethod
    def of(cls, query: Tensor, key: Tensor, mask: Sequence[Any]) -> FlexBlocks:
        """Count blocks; `mask` is `BlockMask.as_tuple()`: lengths, then counts and indices of partial and full blocks.

        Counts are [batch, heads, blocks of queries], indices have a dimension more; batch and heads may be 1.
        """
        rows, columns = (
            (length - torch.arange(-(-length // size), device=query.device) * size).clamp(max=size)
            for length, size in ((query.shape[-2], mask[-3]), (key.shape[-2], mask[-2]))
        )
        attended = torch.zeros(*mask[2].shape, len(columns), dtype=torch.bool, device=query.device)
        for counts, indices in (mask[2:4], mask[4:6]):
            if counts is not None:
                listed = torch.arange(indices.shape[-1], device=query.device) < counts[..., None]
                places = indices.long().clamp(max=len(columns) - 1)
                attended |= torch.zeros_like(attended, dtype=torch.uint8).scatter_add_(-1, places, listed.byte()) > 0
        pairs = int((attended * rows[:, None] * columns).sum())
        masks, needed = prod(mask[2].shape[:2]), int((attended.any(-2) * columns).sum())
        return cls(pairs * prod(query.shape[:-2]) // masks, needed / masks / max(1, key.shape[-2]))


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


#: Attention operators of [batch, heads, tokens, depth], some with a backward operator.
_HEADS_FIRST = (
    "scaled_dot_product_attention",
    "_cudnn_attention_forward",
    *(f"_scaled_dot_product_{backend}_attention" for backend in ("flash", "efficient", "cudnn")),
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_fused_attention_overrideable",
)
#: The same of [batch, tokens, heads, depth], or of sequences one after the other.
_TOKENS_FIRST = ("_flash_attention_forward", "_efficient_attention_forward")
#: FLOP formulas, by name, for operators that torch's counter lacks or counts as real and dense; some versions of torch
#: lack some of the operators.
_FLOP_FORMULAS: Mapping[str, Formula] = {
    **{
        name: _attention(packet, backward=name.endswith("_backward"), heads_first=forward not in _TOKENS_FIRST)
        for forward in (*_HEADS_FIRST, *_TOKENS_FIRST)
        for name in (forward, f"{forward}_backward")
        if (packet := getattr(_aten, name, None)) is not None
    },
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "vdot", "_sparse_mm", "_int_mm", "_scaled_mm_v2"), _product),
    **dict.fromkeys(
        ("addmm", "baddbmm", "addmv", "_sparse_addmm", "_addmm_activation"), lambda _, a, b, *__, **___: _product(a, b)
    ),
    "addbmm": lambda _, a, b, *__, **___: 2 * a.numel() * b.shape[-1],
    # The distances between all rows of two matrices: a product, whatever the norm.
    **dict.fromkeys(("cdist", "_cdist_forward", "_euclidean_dist"), lambda a, b, *_, **__: 2 * a.numel() * b.shape[-2]),
    "_trilinear": _trilinear,
    "_weight_int8pack_mm": lambda a, b, *_, **__: 2 * a.numel() * b.shape[0],  # b is stored transposed
    # int4 weights in tiles; the scales are [groups, columns, 2].
    **dict.fromkeys(
        ("_weight_int4pack_mm", "_weight_int4pack_mm_for_cpu"),
        lambda a, _packed, _group, scales, *_, **__: 2 * a.numel() * scales.shape[-2],
    ),
    # One direction of an LSTM layer, which reads both matrices for each input; all layers of an LSTM, GRU or RNN.
    "mkldnn_rnn_layer": lambda x, of_input, of_hidden, *_, **__: _linears(x, (of_input, of_hidden)),
    "_cudnn_rnn": lambda x, weights, *_, **__: _linears(x, weights),
    # Self-attention with its projections and nn.TransformerEncoderLayer, which both are one operator in eval mode.
    "_native_multi_head_attention": lambda x, *rest, **__: _linears(x, (rest[4], rest[6])) + _scores(x),
    "_transformer_encoder_layer_fwd": lambda x, *rest, **__: (
        _linears(x, (rest[2], rest[4], rest[13], rest[15])) + _scores(x)
    ),
}
for _formula in _FLOP_FORMULAS.values():
    _formula._get_raw = True  # type: ignore[attr-defined]  # given tensors; torch's counter gives others their shapes


class _NoModules(ModuleTracker):
    """Add no hooks to modules: in inference mode they fail where a module returns a view of a parameter."""

    def __enter__(self) -> ModuleTracker:
        return self

    def __exit__(self, *_: object) -> None:
        return None


@dataclass
class FlopCount:
    """FLOPs by class of operator (matmul, convolution, attention), and by dtype of the operands, without those of 0.

    `uncounted` names the operators of higher order that ran without being counted.
    """

    by_class: dict[str, int] = field(default_factory=dict)
    by_dtype: dict[str, int] = field(default_factory=dict)
    uncounted: set[str] = field(default_factory=set)

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
    is counted as the direct algorithm, of whose FLOPs Winograd needs a fraction. Compiled functions run eagerly, and
    FlexAttention returns zeros: run eagerly, it would hold all scores in memory.
    """
    count = FlopCount()
    extra = {packet: formula for name, formula in _FLOP_FORMULAS.items() if (packet := getattr(_aten, name, None))}
    counter = FlopCounterMode(display=False, custom_mapping=extra)
    counter.mod_tracker = _NoModules()

    def noting(operator: Any, formula: Formula, *args: Any, **kwargs: Any) -> int:
        flops = formula(*args, **kwargs)
        dtype = next((each.dtype for each in args if isinstance(each, Tensor)), None)
        count.add(str(operator), product_dtype(dtype), flops)
        return flops

    registry = counter.flop_registry.items()
    counter.flop_registry = {operator: partial(noting, operator, formula) for operator, formula in registry}
    # Named by its overload, it is not taken apart into what the backend of this device computes.
    whole = _aten.scaled_dot_product_attention
    counter.flop_registry[whole.default] = counter.flop_registry[whole]
    compiles = "torch._dynamo" in sys.modules or "torch.nn.attention.flex_attention" in sys.modules
    with torch.compiler.set_stance("force_eager") if compiles else nullcontext(), counter, _HigherOrder(count):
        yield count


class _HigherOrder(TorchDispatchMode):
    """Runs operators of higher order, of which torch's counter knows `cond` alone and refuses the others."""

    supports_higher_order_operators = True

    def __init__(self, count: FlopCount) -> None:
        super().__init__()
        self._count = count

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not isinstance(func, HigherOrderOperator) or func is torch.ops.higher_order.cond:
            return func(*args, **(kwargs or {}))
        if func is flex_attention:
            query, key, value, _, mask, *_ = args
            flops = 2 * FlexBlocks.of(query, key, mask).pairs * (query.shape[-1] + value.shape[-1])
            self._count.add("attention", product_dtype(query.dtype), flops)
            return _unattended(query, value)
        self._count.uncounted.add(str(func))
        with _disable_current_modes():
            return func(*args, **(kwargs or {}))


def _unattended(query: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return zeros as the output of attention, in the layout of the queries, its logsumexp and its largest scores."""
    order = sorted(range(query.dim()), key=lambda dim: -query.stride(dim))
    shape = (*query.shape[:-1], value.shape[-1])
    output = query.new_zeros([shape[dim] for dim in order]).permute([order.index(dim) for dim in range(query.dim())])
    row = query.new_zeros(query.shape[:-1], dtype=torch.float32)
    return output, row, row


def product_dtype(dtype: torch.dtype | None) -> str:
    """Return the name by which the rate of products of `dtype` is known: one for all float8, of complex its parts."""
    name = str(dtype).removeprefix("torch.")
    if name.startswith("float8"):
        return "float8"
    return str(dtype.to_real()).removeprefix("torch.") if dtype is not None and dtype.is_complex else name
