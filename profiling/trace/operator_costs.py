"""The bytes that an operator reads and writes, and the cost of an operator in a trace.

`accesses_of` gives the bytes of a call. The roofline applies it, and the FLOPs of `profiling.trace.flops`, to a running
module (`profiling.roofline.work`). `OperatorCosts` applies both to operators of a profiler trace, which it runs again
on the meta device with their recorded shapes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from profiling.components.trees import stored_parts, tensors_in, written_tensors
from profiling.trace.events import Operator
from profiling.trace.flops import FlexBlocks, counted_flops, product_dtype

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
_SELECTS = frozenset(
    {
        *(_aten.embedding, _aten.index_select, _aten.index, _aten.gather, _aten.take, _aten.take_along_dim),
        *(_aten.upsample_nearest1d, _aten.upsample_nearest2d, _aten.upsample_nearest3d),
        *(_aten._upsample_nearest_exact1d, _aten._upsample_nearest_exact2d, _aten._upsample_nearest_exact3d),
    }
)
#: Operators of `grid_sample`, which read a few elements of their first argument for each one that they return.
_SAMPLERS = frozenset({_aten.grid_sampler, _aten.grid_sampler_2d, _aten.grid_sampler_3d, _aten.cudnn_grid_sampler})
#: In-place operators that write as many elements as their source has, and keep the target's other elements.
_PARTIAL_WRITES = frozenset({_aten.index_copy_, _aten.scatter_, _aten.index_put_, _aten.index_fill_})
#: The same, of operators that add to (or multiply, or compare with) what is there, and read as much as they write.
_PARTIAL_UPDATES = frozenset({_aten.index_add_, _aten.scatter_add_, _aten.scatter_reduce_, _aten.index_reduce_})
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
    writes = list(map(Access, written, _most_written(func, written, given, fresh)))
    updates = func.overloadpacket in _PARTIAL_UPDATES
    reads = [
        Access(tensor, bytes_of(tensor)) if position else _read_of_first(func, args, tensor, returned)
        for position, tensor in enumerate(given)
        if not ((overwrites or updates) and id(tensor) in targets)
    ]
    reads += writes if updates else []
    return reads, [*writes, *(Access(tensor, bytes_of(tensor)) for tensor in fresh)]


def flex_accesses(args: Sequence[Any], output: Tensor) -> tuple[list[Access], ...]:
    """Return (reads, writes) of a FlexAttention call: of keys and values those in blocks that are not masked."""
    query, key, value, _, mask = args[:5]
    part = FlexBlocks.of(query, key, mask).keys
    given = [Access(tensor, bytes_of(tensor)) for tensor in (query, *tensors_in((mask, *args[7:])))]
    given += [Access(tensor, round(part * bytes_of(tensor))) for tensor in (key, value)]
    return given, [Access(output, bytes_of(output))]


def _stored_in(tree: Any) -> list[Tensor]:
    return [part for tensor in tensors_in(tree) for part in stored_parts(tensor)]


def _read_of_first(func: Any, args: Sequence[Any], tensor: Tensor, returned: int) -> Access:
    """Return the access of `func` to its first argument, of which it may read selected rows or elements."""
    packet, size = func.overloadpacket, bytes_of(tensor)
    if packet in _SAMPLERS:
        linear, nearest, cubic = 2 ** (args[0].dim() - 2), 1, 16  # in the order of the argument interpolation_mode
        return Access(tensor, min(size, returned * (linear, nearest, cubic)[args[2] if len(args) > 2 else 0]))
    if packet not in _SELECTS | _BAGS:
        return Access(tensor, size)
    if packet not in _ROW_INDICES:
        return Access(tensor, min(size, returned))
    rows = args[_ROW_INDICES[packet]]
    row_bytes = size // max(1, tensor.shape[args[1] if packet is _aten.index_select else 0])
    return Access(tensor, min(size, rows.numel() * row_bytes if packet in _BAGS else returned), rows, row_bytes)


def _most_written(func: Any, written: Sequence[Tensor], given: Sequence[Tensor], fresh: Sequence[Tensor]) -> list[int]:
    """Return for each of `written` an upper bound of the bytes that `func` changes.

    A custom operator is assumed to write and return at most as many bytes as its other arguments have, counting those
    of the written tensor's dtype. An operator that fills a tensor with generated values exceeds this bound.
    """
    targets = {id(tensor) for tensor in written}
    others = [tensor for tensor in given if id(tensor) not in targets]
    if func.overloadpacket in _PARTIAL_WRITES | _PARTIAL_UPDATES and others:
        elements = max(tensor.numel() for tensor in others)
        return [min(bytes_of(tensor), elements * tensor.element_size()) for tensor in written]
    most = {id(tensor): bytes_of(tensor) for tensor in written}
    for dtype in {tensor.dtype for tensor in written} if is_custom(func) and others else ():
        room = sum(bytes_of(tensor) for tensor in others if tensor.dtype == dtype)
        room -= sum(bytes_of(tensor) for tensor in fresh if tensor.dtype == dtype)
        room = room if room > 0 else sum(map(bytes_of, others))
        ascending = sorted((tensor for tensor in written if tensor.dtype == dtype), key=bytes_of)
        for position, tensor in enumerate(ascending):  # equal parts; what a small tensor cannot hold goes on
            most[id(tensor)] = min(most[id(tensor)], room // (len(ascending) - position))
            room -= most[id(tensor)]
    return [most[id(tensor)] for tensor in written]


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
    return Cost(bytes=moved or None, flops=flops.total or None)


def _argument(wanted: Any, arguments: Mapping[str, Any], place: int) -> Any:
    """Return the recorded argument, converted to the type in the schema.

    Raises:
        ValueError: it was not recorded, or has another type.
        KeyError: the dtype of that number is not known.

    """
    kind, recorded, given = str(wanted.type), arguments["Concrete Inputs"][place], arguments["Input type"][place]
    tensor = _meta_tensor(arguments, place) if "Tensor" in kind and "List" not in kind else None
    if tensor is not None:
        return tensor
    if recorded == "" and (wanted.has_default_value() or kind.startswith("Optional")):
        return wanted.default_value if wanted.has_default_value() else None
    # The profiler records no types for a list of tensors, and devices and layouts as numbers.
    if recorded == "" or ("Tensor" in kind and given != "Scalar") or "device" in wanted.name or "layout" in wanted.name:
        raise ValueError(f"{wanted.name} was not recorded")
    value = ast.literal_eval(recorded)
    if "dtype" in wanted.name:
        return _NUMBERED[value]
    return torch.tensor(value, device="meta") if "Tensor" in kind else value  # a number in place of a tensor


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
    **dict(enumerate((torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32))),
    **{7: torch.float64, 9: torch.complex64, 10: torch.complex128, 11: torch.bool, 15: torch.bfloat16},
}


def product_dtype_of(arguments: Mapping[str, Any]) -> str | None:
    """Return the name of the dtype of an operator's first tensor, as `product_dtype` does; None where there is none."""
    kinds = (_DTYPES[kind] for kind in arguments.get("Input type", ()) if kind in _DTYPES)
    return next((product_dtype(dtype) for dtype in kinds), None)


def only_dtype(arguments: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the dtype that `product_dtype_of` finds for all of these operators; None where it is not the same."""
    found = {product_dtype_of(each) for each in arguments}
    return found.pop() if len(found) == 1 else None


def recorded_tensors(arguments: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """Return the tensors among an operator's arguments, on the meta device; empty without recorded shapes."""
    found = (_meta_tensor(arguments, place) for place in range(len(arguments.get("Input Dims", ()))))
    return tuple(tensor for tensor in found if tensor is not None)


def _meta_tensor(arguments: Mapping[str, Any], place: int) -> Tensor | None:
    """Return a tensor of the recorded shape, strides and dtype; None for anything else, lists of tensors included."""
    kind, shape, strides = (arguments[key][place] for key in ("Input type", "Input Dims", "Input Strides"))
    if kind not in _DTYPES:
        return None
    return torch.empty_strided(shape, strides, dtype=_DTYPES[kind], device="meta")
