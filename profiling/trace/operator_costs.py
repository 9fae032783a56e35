"""What an operator of a trace must move and compute: it is run again with its shapes, on tensors without memory."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from profiling.components.trees import named_tensors, written_tensors
from profiling.trace.events import Operator

#: (start, stop, bytes) in a storage; fewer bytes than lie between the two where the tensor leaves some out.
Extent = tuple[int, int, int]


def address_of(tensor: Tensor) -> int:
    """Return what tells the tensor's storage from others."""
    return tensor.untyped_storage().data_ptr()


def extent_of(tensor: Tensor) -> Extent:
    """Return where the tensor lies in its storage; elements that lie on one another count once."""
    if tensor.numel() == 0:
        return 0, 0, 0
    size, axes = tensor.element_size(), list(zip(tensor.shape, tensor.stride(), strict=True))
    start = int(tensor.storage_offset()) * size
    elements, last = 1, 0
    for length, stride in axes:
        elements *= length if stride else 1
        last += (length - 1) * stride
    return start, start + (last + 1) * size, min(elements, last + 1) * size


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of `tensors`, those that lie in one storage counted again for each."""
    return sum(extent_of(tensor)[2] for tensor in tensors)


def distinct_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of `tensors`, those that lie in one storage counted once."""
    by_storage: dict[int, set[Extent]] = {}
    for tensor in tensors:
        by_storage.setdefault(address_of(tensor), set()).add(extent_of(tensor))
    return sum(map(united, by_storage.values()))


def united(extents: Iterable[Extent]) -> int:
    """Return how many bytes the extents cover, or hold by themselves where that is less (a column of a matrix)."""
    covered, reached, held = 0, 0, 0
    for start, stop, size in sorted(extents):
        covered += max(0, stop - max(start, reached))
        reached = max(reached, stop)
        held += size
    return min(covered, held)


aten = torch.ops.aten
#: Operators of torch that write as many elements as they are given, and leave the others as they were.
_PARTLY = frozenset({aten.index_copy_, aten.scatter_, aten.index_put_})


def most_written(func: Any, written: Sequence[Tensor], given: Sequence[Tensor], made: Sequence[Tensor]) -> list[int]:
    """Return for each of `written` how many bytes the operator `func` changes at most.

    `given` are all its tensors, `made` what it returns. Nobody says what an operator from outside torch does: it is
    taken to make no more than it is given. Of its other arguments, those of the written tensor's dtype are what it
    writes and what it returns, each byte once. That is a bound from above where it passes some of them over (and one
    that fills a tensor with what it was not given writes more).
    """
    targets = {id(tensor) for tensor in written}
    others = [tensor for tensor in given if id(tensor) not in targets]
    if func.overloadpacket in _PARTLY and others:
        elements = max(tensor.numel() for tensor in others)
        return [min(extent_of(tensor)[2], elements * tensor.element_size()) for tensor in written]
    if func.namespace in ("aten", "prims") or not others:
        return [extent_of(tensor)[2] for tensor in written]
    known = {address_of(tensor) for tensor in given}
    fresh = [tensor for tensor in made if address_of(tensor) not in known]
    most: dict[int, int] = {}
    for dtype in {tensor.dtype for tensor in written}:
        same = [tensor for tensor in others if tensor.dtype == dtype]
        left = bytes_of(same) - bytes_of(tensor for tensor in fresh if tensor.dtype == dtype)
        left = left if left > 0 else bytes_of(others)
        wanting = sorted((tensor for tensor in written if tensor.dtype == dtype), key=lambda item: extent_of(item)[2])
        for place, tensor in enumerate(wanting):  # alike, but for what a small one cannot take
            most[id(tensor)] = min(extent_of(tensor)[2], left // (len(wanting) - place))
            left -= most[id(tensor)]
    return [most[id(tensor)] for tensor in written]


aten = torch.ops.aten
#: Operators that take rows by number: of their first argument, by their second or third, only those rows are read.
_ROWS = {aten.embedding: 1, aten.index_select: 2}
#: Operators of which only as much of the first argument is read as comes out.
_PICKS = frozenset({aten.index, aten.gather, aten.take})
#: In-place operators that do not look at what was there before.
OVERWRITES = frozenset(
    {aten.copy_, aten.fill_, aten.zero_, aten.index_copy_, aten.scatter_, aten.index_put_, aten.set_}
)


@dataclass
class _Storage:
    """What was touched of one storage: stretches of it, rows by the view they belong to, picks."""

    kind: str
    read: set[Extent] = field(default_factory=set)
    written: dict[Extent, int] = field(default_factory=dict)
    rows: dict[Extent, list[Tensor]] = field(default_factory=dict)
    row_bytes: dict[Extent, int] = field(default_factory=dict)
    picks: dict[Extent, int] = field(default_factory=dict)

    def bytes_read(self) -> int:
        partly = 0
        for stretch in {*self.rows, *self.picks} - self.read:
            wanted = self.picks.get(stretch, 0)
            if stretch in self.rows:
                wanted += int(torch.unique(torch.cat(self.rows[stretch])).numel()) * self.row_bytes[stretch]
            partly += min(stretch[2], wanted)
        return united(self.read) + partly

    def bytes_written(self) -> int:
        return min(united(self.written), sum(self.written.values()))


class Touched(TorchDispatchMode):
    """Notes, while it is entered, what operators touch of the tensors that it was given.

    Embeddings and `index_select` count the distinct rows that they take. An in-place operator that overwrites reads
    nothing, and may write a part: of a ring it changes a slot (`most_written`). Operators from outside torch count by
    their arguments, in whole, and their in-place ones as overwriting.
    Besides, `operators` counts those that did more than make a view, and `traffic` all that they read and wrote, in
    bytes: what the memory bus carries when every operator runs by itself. `foreign` holds those from outside torch.
    """

    def __init__(self, kinds: Mapping[str, Iterable[Tensor]]) -> None:
        super().__init__()
        self.storages: dict[int, _Storage] = {}
        self.operators, self.traffic = 0, 0
        self.foreign: set[Any] = set()
        for kind, tensors in kinds.items():
            for tensor in tensors:
                self.storages.setdefault(address_of(tensor), _Storage(kind))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if isinstance(func, torch._ops.OpOverload):
            self._note(func, args, kwargs, result)
        return result

    def bytes_by(self, kind: str) -> tuple[int, int]:
        """Return (read, written) of the tensors given as `kind`."""
        mine = [storage for storage in self.storages.values() if storage.kind == kind]
        return sum(storage.bytes_read() for storage in mine), sum(storage.bytes_written() for storage in mine)

    def _note(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        given = [tensor for _, tensor in named_tensors((args, kwargs))]
        made = [tensor for _, tensor in named_tensors(result)]
        written = list(written_tensors(func, args, kwargs))
        mine = {address_of(tensor) for tensor in given}
        if not written and (not made or all(address_of(tensor) in mine for tensor in made)):
            return  # a view, or a question about a tensor
        if not given and "empty" in func._schema.name:
            return
        foreign = func.namespace not in ("aten", "prims")
        if foreign:
            self.foreign.add(func)
        self.operators += 1
        self.traffic += bytes_of((*given, *made))
        targets = {id(tensor) for tensor in written}
        out = "out" in func._schema.overload_name
        overwrites = foreign or out or func.overloadpacket in OVERWRITES
        for place, tensor in enumerate(given):
            if id(tensor) not in targets or not overwrites:
                self._read(func, args, place, tensor, bytes_of(made))
        for tensor, most in zip(written, most_written(func, written, given, made), strict=True):
            if (storage := self.storages.get(address_of(tensor))) is not None:
                stretch = extent_of(tensor)
                storage.written[stretch] = min(stretch[2], storage.written.get(stretch, 0) + most)

    def _read(self, func: Any, args: Any, place: int, tensor: Tensor, made: int) -> None:
        storage = self.storages.get(address_of(tensor))
        if storage is None:
            return
        stretch = extent_of(tensor)
        if place == 0 and func.overloadpacket in _ROWS:
            numbers = args[_ROWS[func.overloadpacket]]
            axis = 0 if func.overloadpacket is aten.embedding else args[1]
            storage.rows.setdefault(stretch, []).append(numbers.detach().clone().flatten())
            storage.row_bytes[stretch] = stretch[2] // max(1, tensor.shape[axis])
        elif place == 0 and func.overloadpacket in _PICKS:
            storage.picks[stretch] = max(storage.picks.get(stretch, 0), made)
        elif stretch[2]:
            storage.read.add(stretch)


#: Classes by what an operator's name holds, the first that fits.
CLASSES = {"attention": "atten", "convolution": "conv", "matmul": ""}


def _attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return sdpa_flop_count(query, key, value)


def _attention_backward(gradient: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return sdpa_backward_flop_count(gradient, query, key, value)


def _mv(matrix: Any, *_: Any, **__: Any) -> int:
    return 2 * matrix[0] * matrix[1]


def _addmv(_bias: Any, matrix: Any, *_: Any, **__: Any) -> int:
    return 2 * matrix[0] * matrix[1]


#: Operators that torch's counter passes over, by name; not every version of torch has each of them.
_MORE = {
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_fused_attention_overrideable": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "_scaled_dot_product_fused_attention_overrideable_backward": _attention_backward,
    "mv": _mv,
    "addmv": _addmv,
}


@contextmanager
def counted_flops() -> Iterator[dict[str, int]]:
    """Count inside; the yielded mapping is filled at the end: FLOPs by class, classes that do not occur left out.

    A multiplication with its addition counts as two. Products, convolutions and attention are counted; elementwise
    work and reductions are not, nor operators from outside torch that registered no formula: a lower bound. A
    convolution counts as the plain algorithm's, of which Winograd's needs a fraction.
    """
    found: dict[str, int] = {}
    extra = {packet: formula for name, formula in _MORE.items() if (packet := getattr(torch.ops.aten, name, None))}
    with FlopCounterMode(display=False, custom_mapping=extra) as counter:
        yield found
    found |= by_class(counter.get_flop_counts().get("Global", {}))


def by_class(counts: Mapping[Any, int]) -> dict[str, int]:
    """Add up counts by operator into counts by class."""
    found: dict[str, int] = {}
    for operator, flops in counts.items():
        kind = next(kind for kind, part in CLASSES.items() if part in str(operator))
        found[kind] = found.get(kind, 0) + flops
    return found


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
_PICKS_of_op_cost = frozenset({aten.embedding, aten.index_select, aten.index, aten.gather, aten.take})


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
    if function.overloadpacket in _PICKS_of_op_cost and given:
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
