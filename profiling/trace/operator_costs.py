"""What an operator reads, writes and computes: the rules of the roofline and of kernel attribution.

`accesses_of` gives the bytes that a call of an operator reads and writes, `counted_flops` the FLOPs of the operators
that run inside it. The roofline applies both to a running module (`profiling.roofline.work`). `OperatorCosts` applies
them to operators of a profiler trace, which it runs again on the meta device with their recorded shapes.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode, flop_registry, sdpa_backward_flop_count, sdpa_flop_count
from torch.utils.module_tracker import ModuleTracker

from profiling.components.trees import stored_parts, tensors_in, written_tensors
from profiling.trace.events import Operator

_aten = torch.ops.aten

#: (start, stop, bytes): byte offsets in a storage; `bytes` is less than stop - start where a view skips elements.
Extent = tuple[int, int, int]


def address_of(tensor: Tensor) -> int:
    """Return a number that identifies the tensor's storage; storages on the meta device have one too."""
    storage = tensor.untyped_storage()
    return storage.data_ptr() or storage._cdata


def extent_of(tensor: Tensor) -> Extent:
    """Return the part of its storage that the tensor covers; elements that share memory count once."""
    if tensor.numel() == 0:
        return 0, 0, 0
    size, axes = tensor.element_size(), list(zip(tensor.shape, tensor.stride(), strict=True))
    start = int(tensor.storage_offset()) * size
    elements, last = 1, 0
    for length, stride in axes:
        elements *= length if stride else 1
        last += (length - 1) * stride
    return start, start + (last + 1) * size, min(elements, last + 1) * size


def bytes_of(tensor: Tensor) -> int:
    """Return the bytes of the tensor's elements; elements that share memory count once."""
    return extent_of(tensor)[2]


def distinct_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of all `tensors`; memory that several of them share counts once."""
    by_storage: dict[int, set[Extent]] = {}
    for tensor in tensors:
        by_storage.setdefault(address_of(tensor), set()).add(extent_of(tensor))
    return sum(map(union_bytes, by_storage.values()))


def union_bytes(extents: Iterable[Extent]) -> int:
    """Return the bytes of the union of extents, or the sum of their bytes if that is less (columns of a matrix)."""
    covered, reached, total = 0, 0, 0
    for start, stop, size in sorted(extents):
        covered += max(0, stop - max(start, reached))
        reached = max(reached, stop)
        total += size
    return min(covered, total)


#: Operators that add up rows of their first argument, which are more bytes than they return.
_BAGS = frozenset({_aten.embedding_bag, _aten._embedding_bag, _aten._embedding_bag_forward_only})
#: Operators that read selected rows of their first argument, and the position of the argument with the row indices.
_ROW_INDICES = {_aten.embedding: 1, _aten.index_select: 2, **dict.fromkeys(_BAGS, 1)}
#: Operators that read no more of their first argument than they return.
_SELECTS = frozenset({_aten.embedding, _aten.index_select, _aten.index, _aten.gather, _aten.take, _aten.take_along_dim})
#: In-place operators that write as many elements as their source has, and keep the target's other elements.
_PARTIAL_WRITES = frozenset({_aten.index_copy_, _aten.scatter_, _aten.index_put_})
#: In-place operators that do not read what they overwrite.
_OVERWRITES = _PARTIAL_WRITES | {_aten.copy_, _aten.fill_, _aten.zero_, _aten.set_}


@dataclass(frozen=True)
class Access:
    """A tensor that an operator reads or writes, with an upper bound of the bytes.

    `rows` are the indices of the rows that are read, `row_bytes` the size of one, where the operator selects rows.
    """

    tensor: Tensor
    bytes: int
    rows: Tensor | None = None
    row_bytes: int = 0


def is_custom(func: Any) -> bool:
    """Return whether a library other than torch registered `func`, so that its reads and writes are not known."""
    return func.namespace not in ("aten", "prims")


def accesses_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> tuple[list[Access], ...]:
    """Return (reads, writes) of a call of the OpOverload `func`; both are empty for a view or a query.

    Arguments are read whole, results and in-place arguments are written whole, with these exceptions. An operator that
    selects rows or elements reads as much as it returns. An in-place operator that overwrites reads nothing of its
    target, and may write a part of it (a slot of a ring). Custom operators count by their arguments, read whole; their
    in-place arguments count as overwritten, with at most as many bytes as the other arguments have.
    """
    given = _stored_in((tuple(args), dict(kwargs)))
    written = [part for tensor in written_tensors(func, args, kwargs) for part in stored_parts(tensor)]
    known = {address_of(tensor) for tensor in given}
    fresh = [tensor for tensor in _stored_in(result) if address_of(tensor) not in known]
    if (not written and not fresh) or (not given and "empty" in func._schema.name):
        return [], []
    targets = {id(tensor) for tensor in written}
    overwrites = is_custom(func) or "out" in func._schema.overload_name or func.overloadpacket in _OVERWRITES
    returned = sum(map(bytes_of, fresh))
    reads = [
        _read(func, args, tensor, _selected_bytes(func, args, returned) if position == 0 else None)
        for position, tensor in enumerate(given)
        if not (overwrites and id(tensor) in targets)
    ]
    writes = [
        Access(tensor, size) for tensor, size in zip(written, _most_written(func, written, given, fresh), strict=True)
    ]
    return reads, [*writes, *(Access(tensor, bytes_of(tensor)) for tensor in fresh)]


def _stored_in(tree: Any) -> list[Tensor]:
    return [part for tensor in tensors_in(tree) for part in stored_parts(tensor)]


def _selected_bytes(func: Any, args: Sequence[Any], returned: int) -> int | None:
    """Return the most bytes that `func` reads of its first argument; None if it reads all of it."""
    if func.overloadpacket in _BAGS:
        return args[1].numel() * _row_bytes(args[0], 0)
    return returned if func.overloadpacket in _SELECTS else None


def _row_bytes(tensor: Tensor, dim: int) -> int:
    return bytes_of(tensor) // max(1, tensor.shape[dim])


def _read(func: Any, args: Sequence[Any], tensor: Tensor, selected_bytes: int | None) -> Access:
    size = bytes_of(tensor)
    if selected_bytes is None:
        return Access(tensor, size)
    rows, row_bytes = None, 0
    if func.overloadpacket in _ROW_INDICES:
        rows = args[_ROW_INDICES[func.overloadpacket]]
        row_bytes = _row_bytes(tensor, args[1] if func.overloadpacket is _aten.index_select else 0)
    return Access(tensor, min(size, selected_bytes), rows, row_bytes)


def _most_written(func: Any, written: Sequence[Tensor], given: Sequence[Tensor], fresh: Sequence[Tensor]) -> list[int]:
    """Return for each of `written` an upper bound of the bytes that `func` changes.

    A custom operator is assumed to write and return at most as many bytes as its other arguments have, counting those
    of the written tensor's dtype. An operator that fills a tensor with generated values exceeds this bound.
    """
    targets = {id(tensor) for tensor in written}
    others = [tensor for tensor in given if id(tensor) not in targets]
    if func.overloadpacket in _PARTIAL_WRITES and others:
        elements = max(tensor.numel() for tensor in others)
        return [min(bytes_of(tensor), elements * tensor.element_size()) for tensor in written]
    if not is_custom(func) or not others:
        return [bytes_of(tensor) for tensor in written]
    most: dict[int, int] = {}
    for dtype in {tensor.dtype for tensor in written}:
        left = sum(bytes_of(tensor) for tensor in others if tensor.dtype == dtype)
        left -= sum(bytes_of(tensor) for tensor in fresh if tensor.dtype == dtype)
        left = left if left > 0 else sum(map(bytes_of, others))
        ascending = sorted((tensor for tensor in written if tensor.dtype == dtype), key=bytes_of)
        for position, tensor in enumerate(ascending):  # equal parts; what a small tensor cannot hold goes on
            most[id(tensor)] = min(bytes_of(tensor), left // (len(ascending) - position))
            left -= most[id(tensor)]
    return [most[id(tensor)] for tensor in written]


#: Class of the FLOPs of products of 8-bit numbers, whose rate differs from that of the run's dtype.
EIGHT_BIT = "8-bit matmul"
#: A part of the name of an operator that multiplies matrices of float8, or of int8.
_EIGHT_BIT_PRODUCTS = ("_scaled_mm", "_int_mm")
#: Classes of other FLOPs by a part of the operator's name; the first that matches counts.
_FLOP_CLASSES = {"attention": "atten", "convolution": "conv", "matmul": ""}


def multiplies_8_bits(operator: str) -> bool:
    """Return whether the operator of this name multiplies matrices of 8-bit numbers."""
    return any(part in operator for part in _EIGHT_BIT_PRODUCTS)


def _flop_class(operator: str) -> str:
    if multiplies_8_bits(operator):
        return EIGHT_BIT
    return next(name for name, part in _FLOP_CLASSES.items() if part in operator)


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
    **dict.fromkeys(("mm", "bmm", "mv", "_sparse_mm", "_int_mm", "_scaled_mm_v2"), _product),
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


@contextmanager
def counted_flops() -> Iterator[dict[str, int]]:
    """Count FLOPs inside the block; at its end the yielded mapping holds FLOPs by class, without classes of none.

    A multiply-add counts as two. Matrix products, convolutions and attention are counted. Elementwise operators,
    reductions and custom operators without a registered formula are not, so the count is a lower bound. A convolution
    is counted as the direct algorithm, of whose FLOPs Winograd needs a fraction.
    """
    by_class: dict[str, int] = {}
    extra = {packet: formula for name, formula in _FLOP_FORMULAS.items() if (packet := getattr(_aten, name, None))}
    counter = FlopCounterMode(display=False, custom_mapping=extra)
    counter.mod_tracker = _NoModules()
    with counter:
        yield by_class
    for operator, flops in counter.get_flop_counts().get("Global", {}).items():
        name = _flop_class(str(operator))
        by_class[name] = by_class.get(name, 0) + flops


@dataclass(frozen=True)
class Cost:
    """Bytes that an operator reads and writes, and its FLOPs; None where that cannot be known."""

    bytes: int | None = None
    flops: int | None = None


class OperatorCosts:
    """Costs of operators in a trace; the cost of each operator and set of shapes is computed once."""

    def __init__(self) -> None:
        self._known: dict[str, Cost] = {}

    def of(self, operator: Operator) -> Cost:
        """Return the cost of `operator` with its recorded shapes.

        A kernel that inductor generated is assumed to read and write each argument once, and at most one element of it
        per iteration: a kernel that gathers a few rows of a large table does not read the whole table. Other Triton
        kernels have no known cost. A custom operator has the FLOPs of its registered formula
        (`torch.utils.flop_counter`) and no known bytes.
        """
        shapes = ("Input Dims", "Input Strides", "Input type", "Concrete Inputs")
        key = f"{operator.name}{[operator.arguments.get(name) for name in shapes]}"
        if key not in self._known:
            self._known[key] = _cost_of(operator) or Cost()
        return self._known[key]


def _cost_of(operator: Operator) -> Cost | None:
    arguments = operator.arguments
    if "Input Dims" not in arguments:
        return None
    if arguments.get("kernel_backend") == "triton":
        return _cost_of_generated(operator.name, arguments) if operator.name.startswith("triton_") else None
    namespace, _, name = operator.name.partition("::")
    if namespace != "aten":
        return _cost_by_formula(namespace, name, arguments)
    packet = getattr(_aten, name, None)
    overloads = () if packet is None else (getattr(packet, overload) for overload in packet.overloads())
    return next((cost for overload in overloads if (cost := _cost_of_overload(overload, arguments)) is not None), None)


def _cost_of_generated(name: str, arguments: Mapping[str, Any]) -> Cost | None:
    """Return the cost of a kernel that inductor generated: its numeric arguments are the lengths of its loops.

    A pointwise kernel writes an element per iteration. Inductor passes what it updates in place first and what it only
    writes last: where the last tensor is too small for the result, the first is both read and written.
    """
    types, values = arguments["Input type"], arguments["Concrete Inputs"]
    lengths = [value for kind, value in zip(types, values, strict=True) if kind == "Scalar"]
    if not lengths or not all(length.isdigit() for length in lengths):
        return None  # a template (a matrix product, for example) has no loop lengths
    iterations = prod(map(int, lengths))
    tensors = [tensor for place in range(len(types)) if (tensor := _meta_tensor(arguments, place)) is not None]
    passes = [min(bytes_of(tensor), iterations * tensor.element_size()) for tensor in tensors]
    if name.startswith("triton_poi") and len(tensors) > 1 and tensors[-1].numel() < iterations <= tensors[0].numel():
        passes.append(passes[0])
    return Cost(bytes=sum(passes) or None)


def _cost_by_formula(namespace: str, name: str, arguments: Mapping[str, Any]) -> Cost | None:
    formula = flop_registry.get(getattr(getattr(torch.ops, namespace, None), name, None))
    if formula is None:
        return None
    dims, values = arguments["Input Dims"], arguments["Concrete Inputs"]
    try:
        shapes = [ast.literal_eval(value) if value else shape for shape, value in zip(dims, values, strict=True)]
        return Cost(flops=formula(*shapes, out_val=None) or None)
    except Exception:  # the formula is the user's and may raise anything
        return None


def _cost_of_overload(func: Any, arguments: Mapping[str, Any]) -> Cost | None:
    """Run `func` on the meta device; None where the recorded arguments do not fit its schema or it cannot run there."""
    schema = func._schema.arguments
    if len(schema) != len(arguments["Input Dims"]):
        return None
    try:
        values = [_argument(wanted, arguments, place) for place, wanted in enumerate(schema)]
        args = tuple(value for wanted, value in zip(schema, values, strict=True) if not wanted.kwarg_only)
        kwargs = {wanted.name: value for wanted, value in zip(schema, values, strict=True) if wanted.kwarg_only}
        with torch.inference_mode(), counted_flops() as flops:
            result = func(*args, **kwargs)
        reads, writes = accesses_of(func, args, kwargs, result)
    except Exception:  # an operator may reject meta tensors or these arguments with any error
        return None
    moved = sum(access.bytes for access in (*reads, *writes))
    return Cost(bytes=moved or None, flops=sum(flops.values()) or None)


def _argument(wanted: Any, arguments: Mapping[str, Any], place: int) -> Any:
    """Return the recorded argument, converted to the type in the schema.

    Raises:
        ValueError: it was not recorded, or has another type.

    """
    kind, recorded = str(wanted.type), arguments["Concrete Inputs"][place]
    if "Tensor" in kind:
        tensor = _meta_tensor(arguments, place)
        if tensor is not None and "List" not in kind:
            return tensor
        if kind.startswith("Optional") and recorded == "":
            return None
        if recorded != "" and arguments["Input type"][place] == "Scalar":
            return torch.tensor(ast.literal_eval(recorded), device="meta")  # a number in place of a tensor
        raise ValueError(f"no shape of {wanted.name}")  # the profiler records no types for a list of tensors
    if recorded == "":
        if wanted.has_default_value():
            return wanted.default_value
        if kind.startswith("Optional"):
            return None
        raise ValueError(f"no value of {wanted.name}")
    if "dtype" in wanted.name:
        return _dtype_numbered(int(recorded))
    if "device" in wanted.name or "layout" in wanted.name:
        raise ValueError(f"{wanted.name} is recorded as a number")
    return ast.literal_eval(recorded)


#: Names of dtypes in a trace.
_DTYPES = {
    "c10::BFloat16": torch.bfloat16,
    "c10::Half": torch.float16,
    "float": torch.float32,
    "double": torch.float64,
    "c10::Float8_e4m3fn": torch.float8_e4m3fn,
    "c10::Float8_e5m2": torch.float8_e5m2,
    "long int": torch.int64,
    "long": torch.int64,
    "int": torch.int32,
    "short int": torch.int16,
    "short": torch.int16,
    "signed char": torch.int8,
    "unsigned char": torch.uint8,
    "bool": torch.bool,
    "c10::complex<float>": torch.complex64,
    "c10::complex<double>": torch.complex128,
}


#: dtypes by their number in a trace (c10::ScalarType).
_NUMBERED = {
    **{0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64, 5: torch.float16},
    **{
        6: torch.float32,
        7: torch.float64,
        9: torch.complex64,
        10: torch.complex128,
        11: torch.bool,
        15: torch.bfloat16,
    },
}


def _dtype_numbered(number: int) -> torch.dtype:
    if number not in _NUMBERED:
        raise ValueError(f"the dtype of number {number} is not known")
    return _NUMBERED[number]


def tensors_of(operator: Operator) -> tuple[Tensor, ...]:
    """Return the tensors among the operator's arguments, on the meta device; empty without recorded shapes."""
    count = len(operator.arguments.get("Input Dims", ()))
    found = (_meta_tensor(operator.arguments, place) for place in range(count))
    return tuple(tensor for tensor in found if tensor is not None)


def _meta_tensor(arguments: Mapping[str, Any], place: int) -> Tensor | None:
    """Return a tensor of the recorded shape, strides and dtype; None for anything else, lists of tensors included."""
    kind, shape, strides = (arguments[key][place] for key in ("Input type", "Input Dims", "Input Strides"))
    if kind not in _DTYPES:
        return None
    return torch.empty_strided(shape, strides, dtype=_DTYPES[kind], device="meta")
