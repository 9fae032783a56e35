"""Attribution of GPU work to operators and submodules, also where a CUDA graph or a compiler hides both.

A trace of eager code links each kernel to the operator and the submodule that launched it (`Attributor`). The trace of
a CUDA-graph replay has no such links, so its kernels are aligned by name with a reference trace of the same step before
its capture (`attributed_by_reference`). Compiled code has no submodules either. A compiler keeps matrix products,
convolutions, attention and custom operators, so these get their submodules from a trace of the eager module
(`with_eager_modules`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy

from profiling.trace.events import (
    MODULE,
    GpuWork,
    HostCall,
    Operator,
    Timeline,
    TracedCall,
    innermost,
    launches_by_correlation,
    parents_of,
)
from profiling.trace.kernel_classes import class_of, class_of_name, class_of_operator
from profiling.trace.operator_costs import Cost, OperatorCosts, bytes_of, tensors_of

#: Classes whose FLOPs are counted.
_COUNTED = ("gemm", "conv", "attention")
#: Helper kernels of a matrix product: cuBLAS's splitKreduce, scaling and epilogue, CUTLASS's ReduceSplitK.
_AUXILIARY = re.compile("reduce|reduction|scal_kernel|epilogue", re.IGNORECASE)
#: cuDNN's conversions of a tensor from channels first to last and back, and its copies of the channels of a group.
_CONVERSION = re.compile("nchwToNhwc|nhwcToNchw|nhwcSliceC")


@dataclass(frozen=True, slots=True)
class KernelAttribution:
    """The class, operator and submodule of a kernel, copy or fill, and its bytes and FLOPs; None means not known.

    `module` is the submodule's path, "" for the component itself. `flops` counts this kernel alone, `operator_flops`
    all kernels that its operator launched. `arguments` are those of the operator, as far as the trace recorded them.
    """

    work: GpuWork
    kind: str
    operator: str | None = None
    module: str | None = None
    bytes: int | None = None
    flops: int | None = None
    operator_flops: int | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict, compare=False)


class Attributor:
    """Attributes GPU work by the links in its own trace, without a reference.

    If an operator launched several kernels, its FLOPs and bytes go to the main kernel, recognised by its name, or in
    equal parts to several with one name and grid (a convolution may launch one for each group). Helpers, which for
    example combine partial products, get none; conversions of a layout and copies of a group's channels get the
    bytes of reading and writing a tensor once.
    """

    def __init__(self, trace: Timeline, costs: OperatorCosts) -> None:
        self._trace, self._costs = trace, costs
        self._operators: dict[int | None, Operator] = {each.id: each for each in trace.operators if each.id is not None}
        self._launches = launches_by_correlation(trace)
        self._parents = parents_of(trace.operators)
        self._backward = BackwardModules(trace, self._parents)

    def of(self, call: TracedCall) -> tuple[KernelAttribution, ...]:
        """Return the attribution of each piece of the call's work, in its order."""
        attributions = []
        launched = Counter(work.operator for work in call.work)
        main = _main_kernels(call.work)
        conversions = self._conversions(call.work)
        for work, module in zip(call.work, self._modules(call), strict=True):
            operator = self._operators.get(work.operator)
            kind = class_of(work, None if operator is None else operator.name)
            cost = Cost() if operator is None else self._cost(operator, kind)
            equal = main.get(work.operator, ())
            is_main = any(each is work for each in equal)
            moved = cost.bytes if launched[work.operator] == 1 else conversions.get(work)
            if is_main and cost.bytes is not None:
                moved = cost.bytes // len(equal)
            attributions.append(
                KernelAttribution(
                    work,
                    kind,
                    operator=None if operator is None else operator.name,
                    module=module,
                    bytes=work.bytes if work.kind != "kernel" else moved,
                    flops=cost.flops // len(equal) if is_main and cost.flops is not None else None,
                    operator_flops=cost.flops,
                    arguments={} if operator is None else operator.arguments,
                )
            )
        return tuple(attributions)

    def _cost(self, operator: Operator, kind: str) -> Cost:
        """Return the cost of the operator, or of the nearest caller of the same class whose cost is known.

        A library's operator (`cudnn_convolution`) cannot run on the meta device; the operator that calls it can.
        """
        cost = self._costs.of(operator)
        while cost == Cost() and kind in ("conv", "attention"):
            parent = self._parents.get(operator.id)
            if parent is None or class_of_operator(parent.name) != kind:
                break
            operator, cost = parent, self._costs.of(parent)
        return cost

    def _conversions(self, work: Sequence[GpuWork]) -> dict[GpuWork, int]:
        """Return the bytes of cuDNN's layout conversions, if it is certain which tensor each one converts.

        A convolution may convert its input, its weights and its output. Input and weights are converted if they are
        contiguous, the larger one by the longer conversion. The output has the rest of the operator's bytes. With a
        kernel for each group, the group's channels of input and output may be copied before and after it; each copy
        gets the mean of the two.
        """
        by_operator: dict[int | None, list[GpuWork]] = {}
        for item in work:
            if _CONVERSION.search(item.name):
                by_operator.setdefault(item.operator, []).append(item)
        found: dict[GpuWork, int] = {}
        for key, kernels in by_operator.items():
            operator = self._operators.get(key)
            if operator is None or class_of_operator(operator.name) != "conv":
                continue
            given = tensors_of(operator)[:2]
            before = sorted((each for each in kernels if "nchwToNhwc" in each.name), key=lambda each: each.length)
            after = [each for each in kernels if "nhwcToNchw" in each.name]
            sizes = sorted(bytes_of(tensor) for tensor in given if tensor.is_contiguous())
            if len(before) == len(sizes):
                found.update((each, 2 * size) for each, size in zip(before, sizes, strict=True))
            result = (self._cost(operator, "conv").bytes or 0) - sum(map(bytes_of, given))
            if len(after) == 1 and result > 0:
                found[after[0]] = 2 * result
            slices = [each for each in kernels if "nhwcSliceC" in each.name]
            groups = given[0].shape[1] // given[1].shape[1] if slices and len(given) == 2 else 0
            if len(slices) == 2 * groups and result > 0:
                found.update((each, (bytes_of(given[0]) + result) // groups) for each in slices)
        return found

    def _modules(self, call: TracedCall) -> list[str | None]:
        """Return for each piece of work the submodule whose forward or backward pass launched it."""
        moments: list[tuple[float, HostCall | None, int]] = []
        for index, work in enumerate(call.work):
            launch = self._launches.get(work.correlation)
            moments.append((work.begin if launch is None else launch.begin, launch, index))
        moments.sort(key=lambda item: item[0])
        spans = innermost(self._trace.modules, [(moment, launch and launch.row) for moment, launch, _ in moments])
        modules: list[str | None] = [None] * len(moments)
        for (_, _, index), span in zip(moments, spans, strict=True):
            backward = self._backward.of(self._operators.get(call.work[index].operator))
            modules[index] = backward if backward is not None or span is None else span.name.removeprefix(MODULE)
        return modules


def _main_kernels(work: Sequence[GpuWork]) -> dict[int | None, list[GpuWork]]:
    """Return the main kernels of each operator: its only kernel, or those of one name, like a matrix product's."""
    by_operator: dict[int | None, list[GpuWork]] = {}
    for item in work:
        if item.operator is not None and item.kind == "kernel":
            by_operator.setdefault(item.operator, []).append(item)
    main = {}
    for operator, kernels in by_operator.items():
        named = [item for item in kernels if class_of_name(item.name) in _COUNTED and not _AUXILIARY.search(item.name)]
        if len(kernels) == 1 or len({(item.name, item.grid, item.block) for item in named}) == 1:
            main[operator] = kernels if len(kernels) == 1 else named
    return main


class BackwardModules:
    """Maps nodes of autograd to submodules, in a trace with a span for each submodule."""

    def __init__(self, trace: Timeline, parents: Mapping[int | None, Operator]) -> None:
        self._parents = parents
        forward = [each for each in trace.operators if _sequence(each) is not None and not _is_backward(each)]
        spans = innermost(trace.modules, [(operator.begin, operator.row) for operator in forward])
        # Operators without a node carry the number of the next node: the last operator of a number created that node.
        self._spans = {_sequence(operator): span for operator, span in zip(forward, spans, strict=True)}

    def of(self, operator: Operator | None) -> str | None:
        """Return the path of the submodule whose backward pass contains `operator`; None if there is none."""
        while operator is not None and not _is_backward(operator):
            operator = self._parents.get(operator.id)
        span = None if operator is None else self._spans.get(_sequence(operator))
        return None if span is None else span.name.removeprefix(MODULE)


def _sequence(operator: Operator) -> int | None:
    return operator.arguments.get("Sequence number")


def _is_backward(operator: Operator) -> bool:
    """Return whether the operator is a node of autograd: only these record their forward pass's thread (from 1)."""
    return bool(operator.arguments.get("Fwd thread id")) and _sequence(operator) is not None


#: Score of a pair of equal names, and penalty of a name without a partner. A pair of different names scores 0, so that
#: among equal layers the third is aligned with the third even if another layer has an extra kernel.
_EQUAL, _UNPAIRED = 2, 1
#: Largest score table, in entries of 4 bytes; above it nothing is aligned.
_MOST_CELLS = 50_000_000


@lru_cache(maxsize=16)  # calls of a trace are mostly equal
def aligned(names: tuple[str, ...], known: tuple[str, ...]) -> tuple[int | None, ...]:
    """Return for each of `names` the index in `known` of its counterpart, an equal name; None without one.

    Indices ascend. Where `known` occurs in `names` as a whole, that occurrence is the alignment, else the one of the
    highest score.
    """
    for begin in range(len(names) - len(known) + 1):
        if names[begin : begin + len(known)] == known:
            return (*(None,) * begin, *range(len(known)), *(None,) * (len(names) - begin - len(known)))
    if len(names) * len(known) > _MOST_CELLS:
        return (None,) * len(names)
    return _traced_back(names, known, _scores(names, known))


def _scores(names: tuple[str, ...], known: tuple[str, ...]) -> numpy.ndarray:
    """Return the best score of each prefix of `names` (rows) against each prefix of `known` (columns)."""
    ids = {name: number for number, name in enumerate(dict.fromkeys((*names, *known)))}
    columns = numpy.array([ids[name] for name in known])
    steps = _UNPAIRED * numpy.arange(len(known) + 1, dtype=numpy.int32)
    table = numpy.empty((len(names) + 1, len(known) + 1), dtype=numpy.int32)
    table[0] = -steps
    for row, name in enumerate(names, 1):
        best = table[row - 1] - _UNPAIRED
        best[1:] = numpy.maximum(best[1:], table[row - 1, :-1] + _EQUAL * (columns == ids[name]))
        table[row] = numpy.maximum.accumulate(best + steps) - steps  # any number of unpaired names before a column
    return table


def _traced_back(names: tuple[str, ...], known: tuple[str, ...], table: numpy.ndarray) -> tuple[int | None, ...]:
    indices: list[int | None] = [None] * len(names)
    row, column = len(names), len(known)
    while row and column:
        equal = names[row - 1] == known[column - 1]
        if table[row, column] == table[row - 1, column - 1] + _EQUAL * equal:
            row, column = row - 1, column - 1
            indices[row] = column if equal else None
        elif table[row, column] == table[row - 1, column] - _UNPAIRED:
            row -= 1
        else:
            column -= 1
    return tuple(indices)


#: Clock resolution of the trace in microseconds: kernels of one stream may seem to overlap by less than this.
_CLOCK_US = 0.1


def attributed_by_reference(
    work: Sequence[GpuWork], reference: Sequence[KernelAttribution]
) -> list[KernelAttribution | None]:
    """Return the attribution of a replay's `work` from `reference`, the same step launched kernel by kernel.

    Replay and reference are aligned by kernel names in order. Work without a counterpart (copies around a replay,
    kernels that only one of the two runs) has None. On branches of a graph work overlaps, and its order is arbitrary:
    a kernel there is attributed only if its name belongs to a single operator among all work between the nearest
    kernels that ran alone.
    """
    indices = aligned(tuple(item.name for item in work), tuple(item.work.name for item in reference))
    alone, reference_alone = _runs_alone(work), _runs_alone([item.work for item in reference])
    trusted = [
        is_alone and index is not None and reference_alone[index]
        for index, is_alone in zip(indices, alone, strict=True)
    ]
    bounds = [-1, *(index for index, sure in zip(indices, trusted, strict=True) if index is not None and sure)]
    bounds.append(len(reference))
    passed = list(accumulate(map(int, trusted)))  # how many bounds precede each piece of work
    unsure = zip(passed, work, trusted, strict=True)
    overlapping = Counter((bound, item.name) for bound, item, sure in unsure if not sure)
    attributions: list[KernelAttribution | None] = []
    for item, index, sure, is_alone, bound in zip(work, indices, trusted, alone, passed, strict=True):
        attribution = reference[bounds[bound]] if sure else None
        if not sure and not (is_alone and index is None):
            between = reference[bounds[bound] + 1 : bounds[bound + 1]]
            attribution = _only_one_named(item.name, between, overlapping[bound, item.name])
        attributions.append(None if attribution is None else replace(attribution, work=item))
    return attributions


def _runs_alone(work: Sequence[GpuWork]) -> list[bool]:
    """Return for each piece of work, sorted by begin, whether it is on the most used stream and nothing overlaps it."""
    main_stream = Counter(item.stream for item in work).most_common(1)[0][0] if work else None
    alone = [item.stream == main_stream for item in work]
    last = 0  # index of the earlier piece that ends last
    for index, item in enumerate(work[1:], 1):
        if item.begin < work[last].end - _CLOCK_US:
            alone[index] = alone[last] = False
        if item.end > work[last].end:
            last = index
    return alone


def _only_one_named(name: str, reference: Sequence[KernelAttribution], count: int) -> KernelAttribution | None:
    """Return the attribution of all kernels named `name`, if they belong to one submodule and operators of one size.

    If the reference has another number of them than `count`, the number in the replay, the work was split in another
    way; bytes and FLOPs of a kernel are then unknown.
    """
    named = [item for item in reference if item.work.name == name]
    if len({(item.module, item.operator, item.bytes, item.flops) for item in named}) != 1:
        return None
    return named[0] if len(named) == count else replace(named[0], bytes=None, flops=None, operator_flops=None)


def merged(
    by_reference: Sequence[KernelAttribution | None], own: Sequence[KernelAttribution]
) -> tuple[KernelAttribution, ...]:
    """Return for each piece of work its attribution by reference where there is one, else the one by its own trace.

    Work that an operator of its own trace launched keeps that operator, and takes the submodule from the reference.
    """
    result = []
    for counterpart, mine in zip(by_reference, own, strict=True):
        if counterpart is None:
            result.append(mine)
        elif mine.operator is not None:
            result.append(replace(mine, module=counterpart.module))
        else:
            result.append(counterpart)
    return tuple(result)


def with_eager_modules(
    compiled: Sequence[KernelAttribution], eager: Sequence[KernelAttribution]
) -> tuple[KernelAttribution, ...]:
    """Return `compiled`, the work of one call of compiled code, with submodules from one call of the eager module.

    Calls are matched in order: the n-th product (convolution, attention) with a given number of FLOPs is matched with
    the n-th such call of the eager module, and so is the n-th call of a custom operator, if both traces have equally
    many. All kernels of a matched operator get its submodule. Kernels that the compiler fused from several operators
    have none.
    """
    modules: dict[int | None, str | None] = {}
    eager_groups = _by_anchor(eager)
    for anchor, operators in _by_anchor(compiled).items():
        counterparts = eager_groups.get(anchor, {})
        if len(operators) == len(counterparts):
            modules |= dict(zip(operators, counterparts.values(), strict=True))
    return tuple(replace(item, module=modules.get(item.work.operator)) for item in compiled)


def _by_anchor(items: Sequence[KernelAttribution]) -> Mapping[Hashable, dict[int | None, str | None]]:
    """Return {kind of operator that a compiler keeps: {id of each call, in order: its submodule}}."""
    groups: dict[Hashable, dict[int | None, str | None]] = {}
    for item in items:
        anchor = _anchor(item)
        if anchor is not None:
            groups.setdefault(anchor, {})[item.work.operator] = item.module
    return groups


def _anchor(item: KernelAttribution) -> Hashable | None:
    if item.kind in _COUNTED and item.operator_flops is not None:
        return item.kind, item.operator_flops
    if item.operator is None or item.operator.startswith("aten::") or "::" not in item.operator:
        return None
    return item.operator


def class_by_name(calls: Sequence[Sequence[KernelAttribution]]) -> Mapping[str, str]:
    """Return for each kernel name the class in which it spent most of its time."""
    spent: dict[str, Counter[str]] = {}
    for call in calls:
        for item in call:
            spent.setdefault(item.work.name, Counter())[item.kind] += round(item.work.length * 1e3) + 1
    return {name: kinds.most_common(1)[0][0] for name, kinds in spent.items()}
