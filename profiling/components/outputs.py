"""Outputs of a call, copied to host memory as leaves by path, and the comparison of two outputs leaf by leaf."""

from __future__ import annotations

import math
import pickle
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, ValuesView
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from os import SEEK_END
from tempfile import SpooledTemporaryFile
from types import ModuleType
from typing import Any, Literal, TypeVar

import numpy
import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d, avg_pool2d
from torch.utils._pytree import GetAttrKey

from profiling.components.snapshot import bits
from profiling.components.trees import opened
from profiling.machine.memory import free_bytes

#: A sparse tensor with more elements is not made dense, which would take more than 2 GiB in float64.
MOST_DENSE = 2**28
#: Most bytes of the outputs of many calls that are kept in host memory.
IN_MEMORY = 2**28
#: Integers this narrow are samples (pixels, PCM sound), whose distance counts; wider ones and bools are equal or not.
SAMPLES = (torch.uint8, torch.int8, torch.int16, torch.uint16)
#: Elements compared at a time: few enough for one thread and its caches.
_PART = 2**15
#: Local damage is looked for in tiles of so many pixels squared, and in blocks of so many samples: 16 ms at 48 kHz.
TILE, BLOCK = 16, 768
#: A slice of fewer elements is no part of its own.
_LEAST_PART = 4
#: Least RMS of a slice, of that of the whole, from which an error is held against the slice's own; 8 roundings if more.
_LEAST_RMS = 4e-6
_NO_PARTS = (0.0, "", 0.0, "")
#: A tensor with more elements is compared part by part in float32, not in float64.
_EXACT = 2**24
#: A tensor of a GPU is compared there: on the host each of the cells that are prepared at the same time would use all
#: cores, whose threads wait for each other (16 cores beside an H200: 10 s, not 0.2 s). One with more than so many
#: elements only where its copies in float64 take at most a share of what is free, which others may need, too.
_ON_DEVICE, _COPIES, _SHARE_OF_FREE = 2**22, 6, 1 / 8
#: Below this norm squares lose digits in float64, so that values are scaled first.
_LEAST_NORM = 1e-140

T = TypeVar("T")
Kind = Literal["floating", "complex", "exact", "container", "constant"]
#: The name of what was copied ("output", "inputs"), then the keys that lead to a leaf.
Path = tuple[str, *tuple[Hashable, ...]]


@dataclass(frozen=True)
class Leaf:
    """What lies at a path: a container without its content, a tensor or number in host memory, or another value.

    `form` is its type in words, for a tensor with dtype, shape, layout and device. A right output has equal forms and
    constants. `numbers` are dense; None for what has none. `problem` says why the leaf cannot be compared. `device` is
    where a dense tensor was before it was copied.
    """

    kind: Kind
    form: str
    shape: tuple[Any, ...] = ()
    dtype: str = ""
    numbers: Tensor | None = None
    constant: Any = None
    problem: str | None = None
    device: torch.device | None = None


Outputs = Mapping[Path, Leaf]


class OutputLog:
    """The outputs of many calls, read one at a time, in their order.

    Host memory holds `IN_MEMORY` bytes of them; of more, all tensors lie in a temporary file (TMPDIR).
    """

    def __init__(self) -> None:
        self._leaves: list[Outputs] = []  # without their tensors
        self._file = SpooledTemporaryFile(max_size=IN_MEMORY)  # noqa: SIM115 - it lives as long as this object
        weakref.finalize(self, self._file.close)

    def __len__(self) -> int:
        """Return the number of outputs."""
        return len(self._leaves)

    def __iter__(self) -> Iterator[Outputs]:
        """Yield each output; several iterations may be under way at a time."""
        place = 0
        for leaves in self._leaves:
            self._file.seek(place)
            packed = pickle.load(self._file).items()
            numbers = {path: torch.from_numpy(data).view(dtype).view(shape) for path, (data, dtype, shape) in packed}
            place = self._file.tell()
            yield {path: replace(leaf, numbers=numbers.get(path)) for path, leaf in leaves.items()}

    def append(self, outputs: Outputs) -> None:
        """Add the outputs of a call."""
        numbers = ((path, leaf.numbers) for path, leaf in outputs.items() if leaf.numbers is not None)
        self._file.seek(0, SEEK_END)  # bytes, dtype and shape: pickle knows no tensors of 8-bit floats
        pickle.dump({path: (bits(each).numpy(), each.dtype, each.shape) for path, each in numbers}, self._file)
        self._leaves.append({path: replace(leaf, numbers=None) for path, leaf in outputs.items()})


#: Errors of an output as a whole, of its worst part, and of its worst slice over that slice's own RMS.
Errors = tuple[float, float, float]
NO_ERROR: Errors = (0.0, 0.0, 0.0)


@dataclass(frozen=True)
class LeafError:
    """The distance of a tensor or number from its reference.

    `error` is the relative L2 error; of an integer or bool leaf (`exact`), the fraction of elements that differ. Where
    it is inf, `fault` says why. `max_abs` is the largest absolute difference. `local` is the RMS error of the worst
    part (a slice along a dimension, a tile of a picture, a block of sound) over the RMS of the whole reference, and
    `place` is that part in words. `of_own` is the largest RMS error of a slice over its own RMS, and `own_place` that
    slice: a channel of small numbers may be all wrong, and move the whole by little.
    """

    path: Path
    leaf: Leaf  # without its numbers
    count: int  # of its elements
    error: float
    max_abs: float
    fault: str | None = None
    local: float = 0.0
    place: str = ""
    of_own: float = 0.0
    own_place: str = ""

    @property
    def errors(self) -> Errors:
        """Errors of the whole, of the worst part, and of the worst slice over its own RMS."""
        return self.error, self.local, self.of_own

    @property
    def rounding(self) -> float:
        """Largest relative error of one rounding to its dtype: eps / 2; 0 for integers and bools."""
        dtype = getattr(torch, self.leaf.dtype, None)
        is_real = isinstance(dtype, torch.dtype) and (dtype.is_floating_point or dtype.is_complex)
        return torch.finfo(dtype).eps / 2 if is_real and dtype is not None else 0.0

    @property
    def exact(self) -> bool:
        """Whether the elements are integers or bools, which are equal or not."""
        return self.leaf.kind == "exact"

    def __str__(self) -> str:
        """Return `output['a'] (float32 [4, 8] on cpu)`."""
        return f"{readable(self.path)} ({self.leaf.form})"


@dataclass(frozen=True)
class Difference:
    """The largest error of any leaf; inf where `fault` names a leaf that has another form, or is missing."""

    error: float
    fault: str | None = None


def readable(path: Path) -> str:
    """Return a path as Python code: `output['a'][0].left`."""
    return "".join(map(str, path))


def to_host(**trees: Any) -> Outputs:
    """Copy all leaves of the trees to host memory; each path begins with the tree's name."""
    return {path: leaf for name, tree in trees.items() for path, leaf in _leaves((name,), tree, ())}


def mismatch(output: Outputs, expected: Outputs, *, dtypes: bool = True) -> str | None:
    """Return the first leaf of `output` that has another form than in `expected`, is missing, or is extra, else None.

    Compared are types of containers and their keys, shapes, and values that are no numbers; with `dtypes` also dtypes,
    layouts and devices. The order of keys in a mapping does not count, and strides do not.
    """
    extra = next((path for path in output if path not in expected), None)
    for path, leaf in expected.items():
        other = output.get(path)
        if other is None:
            return f"{readable(path)} is missing" + (f", {readable(extra)} is not expected" if extra else "")
        if other.problem is not None:
            return f"{readable(path)} cannot be compared: {other.problem}"
        same = (other.form, other.constant) == (leaf.form, leaf.constant)
        if not same and (dtypes or leaf.numbers is None or (other.kind, other.shape) != (leaf.kind, leaf.shape)):
            return f"{readable(path)} is {_described(other)}, not {_described(leaf)}"
    return f"{readable(extra)} is not expected" if extra else None


def leaf_errors(output: Outputs, reference: Outputs) -> list[LeafError]:
    """Return the error of each tensor and number, computed in float64; both must have the same structure and shapes."""
    errors = []
    for path, leaf in reference.items():
        if leaf.numbers is None:
            continue
        compare = _compared_exactly if leaf.kind == "exact" else _compared
        error, max_abs, fault, worst = on_device(compare, output[path], leaf)
        form, count = replace(output[path], numbers=None), leaf.numbers.numel()
        errors.append(LeafError(path, form, count, error, max_abs, fault, *worst))
    return errors


def on_device(compare: Callable[[Tensor, Tensor], T], leaf: Leaf, expected: Leaf) -> T:
    """Return what `compare` says of the numbers of both: on the GPU of `leaf`, if it has room and can do that."""
    assert leaf.numbers is not None
    assert expected.numbers is not None
    if leaf.device is not None and leaf.device.type == "cuda" and _has_room(leaf.device, expected.numbers.numel()):
        with suppress(RuntimeError):  # it has no room, or lacks a conversion that the host has
            return compare(leaf.numbers.to(leaf.device), expected.numbers.to(leaf.device))
    return compare(leaf.numbers, expected.numbers)


def _has_room(device: torch.device, elements: int) -> bool:
    """Return whether tensors of so many elements may be compared on a GPU."""
    needed = _COPIES * elements * torch.float64.itemsize
    return elements <= _ON_DEVICE or needed <= _SHARE_OF_FREE * free_bytes(device)


#: (largest error of a part, that part in words, largest error of a slice divided by the slice's own RMS, that slice).
Parts = tuple[float, str, float, str]


def _compared(output: Tensor, reference: Tensor) -> tuple[float, float, str | None, Parts]:
    error, max_abs, fault = _relative_l2(output, reference)
    return error, max_abs, fault, _worst_parts(output, reference) if 0 < error < math.inf else _NO_PARTS


def _compared_exactly(output: Tensor, reference: Tensor) -> tuple[float, float, str | None, Parts]:
    return *_share_of_differing(output, reference), _NO_PARTS


def difference(output: Outputs, expected: Outputs, *, dtypes: bool = True) -> Difference:
    """Return the largest error of any leaf, and the fault of the first that has no error; see `mismatch`."""
    fault = mismatch(output, expected, dtypes=dtypes)
    if fault is not None:
        return Difference(math.inf, fault)
    worst = max(leaf_errors(output, expected), key=lambda each: each.error, default=None)
    if worst is None:
        return Difference(0.0)
    return Difference(worst.error, f"{worst} {worst.fault}" if worst.fault else None)


def relative_l2(output: Any, reference: Any) -> float:
    """Return the largest error of a leaf of `output`, as `LeafError` has it; dtypes may differ.

    The result is inf if structure or shapes differ, or if a value is NaN.
    """
    return difference(to_host(output=output), to_host(output=reference), dtypes=False).error


def _leaves(path: Path, value: Any, around: tuple[int, ...]) -> Iterator[tuple[Path, Leaf]]:
    """Yield (path, leaf) for `value` and all that it contains; `around` are the ids of the containers it is in."""
    if isinstance(value, Tensor):
        yield path, _tensor_leaf(value)
    elif isinstance(value, numpy.ndarray | numpy.generic):
        yield path, _array_leaf(value)
    elif isinstance(value, float | complex):
        kind, dtype = ("floating", torch.float64) if isinstance(value, float) else ("complex", torch.complex128)
        yield path, Leaf(kind, _type_name(value), numbers=torch.tensor(value, dtype=dtype))
    elif isinstance(value, Iterator | ValuesView):
        yield path, _incomparable(value, "it can be read only once: return a list or a tuple")
    elif id(value) in around:
        yield path, _incomparable(value, "it contains itself")
    else:
        node = opened(value)
        entries = None if node is None else zip(node.keys, node.values, strict=True)
        if (
            node is None
            and not callable(value)
            and not isinstance(value, ModuleType | Enum)
            and getattr(value, "__dict__", None)
        ):
            entries = ((GetAttrKey(name), content) for name, content in vars(value).items())
        if entries is None:  # text, None, a whole number or another value; without an own `==` only its type counts
            comparable = type(value).__eq__ is not object.__eq__
            yield path, Leaf("constant", _type_name(value), constant=value if comparable else None)
            return
        yield path, Leaf("container", _type_name(value))
        for key, content in entries:
            yield from _leaves((*path, key), content, (*around, id(value)))


def _described(leaf: Leaf) -> str:
    text = "" if leaf.constant is None else f" {leaf.constant!r}"
    return leaf.form + (text if len(text) <= 60 else f"{text[:60]}…")


def _tensor_leaf(tensor: Tensor) -> Leaf:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.is_nested:
        parts = [part.detach().to("cpu", copy=True).reshape(-1) for part in tensor.unbind()]
        shape = tuple(tuple(part.shape) for part in tensor.unbind())
        numbers = torch.cat([torch.empty(0, dtype=tensor.dtype), *parts])
        kind = _kind(numbers.dtype)
        return Leaf(kind, f"nested {dtype} {list(map(list, shape))} on {tensor.device.type}", shape, dtype, numbers)
    layout = "" if tensor.layout == torch.strided else f" {str(tensor.layout).removeprefix('torch.')}"
    form = f"{dtype} {list(tensor.shape)}{layout} on {tensor.device.type}"
    if tensor.is_meta:
        return _incomparable(tensor, "it has no values", form)
    if layout and tensor.numel() > MOST_DENSE:
        return _incomparable(tensor, f"it is too large to be made dense ({tensor.numel()} elements)", form)
    copied = tensor.detach().to("cpu", copy=True)
    try:
        numbers = copied.dequantize() if copied.is_quantized else copied
        numbers = (numbers.to_dense() if layout else numbers).resolve_conj().resolve_neg()
        numbers.flatten()[:1].to(_wide(numbers.dtype))  # some dtypes cannot be converted
    except (RuntimeError, TypeError) as error:
        return _incomparable(tensor, f"{type(error).__name__}: {str(error).splitlines()[0]}", form)
    return Leaf(_kind(numbers.dtype), form, tuple(tensor.shape), dtype, numbers, device=tensor.device)


def _array_leaf(array: numpy.ndarray | numpy.generic) -> Leaf:
    form = f"{_type_name(array)} {array.dtype} {list(array.shape)}"
    try:
        numbers = torch.from_numpy(numpy.array(array))
    except TypeError:
        return _incomparable(array, f"torch has no dtype {array.dtype}", form)
    return Leaf(_kind(numbers.dtype), form, array.shape, str(array.dtype), numbers)


def _incomparable(value: Any, problem: str, form: str | None = None) -> Leaf:
    return Leaf("constant", form or _type_name(value), problem=problem)


def _kind(dtype: torch.dtype) -> Kind:
    return "floating" if dtype.is_floating_point or dtype in SAMPLES else "complex" if dtype.is_complex else "exact"


def _wide(dtype: torch.dtype) -> torch.dtype:
    kinds = {"floating": torch.float64, "complex": torch.complex128, "exact": torch.int64}
    return kinds[_kind(dtype)]


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _share_of_differing(output: Tensor, reference: Tensor) -> tuple[float, float, None]:
    """Return (fraction of elements that differ, largest difference), comparing as int64: float64 would round."""
    if reference.numel() == 0:
        return 0.0, 0.0, None
    differing = output.to(torch.int64) != reference.to(torch.int64)
    return float(differing.double().mean()), float((output.double() - reference.double()).abs().max()), None


def _relative_l2(output: Tensor, reference: Tensor) -> tuple[float, float, str | None]:
    """Return (‖output − reference‖ / ‖reference‖, largest absolute difference, why the error is inf)."""
    if reference.numel() == 0:
        return 0.0, 0.0, None
    if output.dtype == reference.dtype and not output.is_complex() and torch.equal(output, reference):
        return 0.0, 0.0, None
    distance, norm, max_abs = _norms(output, reference)
    scale = 1.0
    if not (math.isfinite(distance) and math.isfinite(norm) and norm > _LEAST_NORM):
        expected, actual = reference.to(_wide(reference.dtype)), output.to(_wide(reference.dtype))
        if expected.isnan().any():
            return math.inf, math.inf, "cannot be judged: the reference itself has NaN there"
        if actual.isnan().any():
            return math.inf, math.inf, "has NaN"
        if not torch.equal(actual.where(actual.isinf(), 0), expected.where(expected.isinf(), 0)):
            return math.inf, math.inf, "is infinite where the reference is not, or not where the reference is"
        actual, expected = (tensor.where(~tensor.isinf(), 0) for tensor in (actual, expected))
        scale = float(expected.abs().max())
        if scale == 0:
            wrong = float(actual.abs().max())
            return (math.inf, wrong, "is not zero, and the reference is zero everywhere") if wrong else (0.0, 0.0, None)
        actual, expected = actual / scale, expected / scale
        distance, norm, max_abs = _norms(actual, expected)
    max_abs *= scale
    if not math.isfinite(distance):
        return math.inf, max_abs, "is too far from the reference for a number"
    return distance / norm, max_abs, None


def _worst_parts(output: Tensor, reference: Tensor) -> Parts:
    """Return (RMS error of the worst part over the RMS of the reference, that part in words), then of its own RMS."""
    exact, is_complex = reference.numel() <= _EXACT, reference.is_complex()
    wide = _wide(reference.dtype) if exact else torch.complex64 if is_complex else torch.float32
    expected = reference.to(wide)
    square = (output.to(wide) - expected).abs().square().nan_to_num(0.0, 0.0, 0.0)
    energies = expected.nan_to_num(0.0, 0.0, 0.0).abs().square()
    energy = float(energies.mean())
    if not 0 < energy < math.inf:
        return _NO_PARTS
    parts: list[tuple[float, str]] = [(0.0, "")]
    of_own: list[tuple[float, str]] = [(0.0, "")]
    # Samples are whole numbers: of a dark picture one step may be all.
    eps = math.inf if output.dtype in SAMPLES else torch.finfo(output.dtype).eps
    least = energy * max(_LEAST_RMS, 4 * eps) ** 2
    for dim, size in enumerate(square.shape):
        if size > 1 and square.numel() // size >= _LEAST_PART:
            others = [each for each in range(square.ndim) if each != dim]
            errors, own = square.mean(others), energies.mean(others)
            shares = torch.where(own >= least, errors / own, 0.0)
            for values, found in ((errors, parts), (shares, of_own)):
                value, index = values.max(0)
                found.append((float(value), f"index {int(index)} of dimension {dim}"))
    if square.ndim >= 2 and min(square.shape[-2:]) >= 2 * TILE:
        tiles = avg_pool2d(square.reshape(-1, 1, *square.shape[-2:]), TILE, ceil_mode=True).amax((0, 1))
        row, column = divmod(int(tiles.argmax()), tiles.shape[-1])
        top, left = TILE * row, TILE * column
        parts.append((float(tiles.max()), f"the tile [{top}:{top + TILE}, {left}:{left + TILE}]"))
    elif square.ndim and square.shape[-1] >= 2 * BLOCK:
        blocks = avg_pool1d(square.reshape(-1, 1, square.shape[-1]), BLOCK, ceil_mode=True).amax((0, 1))
        start = BLOCK * int(blocks.argmax())
        parts.append((float(blocks.max()), f"the block [{start}:{start + BLOCK}]"))
    (worst, place), (share, own_place) = max(parts), max(of_own)
    return math.sqrt(worst / energy), place, math.sqrt(share), own_place


def _norms(actual: Tensor, expected: Tensor) -> tuple[float, float, float]:
    """Return (‖actual − expected‖, ‖expected‖, largest absolute difference), computed part by part.

    A float64 copy of the whole would need up to four times its memory, and would not fit into the host's caches.
    """
    distance, norm, max_abs = 0.0, 0.0, 0.0
    wide, size = _wide(expected.dtype), _ON_DEVICE if expected.is_cuda else _PART
    for part, other in zip(actual.reshape(-1).split(size), expected.reshape(-1).split(size), strict=True):
        other = other.to(wide)
        differences = part.to(wide) - other
        distance, norm = math.hypot(distance, float(differences.norm())), math.hypot(norm, float(other.norm()))
        max_abs = max(max_abs, float(differences.abs().max()))
    return distance, norm, max_abs
