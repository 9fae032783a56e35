"""What an operator of a trace must move and compute: it is run again with its shapes, on tensors without memory."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from profiling.core.trees import named_tensors
from profiling.core.writes import written_tensors
from profiling.inside.timeline import Operator
from profiling.limits.flops import counted_flops
from profiling.limits.touched import OVERWRITES

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
aten = torch.ops.aten
#: Operators that read of their first argument only as much as comes out.
_PICKS = frozenset({aten.embedding, aten.index_select, aten.index, aten.gather, aten.take})


@dataclass(frozen=True)
class Cost:
    """Bytes read and written, each argument and result once, and FLOPs as `counted_flops` counts; None: not known."""

    bytes: int | None = None
    flops: int | None = None


class OpCosts:
    """Costs of operators, each distinct set of shapes worked out once."""

    def __init__(self) -> None:
        self._known: dict[str, Cost | None] = {}

    def of(self, operator: Operator) -> Cost | None:
        """Return the cost of `operator` with its recorded shapes; None where it cannot be worked out.

        Kernels that inductor generated have their arguments' bytes, each once, and of each no more than an element an
        iteration: one that takes a few rows of a large table does not read the table. Triton kernels from elsewhere
        have none: nothing says what they do with their arguments. Of operators from outside torch the FLOPs are known
        where a formula is registered for them (see `torch.utils.flop_counter`), and no bytes.
        """
        shapes = ("Input Dims", "Input Strides", "Input type", "Concrete Inputs")
        key = f"{operator.name}{[operator.arguments.get(name) for name in shapes]}"
        if key not in self._known:
            self._known[key] = _cost(operator)
        return self._known[key]


def _cost(operator: Operator) -> Cost | None:
    arguments = operator.arguments
    if "Input Dims" not in arguments:
        return None
    if arguments.get("kernel_backend") == "triton":
        return _generated(arguments) if operator.name.startswith("triton_") else None
    namespace, _, name = operator.name.partition("::")
    if namespace != "aten":
        return _registered(namespace, name, arguments)
    packet = getattr(aten, name, None)
    for overload in () if packet is None else packet.overloads():
        cost = _of_overload(getattr(packet, overload), arguments)
        if cost is not None:
            return cost
    return None


def _generated(arguments: Mapping[str, Any]) -> Cost | None:
    """Return the cost of inductor's own kernel; the numbers among its arguments are the lengths of its loops."""
    kinds, values = arguments["Input type"], arguments["Concrete Inputs"]
    lengths = [value for kind, value in zip(kinds, values, strict=True) if kind == "Scalar"]
    if not lengths or not all(length.isdigit() for length in lengths):
        return None  # a template, or one that tells them in another way
    iterations = prod(map(int, lengths))
    tensors = [tensor for place in range(len(kinds)) if (tensor := _tensor(arguments, place)) is not None]
    return Cost(bytes=sum(min(_size(tensor), iterations * tensor.element_size()) for tensor in tensors) or None)


def _registered(namespace: str, name: str, arguments: Mapping[str, Any]) -> Cost | None:
    """Return the FLOPs of an operator from outside torch by its own formula, which takes shapes; None without one."""
    formula = flop_registry.get(getattr(getattr(torch.ops, namespace, None), name, None))
    if formula is None:
        return None
    dims, values = arguments["Input Dims"], arguments["Concrete Inputs"]
    try:
        shapes = [_literal(value) if value else shape for shape, value in zip(dims, values, strict=True)]
        return Cost(flops=formula(*shapes, out_val=None) or None)
    except Exception:  # somebody else's formula: then its cost is not known
        return None


def _of_overload(function: Any, arguments: Mapping[str, Any]) -> Cost | None:
    """Run `function` on the meta device; None where the recorded arguments are not its own, or it cannot run there."""
    schema = function._schema.arguments
    if len(schema) != len(arguments["Input Dims"]):
        return None
    try:
        values = [_value(wanted, arguments, place) for place, wanted in enumerate(schema)]
        positional = [value for wanted, value in zip(schema, values, strict=True) if not wanted.kwarg_only]
        named = {wanted.name: value for wanted, value in zip(schema, values, strict=True) if wanted.kwarg_only}
        with torch.inference_mode(), counted_flops() as flops:
            result = function(*positional, **named)
    except Exception:  # whatever an operator has against these arguments: then its cost is not known
        return None
    total = sum(flops.values())
    return Cost(bytes=_traffic(function, positional, named, result), flops=total or None)


def _traffic(function: Any, positional: Sequence[Any], named: Mapping[str, Any], result: Any) -> int | None:
    given = [tensor for _, tensor in named_tensors((tuple(positional), dict(named)))]
    written = {id(tensor): tensor for tensor in written_tensors(function, tuple(positional), dict(named))}
    made = {id(tensor): tensor for _, tensor in named_tensors(result)} | written
    overwrites = function.overloadpacket in OVERWRITES or "out" in function._schema.overload_name
    read = {id(tensor): tensor for tensor in given if not (overwrites and id(tensor) in written)}
    out = sum(map(_size, made.values()))
    if function.overloadpacket in _PICKS and given:
        read.pop(id(given[0]), None)
        return sum(map(_size, read.values())) + 2 * out
    return sum(map(_size, read.values())) + out


def _value(wanted: Any, arguments: Mapping[str, Any], place: int) -> Any:
    """Return the recorded argument as what the schema wants.

    Raises:
        ValueError: it was not recorded, or is something else.

    """
    kind, recorded = str(wanted.type), arguments["Concrete Inputs"][place]
    if "Tensor" in kind:
        tensor = _tensor(arguments, place)
        if tensor is not None and "List" not in kind:
            return tensor
        if kind.startswith("Optional") and recorded == "":
            return None
        if recorded != "" and arguments["Input type"][place] == "Scalar":
            return torch.tensor(_literal(recorded), device="meta")  # a number where a tensor may stand
        raise ValueError(f"no shape of {wanted.name}")  # of a list of tensors, no types are recorded
    if recorded == "":
        if wanted.has_default_value():
            return wanted.default_value
        if kind.startswith("Optional"):
            return None
        raise ValueError(f"no value of {wanted.name}")
    if "dtype" in wanted.name or "device" in wanted.name or "layout" in wanted.name:
        raise ValueError(f"{wanted.name} is recorded as a number")
    return _literal(recorded)


def _literal(recorded: str) -> Any:
    return ast.literal_eval(recorded)


def _tensor(arguments: Mapping[str, Any], place: int) -> Tensor | None:
    """Return a tensor of the recorded shape, strides and type; None for what is no tensor, a list of them included."""
    kind, shape, strides = (arguments[key][place] for key in ("Input type", "Input Dims", "Input Strides"))
    if kind not in _DTYPES:
        return None
    return torch.empty_strided(shape, strides, dtype=_DTYPES[kind], device="meta")


def _size(tensor: Tensor) -> int:
    """Return the bytes of a tensor's elements, those that an expansion repeats once."""
    elements = 1
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        elements *= length if stride or length == 0 else 1
    return elements * tensor.element_size()
